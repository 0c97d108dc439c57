"""Loops over the first axis: tract's own operation, and what it needs to be right in other loops and over constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ir.dims import Dim, Expr, minimum, solve
from ir.types import DType, TensorType

if TYPE_CHECKING:
    from nnef_backend.building.steps import NnefValue

    # slices and states of one step -> the states after it, and what is stacked
    LoopBody = Callable[[list[NnefValue], list[NnefValue]], tuple[Sequence[NnefValue], Sequence[NnefValue]]]


def scan(
    h: Any,
    name: str,
    xs: Sequence[NnefValue],
    states: Sequence[NnefValue],
    body: LoopBody,
    reverse: bool,
) -> tuple[list[NnefValue], list[NnefValue]]:
    """See `Verbs.scan`."""
    length, step = xs[0].type.shape[0], -1 if reverse else 1
    if length == 0:
        h.refuse("tract's scan gives no final states where it runs over an axis of size 0")
    if length == 1:  # no loop: tract fails on some where every axis is one
        after, outs = body(list(xs), list(states))
        return list(after), [h.unsqueeze(o, [0]) for o in outs]
    if any(x.fixed for x in xs):
        return _over_constants(h, name, xs, states, body, reverse)
    if h.in_loop and states:
        xs, body = _restarting(h, xs, states, body, reverse)
    return _loop(h, name, xs, states, body, step)


def _loop(
    h: Any, name: str, xs: Sequence[NnefValue], states: Sequence[NnefValue], body: LoopBody, step: int
) -> tuple[list[NnefValue], list[NnefValue]]:
    """`scan` as tract's own operation."""
    length = xs[0].type.shape[0]
    types: list[TensorType] = []

    def whole(formals: list[NnefValue]) -> list[NnefValue]:
        after, outs = body(formals[: len(xs)], formals[len(xs) :])
        for before, new in zip(states, after, strict=True):
            if before.type.dtype is not new.type.dtype:
                h.refuse(f"a state of the loop changes from {before.type.dtype} to {new.type.dtype}")
        types.extend(v.type for v in (*after, *outs))
        return [*after, *(h.unsqueeze(o, [0]) for o in outs)]

    inputs = [(f"x{i}", x.type.with_shape([1, *x.type.shape[1:]])) for i, x in enumerate(xs)]
    inputs += [(f"state{i}", s.type) for i, s in enumerate(states)]
    called, fragment, captured = h.define(name, inputs, whole, loop=True)
    formals = [p.name for p in fragment.parameters]
    results = [r.name for r in fragment.results]
    count = len(states)
    carried = list(zip(formals[len(xs) :], states, results, strict=False))
    if not fragment.read.intersection(formals[: len(xs)]):
        h.refuse("no step of the loop reads the tensors that it runs over, and tract's scan needs one")
    read = fragment.read  # tract fails on a state that no step reads: what the last one makes of it is an output
    made = h.emit(
        "tract_core_scan",
        body=called,
        scan=[(f, x, 0, step) for f, x in zip(formals, xs, strict=False)],
        full=[(inner.name, outer) for outer, inner in captured] + [(f, s) for f, s, _ in carried if f not in read],
        state=[c for c in carried if c[0] in read],
        output=[(r, "last" if i < count else "full", 0, step) for i, r in enumerate(results)],
        outputs=len(results),
        dtype=[t.dtype for t in types],
        shape=[t.shape if i < count else (length, *t.shape) for i, t in enumerate(types)],
    )
    made = made if isinstance(made, list) else [made]
    return made[:count], made[count:]


def _restarting(
    h: Any, xs: Sequence[NnefValue], states: Sequence[NnefValue], body: LoopBody, reverse: bool
) -> tuple[Sequence[NnefValue], LoopBody]:
    """What a loop within another scans, and its body: where a mark says that it begins it takes the given states.

    tract begins such a loop with the states that it ended with before.
    """
    numbers = xs[0] if xs[0].type.dtype.is_float else h.cast(xs[0], DType.float32)
    never, others = h.emit("lt", numbers, numbers), list(range(1, numbers.type.rank))
    never = h.reduce("any_reduce", never, others) if others else never
    ones = h.cast(h.emit("not", never), DType.int64)  # not of the length, which tract does not know in there
    place = h.emit("tract_core_cumsum", ones, axis=0, exclusive=True, reverse=reverse)

    def restarted(slices: list[NnefValue], before: list[NnefValue]) -> Any:
        first = h.take(slices[-1], h.const(0, DType.int64), 0)
        given = [h.emit("select", first, *pair) for pair in zip(states, before, strict=True)]
        return body(slices[:-1], given)

    return [*xs, h.emit("eq", place, 0)], restarted


def _over_constants(
    h: Any, name: str, xs: Sequence[NnefValue], states: Sequence[NnefValue], body: LoopBody, reverse: bool
) -> tuple[list[NnefValue], list[NnefValue]]:
    """The loop where some of `xs` are constants, read at a place that a state more counts.

    tract puts a constant that it scans into the body as a whole, so that each step would read its first slice.
    """
    length, step = xs[0].type.shape[0], -1 if reverse else 1
    moving = [x for x in xs if not x.fixed]
    scanned = moving or [zeros_at_run_time(h, length)]

    def counted(slices: list[NnefValue], formals: list[NnefValue]) -> Any:
        place = formals[-1]
        given = iter(slices)
        after, outs = body([h.take(x, place, 0) if x.fixed else next(given) for x in xs], formals[:-1])
        following = h.emit("add", place, h.tensor(step, DType.int64))
        return [*after, following if moving else h.emit("add", following, slices[0])], outs

    start = h.expand(h.tensor(length - 1 if reverse else 0, DType.int64), [1])
    last, stacks = scan(h, name, scanned, [*states, start], counted, reverse)
    return last[:-1], stacks


def rows_with_a_symbol(h: Any, size: Dim) -> NnefValue | None:
    """[size] the numbers of all rows, whose count is a symbol to tract; None where a product in a loop knows the size.

    In a loop tract has no symbols but those that it solves the sizes of its operands for, one linear size at a time.
    What has the rows that these numbers name has that symbol in the loop.
    """
    if not isinstance(size, Expr) or any(solve(size, symbol) for symbol in size.symbols):
        return None
    places = h.nonzero(h.emit("eq", zeros_at_run_time(h, size), 0))
    return h.squeeze(places, [0])  # type: ignore[no-any-return]


def zeros_at_run_time(h: Any, length: Dim) -> NnefValue:
    """[length] zeros of i64 that tract does not fold, for it has no loop over constants alone."""
    inputs = [x for x in h.inputs if 0 not in x.type.shape]
    if not inputs:
        h.refuse("tract has no loop over constants in a model without inputs")
    corner = inputs[0]
    for axis, size in enumerate(corner.type.shape):
        corner = h.slice(corner, axis, 0, minimum(size, 1))
    number = h.reduce("sum", h.cast(corner, DType.float32))  # an input may turn out to have no elements
    zeros: NnefValue = h.expand(h.cast(h.emit("lt", number, number), DType.int64), [length])
    return zeros
