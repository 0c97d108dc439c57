"""Graph passes that this target alone needs."""
