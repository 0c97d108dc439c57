"""JSON out of files that are not trusted: Python makes up to two hundred bytes of one."""

from __future__ import annotations

LONGEST = 1 << 26  # bytes; the program of a language model has two million of them, in 60 000 parts
MOST_PARTS = 3_000_000


def too_large(data: bytes) -> str:
    """Says why a document is not to be parsed, which would take a gigabyte; empty if it may be."""
    if len(data) > LONGEST:
        return f"is JSON of more than {LONGEST} bytes"
    if sum(map(data.count, (b"[", b"{", b","))) > MOST_PARTS:
        return f"is JSON of more than {MOST_PARTS} parts"
    return ""
