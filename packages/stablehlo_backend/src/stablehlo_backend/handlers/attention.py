"""Attention: decompositions alone, which need no handler."""
