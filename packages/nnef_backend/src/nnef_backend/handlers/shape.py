"""The shape family."""
