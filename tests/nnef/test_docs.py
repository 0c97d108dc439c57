"""The Python of docs/nnef.md runs, block after block, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import nnef_backend

PAGE = Path(__file__).parents[2] / "docs" / "nnef.md"


def test_the_page_runs():
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    try:
        for block in blocks:
            exec(compile(block, "nnef.md", "exec"), names)
    finally:
        nnef_backend.REGISTRY.remove("docs::gated")
        for name in ("gate", "gated"):
            nnef_backend.remove_fragment(name)


def test_its_links_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link
