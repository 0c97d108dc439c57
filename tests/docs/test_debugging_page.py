"""The page on debugging: its files, commands and Python run in order, and the commands print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "debugging.md"
FAILS = (
    "ir export my_model:model --plugin",
    "ir debug my_model:model --plugin",
    "python reduced.py",
    "python refused.py",
)


def plain(line: str) -> str:
    """A line without its numbers and the width of its columns."""
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "N", line).split())


@pytest.mark.slow  # twelve commands, several of which start processes of their own
def test_the_page_runs(tmp_path):
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = os.environ | {"IR_CACHE": str(tmp_path / "cache"), "COLUMNS": "400"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    script, output = [], ""

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)

    for kind, text in blocks:
        if kind == "python" and text.startswith("# my_"):
            (tmp_path / text.split()[1]).write_text(text)
        elif kind == "python":
            script.append(text)
        elif kind == "bash":
            for line in text.splitlines():
                name, *rest = line.split()
                done = run([sys.executable, *(["-m", "ir"] if name == "ir" else []), *rest])
                output = done.stdout + done.stderr
                assert done.returncode == int(line.startswith(FAILS)), f"{line}\n{output}"
        else:
            said = {plain(line) for line in output.splitlines()}
            assert not [line for line in text.splitlines() if plain(line) not in said], output
    assert len(script) == 4
    done = run([sys.executable, "-c", "\n".join(script)])
    assert done.returncode == 0, done.stderr
