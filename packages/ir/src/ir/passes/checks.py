"""Nodes that compute nothing: they look at data and raise, or print. Targets that cannot raise leave them out."""

from __future__ import annotations

from dataclasses import replace

from ir.dims import Expr
from ir.graph import Graph, Node, Origin
from ir.ops import CHECKS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, over_graphs


def check(condition: Expr, message: str, origin: Origin | None = None) -> Node:
    """The node that raises with this message where the condition does not hold."""
    args = {"self": condition, "assert_msg": message}
    return Node("aten::_assert_scalar", args, (), Origin() if origin is None else replace(origin, overload=""), "none")


@contract(ensures=("without checks",))
def drop_checks(graph: Graph) -> Graph:
    """The graph, and the sub-graphs in it, without such nodes."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        made = () if node.op in CHECKS else (over_graphs(node, drop_checks),)
        if made != (node,):
            edit.replace(node, *made)
    return edit.graph()
