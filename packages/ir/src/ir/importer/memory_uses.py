"""When a program writes to its memories and reads them: what a copy and a view differ in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch.fx import Node as FxNode

from ir.importer.aliases import Outcome, Seen, seen_in


def memories_in(result: Any) -> set[int]:
    """The memories that a nested result lies in."""
    return {s.memory for s in seen_in(result)}


class Uses:
    """When each memory of a graph is written to and last read, by the order of the nodes."""

    def __init__(self, outcomes: Mapping[FxNode, Outcome]) -> None:
        self._at: dict[FxNode, int] = {}
        self._writes: dict[int, list[int]] = {}
        self._read: dict[int, float] = {}
        self._note(outcomes)

    def _note(self, outcomes: Mapping[FxNode, Outcome]) -> None:
        for node, outcome in outcomes.items():
            at = self._at[node] = len(self._at)
            for memory in memories_in(outcome.written):
                self._writes.setdefault(memory, []).append(at)
            read = memories_in([outcomes[n].result for n in node.all_input_nodes if n in outcomes])
            self._read |= {m: max(self._read.get(m, 0), at) for m in read}
            if node.op == "placeholder":  # whoever handed it in reads it afterwards
                self._read |= dict.fromkeys(memories_in(outcome.result), math.inf)
            self._note(outcome.inner or {})

    @property
    def written(self) -> Collection[int]:
        """The memories that the graph writes to, sooner or later."""
        return self._writes.keys()

    def written_after(self, node: FxNode, memories: Iterable[int]) -> bool:
        """True if one of the memories is written to behind the node."""
        return any(w > self._at[node] for m in memories for w in self._writes.get(m, ()))

    def seen_after_write(self, node: FxNode, made: int, given: int) -> bool:
        """True if one of the two is read after the other was written to, behind the node."""
        return any(
            w > self._at[node] and self._read.get(other, 0) > w
            for one, other in ((made, given), (given, made))
            for w in self._writes.get(one, ())
        )


def copies_by_size(node: FxNode, outcomes: Mapping[FxNode, Outcome], uses: Uses) -> bool:
    """True if the node copied an argument, and a write would tell it from the view that it may be at other sizes."""
    made, given = (outcomes[n].result for n in (node, next(iter(node.all_input_nodes), node)))
    if not (isinstance(made, Seen) and isinstance(given, Seen) and made.dtype == given.dtype):
        return False
    return made.memory != given.memory and uses.seen_after_write(node, made.memory, given.memory)
