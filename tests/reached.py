"""Which handlers the case table reaches: an op cannot be registered without a case.

`noting` is around every case. When the whole table has run, on whatever processes, tests/conftest.py asks `missing` for
the target's own handlers that no case reached, beside those that `tests.TARGET.limits.WITHOUT_CASE` lists.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tests.cases import ALL

RAN: dict[str, set[str]] = defaultdict(set)  # target -> handlers
CASES: dict[str, set[str]] = defaultdict(set)  # target -> cases
_DRIVER = importlib.import_module("ir.lower").Driver


@contextlib.contextmanager
def noting(case: str, target: str) -> Iterator[None]:
    """Note what runs inside as reached by this case on this target."""
    own = _DRIVER._arguments

    def arguments(driver: Any, handler: Any, node: Any) -> Any:
        found = own(driver, handler, node)
        RAN[target].add(_name(handler))
        return found

    _DRIVER._arguments = arguments
    try:
        yield
    finally:
        _DRIVER._arguments = own
        CASES[target].add(case)


def _name(handler: Any) -> str:
    return f"{handler.op}@{handler.since_version}" if handler.since_version else str(handler.op)


def missing(target: str, ran: Collection[str], cases: Collection[str]) -> str:
    """What is wrong: handlers that no case reached, or that are listed although one does; nothing of a partial run."""
    if {c.name for c in ALL} - set(cases):
        return ""
    registry = importlib.import_module(f"{target}_backend.registry").load()
    handlers = {_name(h) for entries in registry.entries.values() for h in entries if h.layer == "builtin"}
    unreached = handlers - set(ran)
    listed = set(importlib.import_module(f"tests.{target}.limits").WITHOUT_CASE)
    said = {"no case reaches": unreached - listed, "take out of WITHOUT_CASE": listed - unreached}
    return "".join(f"{target}: {what}: {' '.join(sorted(names))}\n" for what, names in said.items() if names)


def problems(notes: Mapping[str, tuple[Collection[str], Collection[str]]]) -> str:
    """The same for each target that was run."""
    return "".join(missing(target, *found) for target, found in notes.items())
