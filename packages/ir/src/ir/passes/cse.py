"""Nodes that compute the same of the same are one: the later ones' readers read the first."""

from __future__ import annotations

from typing import Any

from ir.graph import Graph, Node, Value, map_arg
from ir.passes.replace_uses import reading


def cse(graph: Graph) -> Graph:
    """Merge equal nodes; a result of the graph keeps its value, so that its name stays."""
    if graph.random:
        return graph
    known: dict[Any, Node] = {}
    same: dict[Value, Value] = {}
    results = set(graph.results.values())
    kept: list[Node] = []
    for node in graph.nodes:
        node = reading(node, same)
        if not node.outputs or node.graphs or any(v in results for v in node.outputs):
            kept.append(node)
            continue
        key = node.overload, tuple((k, map_arg(a, _key)) for k, a in node.args.items())
        first = known.setdefault(key, node)
        # two searches of the same tensor (nonzero) find equally much, but their sizes have different names
        if first is node or any(a.type != b.type for a, b in zip(first.outputs, node.outputs, strict=True)):
            kept.append(node)
        else:
            same.update(zip(node.outputs, first.outputs, strict=True))
    return graph.replace(nodes=tuple(kept)) if same else graph


def _key(arg: Any) -> Any:
    """Arguments that are equal but not the same, 1 and 1.0, 0.0 and -0.0, are told apart."""
    return arg if isinstance(arg, Value) else (type(arg), repr(arg) if isinstance(arg, float | complex) else arg)
