"""The part of a page between two comments, which a benchmark writes anew."""

from __future__ import annotations

from pathlib import Path

_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->"


def put(page: Path, text: str) -> None:
    """Put a text between the page's comments."""
    head, _, rest = page.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    page.write_text(f"{head}{_BEGIN}{text}\n{_END}{tail}")
