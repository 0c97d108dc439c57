"""Nodes that compute nothing: they look at data and raise, or print. Targets that cannot raise leave them out."""

from __future__ import annotations

from dataclasses import replace

from ir.dims import Expr
from ir.graph import Graph, Node, Origin, map_arg

CHECKS = frozenset({
    "aten::_assert_async", "aten::_assert_scalar", "aten::sym_constrain_range", "aten::sym_constrain_range_for_size",
    "aten::_print",
})  # fmt: skip


def check(condition: Expr, message: str, origin: Origin | None = None) -> Node:
    """The node that raises with this message where the condition does not hold."""
    args = {"self": condition, "assert_msg": message}
    return Node("aten::_assert_scalar", args, (), Origin() if origin is None else replace(origin, overload=""), "none")


def drop_checks(graph: Graph) -> Graph:
    """The graph, and the sub-graphs in it, without such nodes."""
    nodes = tuple(_without(n) for n in graph.nodes if n.op not in CHECKS)
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.replace(nodes=nodes)


def _without(node: Node) -> Node:
    inner = {g: drop_checks(g) for g in node.graphs}
    if all(g is new for g, new in inner.items()):
        return node
    args = {k: map_arg(a, lambda x: inner[x] if isinstance(x, Graph) else x) for k, a in node.args.items()}
    return replace(node, args=args)
