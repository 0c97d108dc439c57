"""Handlers of the eager target, a file a family."""
