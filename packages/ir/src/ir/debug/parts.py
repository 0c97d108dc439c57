"""Parts of a graph as graphs of their own: nodes apart from each other, a few nodes, all values as results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ir.dims import Expr
from ir.errors import ExportError
from ir.graph import Graph, Node, Value, leaves, map_arg
from ir.importer.calling_convention import TENSOR, Structure, TensorOutput

_WHOLE = ("program", "live", "rung")  # what a capture says of the whole program


class PartContext:
    """The context of a graph for a part of it: bodies and rules, nothing of the program's own inputs and results."""

    specialized, knows_decisions = (), True

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.given: tuple[Any, ...] = ()  # what the part is run on, for targets that look at an example

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the part.

        Raises:
            ExportError: they are not known yet.
        """
        if not self.given:
            raise ExportError("this part of a graph has no example inputs yet")
        return self.given, {}

    def of_model(self, *_: Any) -> None:
        """There is no module of this part alone."""

    def __getattr__(self, name: str) -> Any:
        if name in _WHOLE or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole, name)


@dataclass(frozen=True, eq=False)
class Part:
    """A part: its graph, the value of the whole that each of its inputs is, and the nodes that it was made of."""

    graph: Graph
    feeds: tuple[Value, ...]
    nodes: tuple[Node, ...]

    def node_of(self, node: Node) -> Node | None:
        """The node of the whole that a node of this part, or one that a pass made of it, comes from."""
        return self._origins.get(id(node.origin.modules))

    @cached_property
    def _origins(self) -> Mapping[int, Node]:
        return {id(mine.origin.modules): whole for mine, whole in zip(self.graph.nodes, self.nodes, strict=True)}


def results_of(graph: Graph, nodes: Iterable[Node]) -> list[Value]:
    """The values of these nodes that something reads: what nothing reads, targets leave out."""
    read = {*graph.uses, *graph.results.values()}
    return [v for n in nodes for v in n.outputs if v in read]


def isolated(graph: Graph, nodes: Sequence[Node]) -> Part:
    """These nodes, each fed from outside alone; weights stay weights, since targets treat them in their own way."""
    return _part(graph, nodes, results_of(graph, nodes), apart=True)


def connected(graph: Graph, nodes: Sequence[Node], results: Sequence[Value] | None = None) -> Part:
    """These nodes with the edges between them; by default everything that is read outside of them is a result."""
    inside = {v for n in nodes for v in n.outputs}
    if results is None:
        chosen = set(nodes)
        out = {*graph.results.values(), *(v for v, ns in graph.uses.items() if not chosen.issuperset(ns))}
        results = [v for n in nodes for v in n.outputs if v in out and v in inside]
    return _part(graph, nodes, results, apart=False)


def tapped(graph: Graph, values: Sequence[Value]) -> Graph:
    """The whole graph with these values as its results."""
    names = _names([v.name for v in values], {v.name for v in graph.inputs})
    return graph.replace(
        outputs=tuple(values), output_names=names, updates={}, structure=flat_structure(graph.inputs, values),
        context=PartContext(graph.context),
    )  # fmt: skip


def _part(graph: Graph, nodes: Sequence[Node], results: Sequence[Value], apart: bool) -> Part:
    nodes = _with_numbers(graph, nodes)
    given: dict[Value, Value] = {}
    made: set[Value] = set()
    taken = {v.name for n in graph.nodes for v in n.outputs} | {v.name for v in graph.inputs}

    def feed(value: Value) -> Value:
        if value not in given:
            (name,) = _names([f"{value.name}_given"], taken)
            taken.add(name)
            given[value] = Value(name, value.type)
        return given[value]

    def operand(arg: Any) -> Any:
        inside = not apart and arg in made if isinstance(arg, Value) else True
        return arg if inside or arg in graph.weights else feed(arg)

    copies = []
    for node in nodes:
        args = {k: map_arg(a, operand) for k, a in node.args.items()}
        origin = replace(node.origin, modules=dict(node.origin.modules or {}))  # its own, which passes hand on
        copies.append(replace(node, args=args, origin=origin))
        made.update(node.outputs)
    for value in _carriers(graph, nodes, {*given, *made}):
        feed(value)
    used = {v for n in copies for v in n.inputs} | {*results}
    part = graph.replace(
        inputs=tuple(given.values()), nodes=tuple(copies), outputs=tuple(results),
        output_names=_names([v.name for v in results], {v.name for v in given.values()}),
        weights={v: w for v, w in graph.weights.items() if v in used},
        updates={}, structure=flat_structure(list(given.values()), results), context=PartContext(graph.context),
    )  # fmt: skip
    return Part(part, tuple(given), tuple(nodes))


def flat_structure(inputs: Sequence[Value], results: Sequence[Value]) -> Structure:
    """The calling convention of tensors by position."""
    outputs = tuple(map(TensorOutput, range(len(results))))
    return Structure(None, None, (TENSOR,) * len(inputs), outputs, tuple(v.name for v in inputs))


def _symbols(nodes: Iterable[Node]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        dims = [d for v in (*node.inputs, *node.outputs) for d in v.type.shape]
        for a in (*dims, *leaves(node.args.values())):
            if isinstance(a, Expr):
                found |= a.symbols
        for inner in node.graphs:
            found |= _symbols(inner.nodes)
    return found


def _with_numbers(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The nodes, and before them those that read the numbers which they name out of tensors."""
    wanted, chosen = _symbols(nodes), set(nodes)
    readers = [n for n in graph.nodes if n.op == "ir::item" and n.args["symbol"].as_symbol in wanted]
    return [*(n for n in readers if n not in chosen), *nodes]


def _carriers(graph: Graph, nodes: Sequence[Node], known: Collection[Value]) -> Iterator[Value]:
    """The values whose sizes tell what the symbols in these nodes are, where no known value does."""
    for name in sorted(_symbols(nodes)):
        source = graph.sources.get(name)
        if source is not None and source.axis is not None and source.value not in known:
            yield source.value


def _names(wished: Sequence[str], taken: Collection[str]) -> tuple[str, ...]:
    used, found = set(taken), []
    for name in wished:
        made = name
        while made in used:
            made += "_1"
        used.add(made)
        found.append(made)
    return tuple(found)
