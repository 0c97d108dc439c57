"""docs/adding-a-*.md, followed literally."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ir

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def follow(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "page", "exec", dont_inherit=True), names)


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"__name__": "page"}


def test_an_op_is_added(names):
    for block in blocks("adding-an-op.md"):
        follow(block, names)


def test_a_pass_is_added(names):
    for block in blocks("adding-a-pass.md"):
        follow(block, names)


def test_a_target_is_added(names):
    *parts, use, last = blocks("adding-a-target.md")
    for block in parts:
        follow(block, names)
    with pytest.raises(ir.UnsupportedOpsError, match=r"aten::silu[\s\S]*needs: aten::div\n"):
        follow(use, names)
    follow(last, names)
    follow(use, names)
    assert "max error" in str(names["program"].report)
    assert Path("model.npz").exists()
