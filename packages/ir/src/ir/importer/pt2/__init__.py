"""A .pt2 file as data: its archive, its program's JSON and its tensors, read without running or unpickling anything."""
