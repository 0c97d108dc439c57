"""Words of messages: a number with its noun, a class with its article, the name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.75  # of the letters of two names are one


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


def near_ops(op: str, known: Iterable[str]) -> tuple[str, ...]:
    """The ops whose names are near, whatever their namespaces, which would make any two of one near."""
    names = {other.partition("::")[2]: other for other in sorted(known) if other != op}
    return tuple(names[n] for n in difflib.get_close_matches(op.partition("::")[2], names, 3, _NEAR))


def plain(text: str) -> str:
    r"""The text without what a terminal takes for an order, or reorders by; lines and tabs stay.

    Examples:
        >>> plain("\x1b[31mred")
        '\\x1b[31mred'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
