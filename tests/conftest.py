"""Random numbers that a test draws are the same in every run; and the end of a run of the case table: handlers that no
case reached fail it, also where xdist spread it out."""

from __future__ import annotations

import gc
import random
import sys
import zlib
from collections.abc import Generator
from typing import Any

import pytest

_NOTES: dict[str, tuple[set[str], set[str]]] = {}
_PROBLEMS: list[str] = []


def _seed(name: str) -> None:
    """Seed torch's and Python's generators by a name, so that neither the order of tests nor xdist changes a draw."""
    import torch

    seed = zlib.crc32(name.encode())
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats the stack three times, for other devices
    random.seed(seed)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # it is imported next
        _seed(collector.nodeid)


def pytest_collection_finish() -> None:
    """What is imported now stays, so the collector need not look at it again (a twentieth of an export's time)."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    _seed(f"{request.node.nodeid}::{fixturedef.argname}[{request.param_index}]")
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    _seed(pyfuncitem.nodeid)


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
