"""The matmul family."""
