"""The index family."""
