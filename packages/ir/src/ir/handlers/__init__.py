"""Handlers that several targets share, one file a family; `registry` says how."""
