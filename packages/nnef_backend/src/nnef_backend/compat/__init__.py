"""Handlers written for other exporters."""
