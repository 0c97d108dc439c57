"""The artifact and its files."""
