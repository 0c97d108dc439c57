"""NNEF for tract and for the Khronos tools."""
