"""Artifacts over columns: what a worker of any engine needs."""
