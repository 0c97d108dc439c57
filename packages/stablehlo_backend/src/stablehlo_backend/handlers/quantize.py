"""Quantize: torch's own decompositions, which need no handler."""
