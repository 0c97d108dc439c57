"""The README's Python runs, block after block, and its files exist."""

from __future__ import annotations

import re
from pathlib import Path

import ir

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    try:
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    finally:
        ir.registry.registry("onnx").remove("demo::swish")


def test_links_and_commands_name_files_that_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"(?:python|-r|\./)(\S*/?\S+\.(?:py|txt))", README):
        assert (ROOT / path.strip()).exists(), path


def test_ci_runs_the_second_command():
    assert "nox" in (ROOT / ".ci" / "run").read_text()
