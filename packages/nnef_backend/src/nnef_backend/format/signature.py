"""What a graph.nnef declares, and what tract knows of its inputs and outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nnef_backend.errors import DocumentError
from nnef_backend.format.document import without_comments


@dataclass(frozen=True, slots=True)
class Fact:
    """What tract knows of an input or output: its extents (ints, or text over symbols) and element type."""

    shape: tuple[int | str, ...]
    dtype: str

    @classmethod
    def parse(cls, text: str) -> Fact:
        """Read tract's form of a fact, `B,3,f32`."""
        parts, depth = [""], 0
        for mark in text:
            depth += (mark == "(") - (mark == ")")
            if mark == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += mark
        *shape, dtype = (part.strip() for part in parts)
        return cls(tuple(int(d) if d.lstrip("-").isdigit() else d for d in shape), dtype.lower())


def signature(text: str) -> tuple[list[str], list[str]]:
    """The names of the inputs and outputs that the text of a graph.nnef declares.

    Raises:
        DocumentError: there is no graph declaration.
    """
    found = re.search(r"\bgraph\s+\w+\s*\(([^)]*)\)\s*->\s*\(([^)]*)\)", without_comments(text))
    if found is None:
        raise DocumentError("the text declares no graph")
    inputs, outputs = ([name.strip() for name in part.split(",") if name.strip()] for part in found.groups())
    return inputs, outputs


def symbols(text: str) -> list[str]:
    """The names of the dynamic dimensions that the text of a graph.nnef declares."""
    return re.findall(r"^\s*extension\s+tract_symbol\s+(\w+)", without_comments(text), re.MULTILINE)
