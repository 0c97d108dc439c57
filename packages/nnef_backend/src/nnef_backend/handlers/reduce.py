"""The reduce family."""
