"""Graph -> Graph for ONNX alone, one pass a file."""
