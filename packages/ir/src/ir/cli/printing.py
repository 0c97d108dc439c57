"""Printing what may come out of files: characters that would steer the terminal are shown as Python writes them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich import console
from rich.segment import Segment

from ir.words import plain


def say(*texts: Any, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """As print."""
    print(plain(sep.join(map(str, texts))), end=end, file=file or sys.stdout)


class Console(console.Console):
    """rich's, whose own styles and orders are the only ones."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Every piece of text that is printed."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(plain(piece.text), piece.style)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings name what stands in files, too."""
    own = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: plain(own(*args, **kwargs))
    try:
        yield
    finally:
        warnings.formatwarning = own
