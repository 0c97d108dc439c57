"""Normalisations and softmax: decompositions alone, which need no handler."""
