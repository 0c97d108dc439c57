"""The conv family."""
