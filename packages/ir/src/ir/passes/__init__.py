"""Graph -> Graph, one pass a file."""
