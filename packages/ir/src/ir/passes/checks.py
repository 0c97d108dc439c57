"""Nodes that compute nothing: they look at data and raise, or print. Files hold a result to what they look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir.bounds import Range, bounds
from ir.dims import Expr, call, is_static, product, symbol, visit
from ir.graph import Graph, Node, Origin, SymbolSource, Value
from ir.ops import CHECKS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, over_graphs
from ir.types import DType

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
    """The checks that look at data: at a tensor, or at a number read out of one, as far as it may be another."""
    from_data = {n for n, s in graph.sources.items() if s.value not in graph.inputs or s.axis is None}
    made_by = {v: n for n in graph.nodes for v in n.outputs}
    ranges = {n: _of_count(graph.sources[n], made_by) for n in from_data}

    def looks_at_data(condition: Any) -> bool:
        if not isinstance(condition, Expr):
            return isinstance(condition, Value)
        known = condition.symbols <= graph.sources.keys() and condition.symbols & from_data
        return bool(known) and not _always(condition, ranges)

    return [n for n in graph.nodes if n.op in _CONDITIONS and looks_at_data(n.args["self"])]


def _of_count(source: SymbolSource, made_by: Mapping[Value, Node]) -> Range:
    """What a number out of data can be: a count is not negative, and not above the number of elements."""
    if source.axis is None:
        return Range(None, None)
    operands = made_by[source.value].inputs if source.value in made_by else ()
    counted = [v for v in operands if v.type.dtype in (DType.bool, DType.uint8)] or operands
    sizes = [product(v.type.shape) for v in counted]
    return Range(0, max(sizes) if sizes and is_static(sizes) else None)


def _always(condition: Expr, ranges: Mapping[str, Range]) -> bool:
    """True of a comparison that the ranges show to hold."""

    def apply(fn: str, args: Sequence[Any]) -> Any:
        if fn not in ("le", "ge") or not all(isinstance(a, (int, Expr)) for a in args):
            return call(fn, *args)
        low, _ = bounds(args[1] - args[0] if fn == "le" else args[0] - args[1], ranges)
        return True if low >= 0 else call(fn, *args)

    return visit(condition, lambda n: n, lambda s: symbol(s.name, s.kind), apply) is True


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
