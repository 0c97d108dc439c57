"""What runs an artifact."""
