"""docs/comparison.md: every row has a cell for each exporter, one of ours that says yes, and what shows it exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from ir.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
ROWS = [[c.strip() for c in line.strip("|").split("|")] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
HEAD, *BODY = (row for row in ROWS if not set(row[1]) <= {"-"})


def test_every_row_is_whole():
    assert len(BODY) > 25 and all(len(row) == len(HEAD) and all(row[1:]) for row in BODY)
    assert not [row[0] for row in BODY if row[HEAD.index("ours")] in ("-", "no")]


@pytest.mark.parametrize("row", [row for row in BODY if "`ir " in row[1]], ids=lambda row: row[0])
def test_the_command_that_shows_it_is_one(row):
    group = typer.main.get_command(app)
    for line in re.findall(r"`(ir [^`]+)`", row[1]):
        _, name, *words = shlex.split(line)
        command = group.commands.get(name, group)
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        assert command is not group or name in options, line
        assert {w for w in words if re.fullmatch(r"--?[a-z-]+|-[A-Z]", w)} <= options, line
