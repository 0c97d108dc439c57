"""Damaged and hostile files of every kind: `python -m tests.fuzz.mutants --kind pt2 --count 500 --seed 7`."""
