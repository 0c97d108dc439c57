"""Indices that the model counts, as positions are (`torch.arange(x.shape[1])`): at which sizes an axis has them all.

torch's kernels refuse the others. A runtime may cut the count short, count a number below 0 from the end, or read what
is beyond the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir.bounds import Range, may_be_positive
from ir.dims import Dim, Expr, call, product
from ir.graph import Graph, Node, Value
from ir.indexed import INDEXED, Bound
from ir.ops import CASTS, COPIES, is_view
from ir.passes.checks import all_of, required
from ir.passes.graph_editor import reading

Span = tuple[Dim, Dim]  # the least and the largest, both of which are among the numbers
_EXPANDS = frozenset({"aten::expand", "aten::expand_as", "aten::broadcast_to", "aten::repeat"})


def within_axes(graph: Graph) -> Graph:
    """The graph, in which counted indices are handed on by the condition that the axis they count along has them."""
    spans: dict[Value, Span] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if (span := _span(node, spans)) is not None:
            spans[node.outputs[0]] = span
        for bound in INDEXED[node.op](node.args) if spans and node.op in INDEXED else ():
            if (condition := _condition(spans.get(bound.indices), bound, graph.symbols)) is not None:
                nodes.append(held := _held(node, bound.indices, condition, len(nodes)))
                node = reading(node, {bound.indices: held.outputs[0]})
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes)) if len(nodes) > len(graph.nodes) else graph


def _span(node: Node, spans: Mapping[Value, Span]) -> Span | None:
    """The numbers of an integer tensor that is counted, or made of one that is."""
    if len(node.outputs) != 1 or not node.outputs[0].type.dtype.is_integer:
        return None
    args, first = node.args, next(iter(node.inputs), None)
    if node.op == "aten::arange":
        return _counted(args.get("start", 0), args.get("step", 1), node.outputs[0].type.shape[0])
    if first is None or first not in spans:
        return None
    low, high = spans[first]
    if node.op in ("aten::add", "aten::sub"):
        by = args["other"]
        by = by if args.get("alpha", 1) == 1 and _is_whole(by) else None
        by = -by if node.op == "aten::sub" and by is not None else by
        return None if by is None else (low + by, high + by)
    return (low, high) if _has_all(node, first) else None


def _counted(start: Dim, step: Dim, count: Dim) -> Span | None:
    if not _is_whole(start) or not isinstance(step, int):
        return None
    last = start + step * (count - 1)
    return (start, last) if step > 0 else (last, start)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) or (isinstance(number, Expr) and number.kind == "int")


def _has_all(node: Node, x: Value) -> bool:
    """Whether the result has all the elements of `x`, in another shape or type, or several times."""
    if node.op in _EXPANDS:
        return True
    same = product(x.type.shape) == product(node.outputs[0].type.shape)
    return same and (node.op in CASTS or node.op in COPIES or is_view(node))


def _condition(span: Span | None, bound: Bound, ranges: Mapping[str, Range]) -> Expr | None:
    if span is None:
        return None
    least, size = bound.lowest, bound.size
    open_ = [d for d in (span[1] + 1 - size, least - span[0]) if may_be_positive(d, ranges)]
    parts = [call("le", span[1] + 1, size) if d == span[1] + 1 - size else call("le", least, span[0]) for d in open_]
    return all_of(parts)


def _held(node: Node, index: Value, condition: Expr, place: int) -> Node:
    message = f"{node.short_op} has all the places that the model counts only where {condition}, as in torch"
    return required(index, Value(f"{node.outputs[0].name}_index{place}", index.type), condition, message, node.origin)
