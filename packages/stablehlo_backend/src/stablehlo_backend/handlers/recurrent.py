"""Recurrent layers: decompositions alone, which need no handler."""
