"""Nodes that compute nothing: they look at data and raise, or print. Files hold a result to what they look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ir.dims import Expr, call, symbol
from ir.graph import Graph, Node, Origin, Value
from ir.ops import CHECKS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, over_graphs

_CONDITIONS = ("aten::_assert_scalar", "aten::_assert_async")


def check(condition: Expr, message: str, origin: Origin | None = None) -> Node:
    """The node that raises with this message where the condition does not hold."""
    args = {"self": condition, "assert_msg": message}
    return Node("aten::_assert_scalar", args, (), Origin() if origin is None else replace(origin, overload=""), "none")


@contract(ensures=("without checks",))
def drop_checks(graph: Graph) -> Graph:
    """The graph, and the sub-graphs in it, without such nodes: a result is handed on where they would not raise.

    A program looks at conditions on the sizes of its inputs before it runs (`ir.conditions`), and those in sub-graphs
    are lost.
    """
    held = _data_conditions(graph)
    edit = GraphEditor(graph)
    for node in graph.nodes:
        made = () if node.op in CHECKS else (over_graphs(node, drop_checks),)
        if made != (node,):
            edit.replace(node, *made)
    made_graph = edit.graph()
    return _holding(made_graph, held) if held and made_graph.outputs else made_graph


def _data_conditions(graph: Graph) -> list[Node]:
    """The checks that look at data: at a tensor, or at a number read out of one."""
    from_data = {n for n, s in graph.sources.items() if s.value not in graph.inputs or s.axis is None}
    counts = {n for n in from_data if graph.sources[n].axis is not None}

    def looks_at_data(condition: Any) -> bool:
        if isinstance(condition, Value):
            return True
        known = isinstance(condition, Expr) and condition.symbols <= graph.sources.keys()
        # that a count is not negative needs no look
        return (
            known
            and bool(condition.symbols & from_data)
            and condition not in {call("ge", symbol(n), 0) for n in counts}
        )

    return [n for n in graph.nodes if n.op in _CONDITIONS and looks_at_data(n.args["self"])]


def _holding(graph: Graph, checks: Sequence[Node]) -> Graph:
    """The graph whose first result is handed on by the conditions."""
    nodes, result = list(graph.nodes), graph.outputs[0]
    for i, node in enumerate(checks):
        handed = Value(f"{result.name}_where{i}", graph.outputs[0].type)
        condition = node.args["self"]
        given = {"self": result, "condition": condition, "message": node.args.get("assert_msg") or str(condition)}
        nodes.append(Node("ir::require", given, (handed,), replace(node.origin, overload="")))
        result = handed
    return graph.replace(nodes=nodes, outputs=(result, *graph.outputs[1:]))
