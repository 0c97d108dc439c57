"""Nodes that compute the same of the same are one: the later ones' readers read the first."""

from __future__ import annotations

from typing import Any

from ir.graph import Graph, Node, Value, map_arg
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor


@contract(requires=("functional", "flat"), settles="without equal nodes")
def cse(graph: Graph) -> Graph:
    """Merge equal nodes; a result of the graph keeps its value, so that its name stays."""
    if graph.random:
        return graph
    edit = GraphEditor(graph)
    known: dict[Any, Node] = {}
    for node in graph.nodes:
        if not node.outputs or node.graphs or edit.results.intersection(node.outputs):
            continue
        key = node.overload, tuple((k, map_arg(a, _key)) for k, a in edit.reading(node).args.items())
        first = known.setdefault(key, node)
        # two searches of the same tensor (nonzero) find equally much, but their sizes have different names
        if first is not node and all(a.type == b.type for a, b in zip(first.outputs, node.outputs, strict=True)):
            for value, same in zip(node.outputs, first.outputs, strict=True):
                edit.forward(value, same)
    return edit.graph()


def _key(arg: Any) -> Any:
    """Arguments that are equal but not the same, 1 and 1.0, 0.0 and -0.0, are told apart."""
    return arg if isinstance(arg, Value) else (type(arg), repr(arg) if isinstance(arg, float | complex) else arg)
