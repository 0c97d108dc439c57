"""Graphs for people: facts in numbers, listings of 80 columns, pages for a browser."""
