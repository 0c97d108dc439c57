"""Sizes that decide how many axes or results an op has, or what it writes: the graph holds where that is as traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch.fx import Node as FxNode

from ir import geometry
from ir.bounds import Range, bounds, may_be_positive
from ir.dims import Dim, Expr, call
from ir.graph import Node, Value, leaves, map_arg
from ir.importer.aliases import Outcome
from ir.importer.copied_sizes import copies_where
from ir.importer.operand_sizes import condition_of
from ir.importer.strided import Place
from ir.importer.symbols import Symbols
from ir.ops import MOVES
from ir.passes import checks
from ir.passes.checks import follows

SQUEEZES = frozenset({"aten::squeeze", "aten::squeeze_copy"})
SCATTERS = frozenset({"aten::slice_scatter", "aten::select_scatter"})  # of writes
PIECES = frozenset({"aten::split", "aten::unsafe_split", "aten::chunk", "aten::unsafe_chunk"})  # of one size
SECTIONS = frozenset({"aten::tensor_split", "aten::hsplit", "aten::vsplit", "aten::dsplit"})  # a number of them

_READABLE = 60  # characters of a condition


def required(op: str, args: Mapping[str, Any], results: Sequence[Value], ranges: Mapping[str, Range]) -> Node | None:
    """The node that hands the operand on where the results' number and rank hold; None where they always do."""
    x = args["self"]
    if op in SQUEEZES:
        sizes = [x.type.shape[a] for a in _axes(args.get("dim"), x)]
        gone = {s for s in sizes if results[0].type.shape.count(s) < x.type.shape.count(s)}
        condition = _keeps_axes(sizes, gone, ranges)
    elif op in SECTIONS:
        condition = _are_the_pieces(op, args, results)
    else:
        axis = geometry.axis(args["dim"], x.type.rank)
        condition = _keeps_pieces(args, x.type.shape[axis], [r.type.shape[axis] for r in results], ranges)
    return _required_of(x, op, "gives as many axes or pieces as in the graph", condition, results[0].name)


def agreeing(op: str, args: Mapping[str, Any], results: Sequence[Value]) -> Node | None:
    """The node that hands the first operand on where the sizes of the others fit it; None where they always do.

    Of an op that takes numbers alone it is a check of these.
    """
    if (condition := condition_of(op, args, results)) is None:
        return None
    x = next((a for a in leaves(args.values()) if isinstance(a, Value)), None)
    if x is None:
        return checks.check(condition, f"{op.removeprefix('aten::')} takes such numbers only where {condition}")
    return _required_of(x, op, "takes operands of these sizes", condition, results[0].name)


def place(op: str, args: Mapping[str, Any], result: Value, ranges: Mapping[str, Range]) -> Node | None:
    """The node that hands on what a part is written to, where the part lies inside of it."""
    condition = _has_place(args, args["self"], ranges)
    return _required_of(args["self"], op, "writes inside of the tensor", condition, result.name)


def _required_of(x: Value, op: str, what: str, condition: Expr | None, name: str) -> Node | None:
    if condition is None:
        return None
    message = f"{op.removeprefix('aten::')} {what} only where {condition}; capture the model anew for other sizes"
    return checks.required(x, Value(f"{name}_of", x.type), condition, message)


def reading(args: Mapping[str, Any], required: Node) -> dict[str, Any]:
    """The arguments with the operand as the node hands it on, if it does."""
    if not required.outputs:
        return dict(args)
    x, handed = required.args["self"], required.outputs[0]
    return {name: map_arg(a, lambda v: handed if v is x else v) for name, a in args.items()}


def copied(
    op: str, args: Mapping[str, Any], node: FxNode, seen: Mapping[FxNode, Outcome], symbols: Symbols
) -> Node | None:
    """The node that hands the operand of `reshape` or `contiguous` on where they copy it, as they did in the example.

    At size 1 an axis may lie anywhere, and they may return a view, which writes would go through.
    """
    x = args.get("self")
    if not isinstance(x, Value):
        return None
    made, given = (seen[n].result for n in (node, node.all_input_nodes[0]))
    shape, sizes, strides = (tuple(map(symbols.convert, d)) for d in (made.shape, given.shape, given.strides))
    condition = copies_where(op, args.get("memory_format"), Place(sizes, strides), shape)
    if condition is None or condition is False:
        condition = _keeps_axes(x.type.shape, frozenset(), symbols.ranges)
    if condition is None or follows(condition, symbols.ranges):
        return None
    where = (
        f"only where {condition}" if len(str(condition)) < _READABLE else "in the example, and is a view at these sizes"
    )
    message = f"{op.removeprefix('aten::')} copies what is written to {where}; clone it in the model"
    return checks.required(x, Value(f"{node.name}_of", x.type), condition, message)


def _has_place(args: Mapping[str, Any], x: Value, ranges: Mapping[str, Range]) -> Expr | None:
    """The slice that is written lies inside: of a size that it traces from 2 on, torch takes `x[:2] = 0` as two."""
    size = x.type.shape[geometry.axis(args["dim"], x.type.rank)]
    start, step = args.get("start", args.get("index")), args.get("step", 1)
    end = args.get("end", start + 1)
    ordered = (end - step + 1, size), (0, start), (start, end)
    return checks.all_of(call("le", a, b) for a, b in ordered if may_be_positive(a - b, ranges))


def _axes(dim: Any, x: Value) -> list[int]:
    return [] if dim == () else geometry.axes(dim, x.type.rank)


def _keeps_axes(sizes: Sequence[Dim], gone: Set[Dim], ranges: Mapping[str, Range]) -> Expr | None:
    """Of the sizes, those that the graph was traced without are 1, and no others are."""
    open_ = [s for s in dict.fromkeys(sizes) if isinstance(s, Expr) and _is_open(s, s in gone, ranges)]
    return checks.all_of(call("eq" if s in gone else "ne", s, 1) for s in open_)


def _is_open(size: Expr, one: bool, ranges: Mapping[str, Range]) -> bool:
    """Whether the ranges allow another size than 1 where it was 1, and 1 where it was another."""
    return bounds(size, ranges) != (1, 1) if one else _within(size, 1, ranges)


def _keeps_pieces(
    args: Mapping[str, Any], whole: Dim, sizes: Sequence[Dim], ranges: Mapping[str, Range]
) -> Expr | None:
    """The last piece is neither empty nor larger than the first; nothing comes in as many pieces as were asked for."""
    first, last, each = sizes[0], sizes[-1], args.get("split_size")
    if not isinstance(whole, Expr) or isinstance(each, tuple):
        return None
    asked = args.get("chunks", 1)
    parts = []
    if isinstance(each, (int, Expr)) and len(sizes) == 1 and may_be_positive(whole - each, ranges):
        parts.append(call("le", whole, each))
    if _within(last, 0, ranges) and not (last == first and len(sizes) == asked):
        some = call("gt", last, 0)
        parts.append(call("or", some, call("eq", whole, 0)) if len(sizes) == asked else some)
    if (len(sizes) != asked or asked == 1) and may_be_positive(last - first, ranges):
        parts.append(call("le", last, first))
    return checks.all_of(parts)


def _are_the_pieces(op: str, args: Mapping[str, Any], results: Sequence[Value]) -> Expr | None:
    """The pieces fill the axis.

    torch.export notes the sizes that they have where as many of them are longer by one as in the example; ir's own
    shape rule of `tensor_split` notes those at all sizes, which need no condition.
    """
    x, count = args["self"], args.get("sections")
    if not isinstance(count, int) or not results:
        return None
    rank = x.type.rank
    axis = geometry.axis(args["dim"], rank) if "dim" in args else geometry.split_axis(op.removeprefix("aten::"), rank)
    whole, sizes = x.type.shape[axis], [r.type.shape[axis] for r in results]
    if op == "aten::tensor_split" and sizes == [(whole + count - 1 - i) // count for i in range(count)]:
        return None
    left = sum((s - sizes[-1] for s in sizes), 0)  # how many are longer
    return checks.all_of([call("eq", call("mod", whole, count), left)] if sum(sizes, 0) != whole else [])


def _within(size: Dim, number: int, ranges: Mapping[str, Range]) -> bool:
    """True unless the ranges keep the size above the number."""
    return bounds(size, ranges)[0] <= number


def may_do_something(op: str, x: Value) -> bool:
    """True of what does nothing to this type, and something where a size of 1 in it is one of 0 or a longer one.

    It may be the size of a slice, which is shorter at sizes that torch does not trace for.
    """
    return op in SQUEEZES or (op in MOVES and x.type.shape.count(1) > 1)


def are_open(op: str, args: Mapping[str, Any]) -> bool:
    """True where the op may have such a condition."""
    sized = op in SQUEEZES or op in PIECES or op in SECTIONS
    return sized and any(isinstance(s, Expr) for v in leaves(args["self"]) for s in v.type.shape)
