"""Random programs on every target: `python -m tests.fuzz --count 500 --seed 7`."""
