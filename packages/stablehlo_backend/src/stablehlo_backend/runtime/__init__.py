"""IREE: its compiler, and the process that runs what it makes."""
