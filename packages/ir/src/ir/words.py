"""Words of messages: a number with its noun, a class with its article, the name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`; the plural takes an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def a(name: str) -> str:
    """`an int`, `a dict`."""
    return f"an {name}" if name[:1] in tuple("aeiouAEIO") else f"a {name}"


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?` of the nearest known name, capitals or not; empty where none is near."""
    names = list(known)
    near = [k for k in names if k.lower() == name.lower()] or difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""
