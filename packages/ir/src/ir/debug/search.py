"""The smallest part of a graph that still fails: delta debugging over its nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ir.debug.errors import Error, distance
from ir.debug.parts import connected
from ir.debug.running import Runs
from ir.debug.values import Values
from ir.errors import ExportError
from ir.graph import Graph, Node
from ir.registry import Registry
from ir.target import Target
from ir.trial import undetermined

Fails = Callable[[Sequence[Node]], bool]


@dataclass(frozen=True)
class Verdict:
    """How a part did: `kind` is "ok", "mismatch", "export", "runtime", "crash" or "hang"; `text` is what was said.

    `what` tells failures of one kind apart: the class of the error.
    """

    kind: str
    what: str = ""
    text: str = ""
    error: Error | None = None

    def same(self, other: Verdict) -> bool:
        """Whether both fail in the same way."""
        return (self.kind, self.what) == (other.kind, other.what)

    def shows_in(self, code: int, said: str) -> bool:
        """Whether a script that ended with this exit code, and said this at its end, failed in this way."""
        if self.kind == "mismatch":
            return code == 1 and "AssertionError" in said
        if self.kind == "crash":
            return code not in (0, 1)
        return code == 1 and "in run" in said  # by the runtime's call, not by what leads to it

    @classmethod
    def crash(cls, code: int) -> Verdict:
        """Of a process that ended without an answer; a negative exit code is that of a signal."""
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return cls("crash", name, f"the process ended with {name}")

    @classmethod
    def hang(cls, seconds: float) -> Verdict:
        """Of a process without an answer in this time."""
        return cls("hang", text=f"no answer in {seconds:.0f} s")


OK = Verdict("ok")


def tried(
    graph: Graph,
    target: Target,
    registry: Registry,
    expected: Values,
    nodes: Sequence[Node],
    limit: float | None = None,
) -> Verdict:
    """How these nodes do together, fed torch's own values of what they read from outside; `limit` as of `compared`."""
    part = connected(graph, nodes)
    if not part.graph.outputs:
        return OK
    runs = Runs(graph, target, registry)
    try:
        made = runs.run(part, [expected.of[v] for v in part.feeds])
    except Exception as error:
        return failure(error)
    return compared(part.graph, made, expected, limit)


def failure(error: Exception) -> Verdict:
    """What an error stands for: of the runtime, of a process that it ended, or of the export."""
    code = next((c for e in _causes(error) if (c := getattr(e, "exit_code", None)) is not None), None)
    if code is not None:
        return replace(Verdict.crash(code), text=str(error))
    kind = "runtime" if type(error).__name__ == "RuntimeFailure" or not isinstance(error, ExportError) else "export"
    return Verdict(kind, type(error).__name__, str(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    seen: list[BaseException | None] = [None]
    current: BaseException | None = error
    while current not in seen:
        seen.append(current)
        yield current  # type: ignore[misc]
        current = current.__cause__  # type: ignore[union-attr]


def compared(graph: Graph, made: Sequence[Any], expected: Values, limit: float | None = None) -> Verdict:
    """Whether results of a part are torch's, as verify compares, or up to `limit` times the largest magnitude of each.

    What random numbers decide, or memory that nothing was written to, is not compared.
    """
    skipped = undetermined(graph)[0]
    for (name, value), tensor in zip(graph.results.items(), made, strict=True):
        maker = graph.producer.get(value)
        if name in skipped or (maker is not None and "empty" in maker.op):
            continue
        error = distance(tensor, expected.of[value], limit=limit)
        if error.reason:
            return Verdict("mismatch", text=error.reason, error=error)
    return OK


def smallest(nodes: Sequence[Node], fails: Fails, seconds: float) -> list[Node]:
    """A part of the nodes that fails and of which nothing can be left out, or the best found in this time.

    First the shortest beginning that fails, then the shortest end of that, then whatever else can go.
    """
    deadline = time.monotonic() + seconds
    found = _shortest(list(nodes), fails, deadline, front=True)
    found = _shortest(found, fails, deadline, front=False)
    return _without(found, fails, deadline)


def _shortest(nodes: list[Node], fails: Fails, deadline: float, front: bool) -> list[Node]:
    """The nodes without as many as can go at one end, by bisection."""
    low, high = 1, len(nodes)  # so many are enough: `high`; fewer than `low` are not
    while low < high and time.monotonic() < deadline:
        middle = (low + high) // 2
        if fails(nodes[:middle] if front else nodes[-middle:]):
            high = middle
        else:
            low = middle + 1
    return nodes[:high] if front else nodes[-high:]


def _without(nodes: list[Node], fails: Fails, deadline: float) -> list[Node]:
    """The nodes without chunks that can go, large ones first."""
    size = len(nodes) // 2
    while size and time.monotonic() < deadline:
        start, shrunk = 0, False
        while start < len(nodes) and len(nodes) > 1 and time.monotonic() < deadline:
            rest = nodes[:start] + nodes[start + size :]
            if rest and fails(rest):
                nodes, shrunk = rest, True
            else:
                start += size
        size = min(size, len(nodes)) if shrunk and size == 1 else size // 2
    return nodes
