"""docs/batch-inference.md and docs/pipelines.md: what needs no engine runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "count"), [("batch-inference.md", 3), ("pipelines.md", 3)])
def test_python_blocks_run(page, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "scale_page"}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page == "pipelines.md":
        assert str(names["pipeline"]) in (DOCS / page).read_text()
