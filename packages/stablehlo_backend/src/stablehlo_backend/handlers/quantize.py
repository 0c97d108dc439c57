"""Quantisation: decompositions alone, which need no handler."""
