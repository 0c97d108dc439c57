"""The list of planted bugs fits the code: `nox -s planted` plants them and runs the tests that must notice."""

from __future__ import annotations

import pytest

from tests.planted_bugs import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.file}: {b.old[:30]}")
def test_what_a_bug_replaces_is_there_once(bug: Bug) -> None:
    assert bug.occurs() == 1 and bug.old != bug.new
    files = [word for word in bug.tests.split() if word.startswith("tests/")]
    assert files and all((ROOT / f).exists() for f in files)


def test_there_are_at_least_twelve_files() -> None:
    assert len({b.file for b in BUGS}) >= 12
