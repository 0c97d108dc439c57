"""The end of a run of the case table: handlers that no case reached fail it, also where xdist spread it out."""

from __future__ import annotations

import sys
from typing import Any

import pytest

_NOTES: dict[str, tuple[set[str], set[str]]] = {}
_PROBLEMS: list[str] = []


def _merge(notes: dict[str, Any]) -> None:
    for target, (ran, cases) in notes.items():
        kept = _NOTES.setdefault(target, (set(), set()))
        kept[0].update(ran)
        kept[1].update(cases)


def _own() -> dict[str, Any]:
    reached = sys.modules.get("tests.reached")  # imported by a test that runs the table
    return {} if reached is None else {t: (sorted(reached.RAN[t]), sorted(c)) for t, c in reached.CASES.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    _merge(getattr(node, "workeroutput", {}).get("reached", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["reached"] = _own()
        return
    _merge(_own())
    if _NOTES and session.exitstatus == pytest.ExitCode.OK:
        from tests.reached import problems

        if found := problems(_NOTES):
            _PROBLEMS.append(found)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for found in _PROBLEMS:
        terminalreporter.write_sep("=", "handlers without a case", red=True)
        terminalreporter.write_line(found)
