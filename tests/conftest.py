"""Numbers that a test draws are the same in every run, what the tests of a module share is made once, and a run of the
case table fails for handlers that no case reached, also where xdist spread it out."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Generator
from typing import Any

import pytest

_NOTES: dict[str, tuple[set[str], set[str]]] = {}
_PROBLEMS: list[str] = []
_GROUP = pytest.StashKey[str]()


def _seed(name: str) -> None:
    """Seed torch's and Python's generators by a name, so that neither the order of tests nor xdist changes a draw."""
    import torch

    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    random.seed(seed)


def _name(node: pytest.Item) -> str:
    """A test's name without the group that xdist adds to it."""
    return node.nodeid.removesuffix("@" + node.stash.get(_GROUP, ""))


def _shared(item: pytest.Function) -> str:
    """The module, and which of its fixtures' parameters, for a test that uses a fixture of its module; else empty."""
    module = [name for name, found in item._fixtureinfo.name2fixturedefs.items() if found[-1].scope == "module"]
    drawn = item.callspec.indices if hasattr(item, "callspec") else {}
    return "-".join([item.path.stem, *(f"{n}{drawn[n]}" for n in sorted(module) if n in drawn)]) if module else ""


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, tests that share a module's fixture run in one process, which makes it once."""
    for item in items:
        if isinstance(item, pytest.Function) and (group := _shared(item)):
            item.stash[_GROUP] = group
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # it is imported next
        _seed(collector.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    node = request.node
    name = _name(node) if isinstance(node, pytest.Item) else node.nodeid
    _seed(f"{name}::{fixturedef.argname}[{request.param_index}]")
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    _seed(_name(pyfuncitem))


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
