"""Pools: decompositions alone, which need no handler."""
