"""The create family."""
