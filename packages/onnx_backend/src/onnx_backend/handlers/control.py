"""The control family."""
