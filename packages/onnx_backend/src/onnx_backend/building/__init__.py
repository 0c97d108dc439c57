"""What a model is built with: values, sizes, shape verbs, the parts of a file in memory."""
