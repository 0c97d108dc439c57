"""What builds the module: text, sizes, shape verbs."""
