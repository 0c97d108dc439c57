"""GraphEditor: what passes share. A graph never changes; the editor notes what is to change and makes another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from ir.graph import Graph, Node, Value, Weight, map_arg
from ir.types import TensorType


class GraphEditor:
    """One rewrite of a graph, in the order of its nodes.

    Attributes:
        results: the values that the graph hands out, whose names stay.
        weights: those of the new graph; a pass may add some.
    """

    def __init__(self, graph: Graph) -> None:
        self.source = graph
        self.results = set(graph.results.values())
        self.weights: dict[Value, Weight] = dict(graph.weights)
        self._names = {v.name for v in (*graph.inputs, *graph.weights, *graph.producer)}
        self._same: dict[Value, Value] = {}
        self._changed: dict[Node, tuple[Node, ...]] = {}
        self._released: set[Node] = set()

    def value(self, name: str, type: TensorType) -> Value:
        """A new value; its name gets a number where it is taken."""
        free = next(n for n in chain([name], (f"{name}_{i}" for i in count(1))) if n not in self._names)
        self._names.add(free)
        return Value(free, type)

    def producer(self, value: Any, *ops: str, alone: bool = False) -> Node | None:
        """The node that makes a value, if it is of these ops and, with `alone`, one node only reads the value."""
        node = self.source.producer.get(value) if isinstance(value, Value) else None
        fits = node is not None and (not ops or node.op in ops)
        return node if fits and (not alone or self.is_read_once(value)) else None

    def is_read_once(self, value: Value) -> bool:
        """True if one node reads the value, and nobody outside of the graph."""
        return len(self.source.uses.get(value, ())) == 1 and value not in self.results

    def current(self, value: Value) -> Value:
        """What readers of the value read by now."""
        return self._same.get(value, value)

    def reading(self, node: Node) -> Node:
        """The node over what stands for its operands by now."""
        return reading(node, self._same)

    def forward(self, value: Value, other: Value) -> bool:
        """Readers of a value read another, and its node goes; False, and nothing, for a result of the graph."""
        if value in self.results:
            return False
        self._same[value] = self.current(other)
        self.release(self.source.producer[value])
        return True

    def release(self, *nodes: Node) -> None:
        """These nodes go if nothing reads them any more."""
        self._released.update(nodes)

    def replace(self, node: Node, *others: Node, results: Sequence[Value] | None = None) -> None:
        """Other nodes stand in the place of one, and `results`, if given, for its own, as those of the graph too."""
        self._changed[node] = tuple(map(self.reading, others))
        pairs = zip(node.outputs, node.outputs if results is None else results, strict=True)
        self._same.update((old, new) for old, new in pairs if old is not new)

    def graph(self) -> Graph:
        """The new graph; the old one itself where nothing changed."""
        if not self._same and not self._changed and self.weights == self.source.weights:
            return self.source
        outputs = tuple(map(self.current, self.source.outputs))
        updates = {name: self.current(v) for name, v in self.source.updates.items()}
        made = {n: self._changed[n] if n in self._changed else (self.reading(n),) for n in self.source.nodes}
        released = {n for node in self._released for n in made[node]}
        nodes = [n for group in made.values() for n in group]
        kept = without_unread(nodes, {*outputs, *updates.values()}, released, self.weights)
        read = {v for n in kept for v in n.inputs}.union(outputs, updates.values())
        unread = {v for v in self.weights if v in self.source.uses or v not in self.source.weights} - read
        gone = unread.union(v for n in kept for v in n.outputs)
        weights = {v: w for v, w in self.weights.items() if v not in gone}
        return self.source.replace(nodes=kept, outputs=outputs, updates=updates, weights=weights)


def reading(node: Node, same: Mapping[Value, Value]) -> Node:
    """The node with other values for some that it reads; itself if it reads none of them."""
    if not any(v in same for v in node.inputs):
        return node
    args = {k: map_arg(a, lambda x: same.get(x, x) if isinstance(x, Value) else x) for k, a in node.args.items()}
    return replace(node, args=args)


def over_graphs(node: Node, fn: Callable[[Graph], Graph]) -> Node:
    """The node with `fn` applied to its sub-graphs; itself if none changes."""
    made = {g: fn(g) for g in node.graphs}
    if all(g is other for g, other in made.items()):
        return node
    args = {k: map_arg(a, lambda x: made[x] if isinstance(x, Graph) else x) for k, a in node.args.items()}
    return replace(node, args=args)


def without_unread(
    nodes: Sequence[Node], results: Iterable[Value], may_go: Collection[Node], known: Collection[Value] = ()
) -> tuple[Node, ...]:
    """The nodes, less those that may go and whose values nothing reads that does not know them anyway."""
    read = set(results)
    kept = []
    for node in reversed(nodes):
        if node not in may_go or any(v in read and v not in known for v in node.outputs):
            kept.append(node)
            read.update(node.inputs)
    return tuple(reversed(kept))
