"""When a program writes to its memories and reads them: what a copy and a view differ in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

from torch.fx import Node as FxNode

from ir.importer.aliases import Outcome, Seen, seen_in
from ir.importer.fx_ops import WRAPPERS
from ir.importer.schema import op_schema
from ir.importer.tensor_meta import holds_tensor
from ir.importer.torch_api import HigherOrderOperator, pytree


def memories_in(result: Any) -> set[int]:
    """The memories that a nested result lies in."""
    return {s.memory for s in seen_in(result)}


class Uses:
    """When each memory of a graph is written to and read, by the order of the nodes, and through which of them."""

    def __init__(self, outcomes: Mapping[FxNode, Outcome]) -> None:
        self.done: dict[FxNode, Outcome] = {}  # those of wrapped sub-graphs as well
        self._at: dict[FxNode, int] = {}
        self._same: dict[FxNode, FxNode] = {}  # placeholders of wrapped sub-graphs, and the operands that they are
        self._inside: dict[FxNode, list[FxNode]] = {}  # what a wrapped sub-graph returns
        self._writes: dict[int, list[tuple[int, set[FxNode]]]] = {}
        self._reads: dict[int, list[tuple[float, FxNode]]] = {}
        self._note(outcomes, True)

    def _note(self, outcomes: Mapping[FxNode, Outcome], outside: bool) -> None:
        for node, outcome in outcomes.items():
            at = self._at[node] = len(self._at)
            self.done[node] = outcome
            for memory in memories_in(outcome.written):
                self._writes.setdefault(memory, []).append((at, set(self._written(node))))
            for given in map(self._root, node.all_input_nodes):
                for memory in memories_in(self.done[given].result) if given in self.done else ():
                    self._reads.setdefault(memory, []).append((at, given))
            if node.op == "placeholder" and outside:  # whoever handed it in reads it afterwards
                for memory in memories_in(outcome.result):
                    self._reads.setdefault(memory, []).append((math.inf, node))
            if outcome.inner:
                self._enter(node, outcome.inner)

    def _enter(self, node: FxNode, inner: Mapping[FxNode, Outcome]) -> None:
        assert isinstance(node.target, HigherOrderOperator)
        operands = node.args[WRAPPERS[node.target.name()][1] :]
        placeholders = [n for n in inner if n.op == "placeholder"]
        pairs = zip(placeholders, operands, strict=True)
        self._same.update((p, self._root(a)) for p, a in pairs if isinstance(a, FxNode))
        self._note(inner, False)
        self._inside[node] = [self._root(a) for n in inner if n.op == "output" for a in n.all_input_nodes]

    def _root(self, node: FxNode) -> FxNode:
        return self._same.get(node, node)

    def _written(self, node: FxNode) -> Iterator[FxNode]:
        """The operands that it writes to."""
        schema = op_schema(node.target)
        bound = schema.bind(node.args, dict(node.kwargs))
        for leaf in pytree.tree_leaves([bound[name] for name in schema.writes]):
            if isinstance(leaf, FxNode):
                yield self._root(leaf)

    def _made_of(self, node: FxNode) -> list[FxNode]:
        return [*map(self._root, node.all_input_nodes), *self._inside.get(node, ())]

    @property
    def written(self) -> Set[int]:
        """The memories that the graph writes to, sooner or later."""
        return self._writes.keys()

    def seen_after_write(self, node: FxNode, made: int, given: int) -> bool:
        """True if one of the two is read after the other was written to, behind the node."""
        return any(
            written > self._at[node] and any(read > written for read, _ in self._reads.get(other, ()))
            for one, other in ((made, given), (given, made))
            for written, _ in self._writes.get(one, ())
        )

    def is_view(self, node: FxNode) -> bool:
        """True if the node's first result lies in the memory of an operand."""
        made = self.made(node)
        return made is not None and made.memory in memories_in(self.given(node))

    def made(self, node: FxNode) -> Seen | None:
        """The node's first result."""
        return next(iter(seen_in(self.done[node].result)), None)

    def given(self, node: FxNode) -> list[Seen]:
        """The node's operands."""
        known = (self.done[n].result for n in map(self._root, node.all_input_nodes) if n in self.done)
        return [s for result in known for s in seen_in(result)]

    def tells_copies(self, node: FxNode) -> bool:
        """True if the program computes something else where the node copies instead of giving a view, or vice versa."""
        made = self.made(node)
        if made is None:
            return False
        if not self.is_view(node):
            return any(self.seen_after_write(node, made.memory, given.memory) for given in self.given(node))
        later = [w for w in self._writes.get(made.memory, ()) if w[0] > self._at[node]]
        if not later:
            return False
        behind, reads = self._views_through(node, made.memory), self._reads.get(made.memory, [])
        return any(
            read > written and (n in behind) is not bool(behind & targets)
            for written, targets in later
            for read, n in reads
        )

    def _views_through(self, node: FxNode, memory: int) -> set[FxNode]:
        """The nodes whose results are views of this one's, itself included."""
        found, before = {node}, 0
        while len(found) > before:  # what a wrapped sub-graph returns comes behind the node that calls it
            before = len(found)
            for n, outcome in self.done.items():
                if memory in memories_in(outcome.result) and not found.isdisjoint(self._made_of(n)):
                    found.add(n)
        return found

    def sources(self, node: FxNode) -> set[FxNode]:
        """The placeholders of tensors that the node's operands are computed of."""
        met: set[FxNode] = set()
        left = [node]
        while left:
            for n in self._made_of(left.pop()):
                if n not in met and holds_tensor(n.meta.get("val")):
                    met.add(n)
                    left.append(n)
        return {n for n in met if n.op == "placeholder"}


def copies_by_size(node: FxNode, outcomes: Mapping[FxNode, Outcome], uses: Uses) -> bool:
    """True if the node copied an argument, and a write would tell it from the view that it may be at other sizes."""
    made, given = (outcomes[n].result for n in (node, next(iter(node.all_input_nodes), node)))
    if not (isinstance(made, Seen) and isinstance(given, Seen) and made.dtype == given.dtype):
        return False
    return made.memory != given.memory and uses.seen_after_write(node, made.memory, given.memory)
