"""Reshapes in a form that tract can prove.

torch divides a size only where it has a guard that the division is exact: a view of S as (S//2, 2) holds for even S
alone. tract knows no such guard. What can be said without the division is; else the axis is cut to 2*(S/2), which is
all of it wherever torch would run at all, and where it is not, a read beyond the end of a constant stops the run. Sizes
that are alike by another fact of torch's are joined to one axis, which is cut to the product of those that are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ir import dims
from ir.bounds import bounds
from ir.dims import Dim, Expr, visit
from ir.helper import numpy_dtype
from ir.types import DType
from nnef_backend.building.hiding import maker
from nnef_backend.building.sizes import is_mixed, is_textual
from nnef_backend.building.steps import NnefValue

GUARD = "holds"  # how the names of what stops a run end


def provable(
    h: Any, x: Any, first: int, before: Sequence[Dim], after: Sequence[Dim]
) -> tuple[NnefValue, list[Dim]] | None:
    """`x`, whose axes from `first` on are `before`, and sizes for them that hold as many elements beyond doubt.

    A size may be another than the one in `after`, to which the caller cuts the axis then. None where there are none.
    """
    before, after = list(before), list(after)
    if dims.product(before) == dims.product(after):
        return x, after
    for i, size in enumerate(after):
        rest = dims.quotient(dims.product(before), dims.product(after[:i] + after[i + 1 :]))
        if isinstance(size, Expr) and rest is not None:
            return x, [*after[:i], rest, *after[i + 1 :]]
    for size, divisor in {d for s in after for d in _divisions(s)}:
        for i, whole in enumerate(before):
            if whole in (size, -size):  # rounded down, or up: -((-h)//8)
                before[i] = dims.floordiv(size, divisor) * (divisor if whole == size else -divisor)
                x = cut(h, x, first + i, whole, before[i])
    return (x, after) if dims.product(before) == dims.product(after) else None


def joined(h: Any, x: Any, first: int, before: Sequence[Dim], after: Sequence[Dim]) -> NnefValue:
    """`x` with its axes `before` as one of as many elements as `after`.

    Raises:
        RefusedError: tract's expressions have no form for one of the two numbers.
    """
    whole, kept = dims.product(before), dims.product(after)
    if not all(is_textual(n) and not (isinstance(n, Expr) and n.symbols - h.known) for n in (whole, kept)):
        h.refuse(f"tract cannot prove that {tuple(before)} holds as many elements as {tuple(after)}")
    shape = x.type.shape
    one = h.reshape(x, [*shape[:first], whole, *shape[first + len(before) :]])
    return cut(h, one, first, whole, kept)


def _divisions(size: Dim) -> Iterator[tuple[Expr, int]]:
    """What a size divides, and by what."""
    for monomial, _ in size.terms if isinstance(size, Expr) else ():
        for atom, _power in monomial:
            if isinstance(atom, dims.Call) and atom.fn == "floordiv" and isinstance(atom.args[1], int):
                yield atom.args[0], atom.args[1]  # type: ignore[misc]


def as_products(h: Any, sizes: Sequence[Dim], others: Sequence[Dim]) -> list[Any]:
    """The sizes of a reshape, those as products of the other side's that multiplied out have a quotient in a sum.

    `(2*b + 1)*(t/2)` is `2*b*(t/2) + t/2`: the quotient would be hidden in it, and not in the shape that is compared.
    """
    runs = [others[i:j] for i in range(len(others)) for j in range(i + 2, len(others) + 1)]

    def said(size: Dim) -> Any:
        if not isinstance(size, Expr) or not is_mixed(size) or size.symbols - h.known:
            return size
        run = next((r for r in runs if dims.product(r) == size), None)
        return size if run is None else h.product(run)

    return [said(s) for s in sizes]


def cut(h: Any, x: NnefValue, axis: int, size: Dim, kept: Dim) -> NnefValue:
    """`x` with an axis of `size` said to be `kept`: a run where it has more or fewer stops."""
    if h.in_loop:
        h.refuse(f"torch found that the size {size} is {kept}, and tract does not check sizes in the body of a loop")
    requirement = f"torch found that the size {size} is {kept}"
    return _where_zero(h, _requiring(h, h.slice(x, axis, 0, kept), requirement), size - kept, requirement)


def at_least(h: Any, x: NnefValue, size: Dim, least: int) -> NnefValue:
    """`x`, in runs where a size is at least so much: torch refuses to compute for a smaller one, and the run stops."""
    if not h.target.tract or bounds(size, h.graph.symbols)[0] >= least:
        return x
    if h.in_loop:
        h.refuse(
            f"torch asks that the size {size} is at least {least}, and tract does not check sizes in a loop's body"
        )
    return _where_zero(h, x, least - dims.minimum(size, least), f"torch asks that the size {size} is at least {least}")


def where_holds(h: Any, x: NnefValue, condition: Expr | NnefValue, requirement: str) -> NnefValue:
    """`x` in runs where a condition on sizes or data holds; others stop, at a place that a constant does not have."""
    taken = [value for scope, value in h.taken if scope is h.scope]  # of a branch that is not, nothing is asked
    numbers = None
    if isinstance(condition, Expr) and condition.symbols <= h.known and not taken:
        numbers = _differences(condition)
    if numbers is not None and all(map(is_textual, numbers)):
        for number in numbers:
            x = _where_zero(h, x, number, requirement)
        return x
    holds = h.reshape(h.tensor(condition, DType.bool), [])
    for value in taken:
        holds = h.emit("or", holds, h.emit("not", value))
    place = h.emit("select", holds, h.const(1, DType.int64), h.const(4, DType.int64))
    return _guarded(h, x, _read_at(h, _nothing(h, x), place, requirement), requirement)


_DIFFERENCES = {
    "eq": lambda a, b: [a - b],
    "le": lambda a, b: [dims.maximum(a - b, 0)],
    "ge": lambda a, b: [dims.maximum(b - a, 0)],
    "lt": lambda a, b: [dims.maximum(a - b + 1, 0)],
    "gt": lambda a, b: [dims.maximum(b - a + 1, 0)],
    "and": lambda a, b: [*a, *b],
}


def _differences(condition: Expr) -> list[Dim] | None:
    """Numbers that are all 0 where comparisons of sizes hold, and there alone; None of other conditions."""
    try:
        symbols = {name: dims.symbol(name) for name in condition.symbols}
        numbers: list[Dim] = dims.evaluate(condition, symbols, {**dims.EXACT, **_DIFFERENCES})
    except KeyError:  # a function of another kind
        return None
    return numbers


def _where_zero(h: Any, x: NnefValue, number: Dim, requirement: str) -> NnefValue:
    """`x` in runs where a number is 0; others stop."""
    # the constant is read at 4 * number + 1, which is in range, -2 to 1, for 0 alone
    over: Any = 4 * number
    nothing = _nothing(h, x)
    # tract rewrites minima, maxima and quotients in one bound of the two, and then misses that they are the bounds of a
    # slice of size 1
    unseen = isinstance(over, Expr) and over.symbols - h.known
    if unseen or any(_has(over, fn) for fn in ("min", "max", "floordiv")):
        guard = _read_at(h, nothing, h.tensor(over + 1, DType.int64), requirement)
    else:
        guard = h.emit("slice", nothing, axes=[0], begin=[over + 1], end=[over + 2], shape=[1], suffix=GUARD)
    return _guarded(h, x, guard, requirement)


def _nothing(h: Any, x: NnefValue) -> NnefValue:
    """What changes nothing that it is added to, behind another number: of one element tract takes any slice.

    That number is there so that no constant of the model is equal: tract merges equal ones, and -0.0 is equal to 0.0.
    """
    made: NnefValue = h.constant(np.array([86.25, -0.0]).astype(numpy_dtype(x.type.dtype)))
    return made


def _read_at(h: Any, x: NnefValue, place: NnefValue, requirement: str) -> NnefValue:
    """The element at a place that a run finds out: beyond the end an error, where a gather would end the process.

    It is the place that is read so: tract moves axes that are added behind such a slice before it, and into its bounds.
    """
    places = h.constant(np.arange(2))
    after = h.emit("add", place, h.const(1, DType.int64))
    found = h.emit("tract_core_dyn_slice", places, place, after, axis=0, len=1, shape=[1], suffix=GUARD)
    made: NnefValue = h.take(x, _requiring(h, found, requirement), 0)
    return made


def _guarded(h: Any, x: NnefValue, nothing: NnefValue, requirement: str) -> NnefValue:
    nothing = h.squeeze(_requiring(h, nothing, requirement), [0])
    made: NnefValue = h.emit("or" if x.type.dtype is DType.bool else "add", x, nothing)
    return made


def _requiring(h: Any, x: NnefValue, requirement: str) -> NnefValue:
    """`x`, made by a step that is noted to stop the run where this does not hold."""
    step = maker(h, x)
    if step is not None:
        step.requirement = step.requirement or f"{requirement}\n  at {h.node.origin}"
    return x


def settled(h: Any, x: Any, shape: Sequence[Dim]) -> Any:
    """`x` with the sizes that a guard of torch's fixes: tract knows no guards.

    Also with `n` for `max(0, n)`, where torch knows that it is not below 0, and the other way round: to tract they are
    two sizes.
    """
    if not h.target.tract or x.type.shape is None:
        return x
    for axis, size in enumerate(shape):
        made = x.type.shape[axis]
        if made == size or not isinstance(made, Expr):
            continue
        if isinstance(size, int) or _has(made, "max") is not _has(size, "max"):
            x = cut(h, x, axis, made, size)
    return x


def _has(size: Dim, function: str) -> bool:
    """True if a size has the minimum or maximum of something."""
    return isinstance(size, Expr) and bool(
        visit(size, lambda n: False, lambda s: False, lambda fn, args: fn == function or any(args))
    )
