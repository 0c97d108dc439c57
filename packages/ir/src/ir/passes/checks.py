"""Nodes that compute nothing: they raise, or print. Files hold an input or a result to the conditions that raise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from ir.bounds import Range, never_negative
from ir.dims import EXACT, Expr, call, evaluate, is_static, product, symbol, visit
from ir.graph import Arg, Graph, Node, Origin, SymbolSource, Value
from ir.ops import CHECKS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, over_graphs, reading
from ir.types import DType

_MORE = {"le": 0, "ge": 0, "lt": 1, "gt": 1}  # by how much the one side is to be more, of whole numbers
_MOST = 2**63 - 1  # that a size can be
_CONDITIONS = ("aten::_assert_scalar", "aten::_assert_async")


def check(condition: Expr, message: str, origin: Origin | None = None) -> Node:
    """The node that raises with this message where the condition does not hold."""
    args = {"self": condition, "assert_msg": message}
    return Node("aten::_assert_scalar", args, (), Origin() if origin is None else replace(origin, overload=""), "none")


def required(value: Value, handed: Value, condition: Arg, message: str, origin: Origin | None = None) -> Node:
    """The node that hands a value on, as another, where the condition holds."""
    args = {"self": value, "condition": condition, "message": message}
    return Node("ir::require", args, (handed,), Origin() if origin is None else replace(origin, overload=""))


def all_of(parts: Iterable[Expr]) -> Expr | None:
    """The condition that holds where each of these does; None where there are none."""
    return reduce(lambda a, b: call("and", a, b), parts) if (parts := list(parts)) else None


@contract(ensures=("without checks",))
def drop_checks(graph: Graph) -> Graph:
    """The graph, and the sub-graphs in it, without such nodes: what they would raise for is asked by `ir::require`.

    A result is handed on where the conditions on data hold, and the smallest of the inputs where those on sizes do. A
    program looks at sizes before it runs (`ir.conditions`); the file refuses them where another opens it. Conditions in
    sub-graphs are lost.
    """
    of_sizes, of_data = _conditions(graph)
    edit = GraphEditor(graph)
    for node in graph.nodes:
        made = () if node.op in CHECKS else (over_graphs(node, drop_checks),)
        if made != (node,):
            edit.replace(node, *made)
    return held_input(_held_result(edit.graph(), of_data), of_sizes)


def _conditions(graph: Graph) -> tuple[list[Node], list[Node]]:
    """The checks of sizes of inputs; and those of a tensor or of a number out of data, as far as it may be another."""
    from_data = {n for n, s in graph.sources.items() if s.value not in graph.inputs or s.axis is None}
    made_by = {v: n for n in graph.nodes for v in n.outputs}
    ranges = {n: _of_count(graph.sources[n], made_by) for n in from_data}
    of_sizes, of_data = [], []
    for node in graph.nodes:
        condition = node.args["self"] if node.op in _CONDITIONS else None
        if isinstance(condition, Value):
            of_data.append(node)
        elif isinstance(condition, Expr) and condition.symbols <= graph.sources.keys():
            if not condition.symbols & from_data:
                of_sizes.append(node)
            elif not follows(condition, ranges):
                of_data.append(node)
    return of_sizes, of_data


def _of_count(source: SymbolSource, made_by: Mapping[Value, Node]) -> Range:
    """What a number out of data can be: a count is not negative, and not above the number of elements."""
    if source.axis is None:
        return Range(None, None)
    operands = made_by[source.value].inputs if source.value in made_by else ()
    counted = [v for v in operands if v.type.dtype in (DType.bool, DType.uint8)] or operands
    sizes = [product(v.type.shape) for v in counted]
    return Range(0, max(sizes) if sizes and is_static(sizes) else None)


def follows(condition: Any, ranges: Mapping[str, Range]) -> bool:
    """True of a comparison that the ranges show to hold."""
    if not isinstance(condition, Expr):
        return bool(condition)

    def apply(fn: str, args: Sequence[Any]) -> Any:
        if fn not in _MORE or not all(isinstance(a, int) or getattr(a, "kind", "") == "int" for a in args):
            return EXACT[fn](*args) if fn in EXACT else call(fn, *args)
        least, most = args if fn in ("le", "lt") else args[::-1]
        holds = (isinstance(most, int) and most >= _MOST) or never_negative(most - least - _MORE[fn], ranges)
        return True if holds else call(fn, *args)

    return visit(condition, lambda n: n, lambda s: symbol(s.name, s.kind), apply) is True


def _held_result(graph: Graph, checks: Sequence[Node]) -> Graph:
    """The graph whose first result is handed on by the conditions."""
    if not checks or not graph.outputs:
        return graph
    value, made = graph.outputs[0], []
    for i, node in enumerate(checks):  # one after the other
        handed = Value(f"{graph.outputs[0].name}_where{i}", value.type)
        made.append(required(value, handed, node.args["self"], _text(node), node.origin))
        value = handed
    return graph.replace(nodes=[*graph.nodes, *made], outputs=(value, *graph.outputs[1:]))


def held_input(graph: Graph, checks: Sequence[Node]) -> Graph:
    """The graph whose smallest input is handed on by the conditions: it costs a copy."""
    read = [v for v in graph.inputs if v in graph.uses and not v.type.dtype.is_complex and not v.type.is_sparse]
    if not checks or not read:
        return graph
    value = min(read, key=_elements)
    text = "; ".join(map(_text, checks))
    condition = all_of(dict.fromkeys(n.args["self"] for n in checks))
    first = required(value, Value(f"{value.name}_where0", value.type), condition, text, checks[0].origin)
    held = {value: first.outputs[0]}
    return graph.replace(nodes=[first, *(reading(n, held) for n in graph.nodes)])


def _elements(value: Value) -> int:
    """How many elements it has where every symbol is 16."""
    whole = product(value.type.shape)
    return whole if isinstance(whole, int) else int(evaluate(whole, dict.fromkeys(whole.symbols, 16)))


def _text(check: Node) -> str:
    """What it says where its condition does not hold."""
    return check.args.get("assert_msg") or str(check.args["self"])
