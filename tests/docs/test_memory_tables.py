"""The tables of memory that follow from what a benchmark measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.large_language_model import KINDS, PAGE, seventy

DOCS = Path(__file__).parents[2] / "docs"


def cells(lines: list[str]) -> dict[str, list[str]]:
    """The rows of a table whose first cell is a target and an element type."""
    rows = [[c.strip() for c in line.strip("| ").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows if row[0] in KINDS}


def test_70_b_is_reckoned_from_what_was_measured():
    page = PAGE.read_text()
    said = cells(page.partition("## 70 B")[2].splitlines())
    assert said == cells(seventy(page))
    assert {*said} == {*KINDS}
    measured = dict(line.split(" | ")[1:3] for line in page.splitlines() if line.startswith("| 16, 4096"))
    memory = (DOCS / "language-models.md").read_text().partition("## Memory")[2].splitlines()
    assert cells(memory) == {kind: [measured[kind], row[-1]] for kind, row in said.items()}
