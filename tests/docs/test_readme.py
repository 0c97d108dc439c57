"""The README's files exist (tests/docs/test_followed.py runs its code)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_links_and_commands_name_files_that_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"(?:python|-r|\./)(\S*/?\S+\.(?:py|txt))", README):
        assert (ROOT / path.strip()).exists(), path


def test_ci_runs_the_second_command():
    assert "nox" in (ROOT / ".ci" / "run").read_text()
