"""Branches and loops of a graph as programs of their own, on what they were called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ir.debug.parts import PartContext, flat_structure
from ir.debug.values import Values
from ir.dims import Expr, evaluate
from ir.graph import Graph, Node, Value, map_arg


@dataclass
class _Noting(Values):
    """A run that keeps what sub-graphs are called with, first and last."""

    first: dict[int, tuple[Graph, list[Tensor]]] = field(default_factory=dict)
    last: dict[int, tuple[Graph, list[Tensor]]] = field(default_factory=dict)

    def inner(self, graph: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
        call = graph, [t.detach().clone() for t in operands]
        self.first.setdefault(id(graph), call)
        self.last[id(graph)] = call
        return super().inner(graph, operands)


def programs_inside(graph: Graph, node: Node, expected: Values) -> list[tuple[Graph, list[Tensor]]]:
    """The sub-graphs of a node that run on these values, of fixed sizes, each with its first and its last operands."""
    run = _Noting(graph, of=dict(expected.of), sizes=dict(expected.sizes))
    run.results(node)
    found = []
    for inner, operands in (*run.first.values(), *run.last.values()):
        made = settled(inner, expected.sizes)
        context = PartContext(getattr(graph.context, "whole", graph.context))
        context.given = tuple(operands)
        structure = flat_structure(made.inputs, made.outputs)
        found.append((made.replace(context=context, structure=structure), operands))
    return found


def settled(graph: Graph, sizes: Mapping[str, Any]) -> Graph:
    """A sub-graph with these numbers in place of its symbols."""
    made: dict[Value, Value] = {}

    def value(old: Value) -> Value:
        if old not in made:
            shape = tuple(number(d) for d in old.type.shape)
            made[old] = Value(old.name, replace(old.type, shape=shape))
        return made[old]

    def number(arg: Any) -> Any:
        return evaluate(arg, sizes) if isinstance(arg, Expr) and arg.symbols <= sizes.keys() else arg

    def leaf(arg: Any) -> Any:
        if isinstance(arg, Graph):
            return settled(arg, sizes)
        return value(arg) if isinstance(arg, Value) else number(arg)

    nodes = [
        replace(n, args={k: map_arg(a, leaf) for k, a in n.args.items()}, outputs=tuple(map(value, n.outputs)))
        for n in graph.nodes
    ]
    return graph.replace(
        inputs=tuple(map(value, graph.inputs)), nodes=tuple(nodes), outputs=tuple(map(value, graph.outputs)),
        weights={value(v): w for v, w in graph.weights.items()}, symbols={}, equal=(),
    )  # fmt: skip
