"""Sizes that torch's kernels refuse and its shape rules take: of operands that do not agree, of what is too short.

torch.export gives each of two operands a symbol of its own; a runtime would broadcast, cut or read what is not there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from ir import geometry
from ir.bounds import Range, bounds, may_be_positive
from ir.dims import Dim, Expr, call, ceildiv, maximum, minimum
from ir.graph import Value
from ir.indexed import MASKS
from ir.ops import CONVOLUTIONS
from ir.passes.checks import all_of
from ir.types import TensorType

Args = Mapping[str, Any]
Rule = Callable[[Args, Sequence[Value]], Iterator[Expr]]  # of the arguments and the results: what holds


def condition_of(op: str, args: Args, results: Sequence[Value]) -> Expr | None:
    """The condition on sizes under which torch's kernel takes the operands; None where it always does."""
    return all_of(dict.fromkeys(RULES[op](args, results))) if op in RULES else None


def _equal(given: Sequence[Dim], wanted: Sequence[Dim]) -> Iterator[Expr]:
    return (call("eq", a, b) for a, b in zip(given, wanted, strict=False) if _may_differ(a, b))


def _may_differ(a: Dim, b: Dim) -> bool:
    """True unless the sizes are the same wherever torch traces: a size of 1 may be of a slice, and less at 0."""
    by = a - b
    return isinstance(by, Expr) and bounds(by, dict.fromkeys(by.symbols, Range(2))) != (0, 0)


def _broadcast(given: Sequence[Dim], wanted: Sequence[Dim | None]) -> Iterator[Expr]:
    """What has these sizes is broadcast to the others, those that are known."""
    for a, b in zip(reversed(given), reversed(wanted), strict=False):
        if a != 1 and b is not None and _may_differ(a, b):
            yield call("or", call("eq", a, b), call("eq", a, 1))


# -- the source of a scatter -------------------------------------------------------------------------------------------


def _select(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    shape, index = list(args["self"].type.shape), args["index"]
    size = shape.pop(geometry.axis(args["dim"], len(shape)))
    at = index + size if isinstance(index, int) and index < 0 else index
    yield from (call("le", d, 0) for d in (at + 1 - size, -at) if isinstance(d, Expr))
    yield from _equal(args["src"].type.shape, shape)


def _slice(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    shape = list(args["self"].type.shape)
    axis = geometry.axis(args["dim"], len(shape))
    start, end = (_within(args[k], shape[axis], other) for k, other in (("start", 0), ("end", shape[axis])))
    shape[axis] = ceildiv(maximum(end - start, 0), args["step"])
    yield from _equal(args["src"].type.shape, shape)


def _within(at: Dim | None, size: Dim, other: Dim) -> Dim:
    """Where a slice begins or ends, within its axis; a dynamic place is not negative."""
    if at is None:
        return other
    if isinstance(at, int) and at < 0:
        return maximum(size + at, 0)
    return at if at == 0 else minimum(at, size)


def _diagonal(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    x, offset = args["self"].type, args["offset"]
    rows, columns = (geometry.axis(args[d], x.rank) for d in ("dim1", "dim2"))
    length = maximum(minimum(x.shape[rows] - max(-offset, 0), x.shape[columns] - max(offset, 0)), 0)
    yield from _equal(args["src"].type.shape, [*_without(x, rows, columns), length])


def _without(x: TensorType, *axes: int) -> list[Dim]:
    return [d for i, d in enumerate(x.shape) if i not in axes]


def _source(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    x, source, index = (args[n].type for n in ("self", "source", "index"))
    if x.rank and source.rank == x.rank and index.rank == 1:
        axis = geometry.axis(args["dim"], x.rank)
        yield from _equal(source.shape, [*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]])


# -- an index for each element -----------------------------------------------------------------------------------------


def _elements(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """An index is no larger than what it is written from, and than what it reads or writes but along its own axis."""
    x, index = args["self"].type, args["index"].type
    source = args["src"].type.shape if isinstance(args.get("src"), Value) else index.shape
    if x.rank and index.rank == x.rank == len(source):
        axis = geometry.axis(args["dim"], x.rank)
        yield from _no_larger(index.shape, source)
        yield from _no_larger(index.shape, [*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :]])


def _no_larger(given: Sequence[Dim], most: Sequence[Dim]) -> Iterator[Expr]:
    """Each size is at most the other, unless there are no elements."""
    for axis, (a, b) in enumerate(zip(given, most, strict=True)):
        if may_be_positive(a - b, Range(0)):
            others = [d for i, d in enumerate(given) if i != axis and isinstance(d, Expr)]
            yield reduce(lambda c, d: call("or", c, call("eq", d, 0)), others, call("le", a, b))


# -- masks among indices -----------------------------------------------------------------------------------------------


def _masks(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """A mask has the sizes of the axes that it stands for; what is assigned is broadcast to what is indexed."""
    shape, at = list(args["self"].type.shape), 0
    kept: list[Dim | None] = []  # the sizes of what is indexed; None for the places that indices pick
    for index in args["indices"]:
        mask = index.type if isinstance(index, Value) and index.type.dtype in MASKS else None
        axes = 1 if mask is None else mask.rank
        if mask is not None:
            yield from _equal(mask.shape, shape[at : at + axes])
        kept += shape[at : at + axes] if index is None else [None]
        at += axes
    yield from _together(*(i.type.shape for i in args["indices"] if i is not None and i.type.dtype not in MASKS))
    picked = [i for i, d in enumerate(kept) if d is None]
    if "values" in args and len(picked) == 1 and (args["indices"][picked[0]].type.rank == 1):
        yield from _broadcast(args["values"].type.shape, [*kept, *shape[at:]])


def _mask(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    return _together(args["self"].type.shape, args["mask"].type.shape)


def _together(*shapes: Sequence[Dim]) -> Iterator[Expr]:
    """Any of them may be broadcast to the others."""
    for one, other in itertools.combinations(shapes, 2):
        for a, b in zip(reversed(one), reversed(other), strict=False):
            if 1 not in (a, b) and _may_differ(a, b):
                yield call("or", call("or", call("eq", a, b), call("eq", a, 1)), call("eq", b, 1))


# -- lengths -----------------------------------------------------------------------------------------------------------


def _window(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """Of one axis alone, torch's shape rules take a window that is longer than what it runs over."""
    names = ("kernel_size", "padding", "dilation", "stride")
    (kernel,), (padding,), (dilation,), (stride,) = (geometry.ntuple(args[n] or args["kernel_size"], 1) for n in names)
    beyond = stride - 1 if args["ceil_mode"] else 0
    size, least = args["self"].type.shape[-1], dilation * (kernel - 1) + 1 - 2 * padding - beyond
    if isinstance(size, Expr) and least > 0:
        yield call("ge", size, least)


def _images(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """A kernel of dynamic size has a place in the padded image; how small that is for a fixed one, the ranges tell."""
    kernel = args["weight"].type.shape[2:]
    if any(isinstance(k, Expr) for k in kernel) and not args.get("transposed"):
        places = results[0].type.shape[-len(kernel) :]
        yield from (call("ge", d, 1) for d in places if isinstance(d, Expr))


def _step(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    step = args.get("step", 1)
    if isinstance(step, Expr):
        yield call("ne", step, 0)


def _narrow(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """The part lies within the axis; a start that is a size counts from the front."""
    x, start = args["self"].type, args["start"]
    if isinstance(start, Value):
        return
    size = x.shape[geometry.axis(args["dim"], x.rank)]
    start = start + size if isinstance(start, int) and start < 0 else start
    for over in (start + args["length"] - size, -start):
        if may_be_positive(over, Range(2)):
            yield call("le", over, 0)


# -- terms and keys ----------------------------------------------------------------------------------------------------


def _term(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    """A term of weight 0 is left out by the shape rules; the kernels broadcast it."""
    if args["beta"] == 0:
        yield from _broadcast(args["self"].type.shape, results[0].type.shape)


def _keys(args: Args, results: Sequence[Value]) -> Iterator[Expr]:
    return _equal(args["value"].type.shape[-2:-1], args["key"].type.shape[-2:-1])


def _rules(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys([f"aten::{n}" for n in names], rule)


RULES: Mapping[str, Rule] = {
    **_rules(_select, "select_scatter"),
    **_rules(_slice, "slice_scatter"),
    **_rules(_diagonal, "diagonal_scatter"),
    **_rules(_source, "index_add", "index_copy", "index_reduce"),
    **_rules(_elements, "gather", "scatter", "scatter_add", "scatter_reduce"),
    **_rules(_masks, "index", "index_put", "_unsafe_index", "_unsafe_index_put"),
    **_rules(_mask, "masked_select", "masked_scatter"),
    **_rules(_narrow, "narrow", "narrow_copy"),
    **_rules(_window, "max_pool1d", "max_pool1d_with_indices"),
    **dict.fromkeys([c for c in CONVOLUTIONS if "transpose" not in c], _images),
    **_rules(_step, "arange"),
    **_rules(_term, "addmm", "addmv", "addbmm", "baddbmm", "addr"),
    **_rules(_keys, "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
}
