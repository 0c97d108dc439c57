"""What handlers say on top of `emit`: shapes, slices, ranges and the arithmetic that tract lacks."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.dims import Dim, Expr, is_static, product
from ir.geometry import unsqueezed
from ir.helper import OpHelper
from ir.passes.promote import promote_types
from ir.shape_verbs import known_offsets
from ir.types import DType, TensorType
from nnef_backend.building import batches, loops
from nnef_backend.building.hiding import apart, repeated_number, uncut
from nnef_backend.building.operators import OPERATORS
from nnef_backend.building.reshaping import as_products, cut, joined, provable

if TYPE_CHECKING:
    from nnef_backend.building.loops import LoopBody
    from nnef_backend.building.steps import NnefValue

_REDUCTIONS = {
    "sum": "sum_reduce", "prod": "tract_core_product_reduce", "max": "max_reduce", "min": "min_reduce"
}  # fmt: skip


class Verbs(OpHelper["NnefValue"]):
    """The verbs that need no more than `emit`, `constant` and `size`."""

    target: Any
    known: set[str]  # the symbols of the inputs' sizes
    inputs: list[NnefValue]

    @property
    @abc.abstractmethod
    def in_loop(self) -> bool:
        """True in the body of a loop."""

    @abc.abstractmethod
    def has(self, op: str) -> bool:
        """True if the target has an operation."""

    @abc.abstractmethod
    def content(self, x: NnefValue) -> np.ndarray | None:
        """What a constant or a weight holds; None where that is not known."""

    @abc.abstractmethod
    def source(self, x: NnefValue) -> Callable[[], np.ndarray] | None:
        """What computes a weight when the document is written; None for what is none."""

    @abc.abstractmethod
    def variable(self, name: str, type: TensorType, source: Any) -> NnefValue:
        """A tensor file of the document; `source` is its content, or computes it."""

    @abc.abstractmethod
    def define(self, name: str, inputs: Any, make: Any, loop: bool = False) -> Any:
        """A fragment of the document: its name, the fragment, and the values that it reads from outside."""

    @abc.abstractmethod
    def counted(self, x: Any) -> frozenset[str]:
        """The document's symbols in these dimensions that data decides."""

    def way_out(self, dtype: DType) -> str:
        """What to do where tract has no kernel of this type."""
        wide = dtype is DType.float64 and self.target.tract
        return "; compute in float32 in the model, or allow that with allow_narrowing=True" if wide else ""

    def may_be_nothing(self, size: Expr) -> bool:
        """Whether a size can be 0, as far as the ranges of its symbols tell."""
        ranges = [self.graph.symbols.get(s) for s in size.symbols]
        return size.as_symbol is None or any(r is None or not r.min for r in ranges)

    # -- verbs of shape --------------------------------------------------------------------------------------------

    def align(self, *xs: NnefValue) -> list[NnefValue]:
        """The values with leading axes of size 1 put in until all have one rank: NNEF aligns shapes on the left.

        Numbers (rank 0) stay as they are.
        """
        rank = max(x.type.rank for x in xs)
        return [self.unsqueeze(x, list(range(rank - x.type.rank))) if x.type.rank else x for x in xs]

    def unsqueeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """`x` with axes of size 1 put in; the axes count in the result and are not negative."""
        if not axes:
            return x
        if x.array is not None:
            return self.constant(np.expand_dims(x.array, tuple(axes)))
        shape = unsqueezed(x.type.shape, axes)
        if (number := repeated_number(self, x)) is not None:
            return self.expand(number, shape)
        return self.emit("unsqueeze", x, axes=list(axes), shape=shape)

    def squeeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """`x` without these axes of size 1, wherever the graph holds."""
        for a in axes:
            x = x if x.type.shape[a] == 1 else cut(self, x, a, x.type.shape[a], 1)
        if not axes:
            return x
        shape = [s for i, s in enumerate(x.type.shape) if i not in axes]
        if (number := repeated_number(self, x)) is not None:
            return self.expand(number, shape)
        return self.emit("squeeze", x, axes=list(axes), shape=shape)

    def transpose(self, x: NnefValue, perm: Sequence[int]) -> NnefValue:
        """`x` with its axes permuted."""
        return batches.permute(self, x, perm)

    def reshape(self, x: NnefValue, shape: Sequence[Dim]) -> NnefValue:
        """`x` in another shape.

        Axes that both shapes share stay out of it: tract accepts only what it can prove, and proves less than we do.
        """
        old, new = x.type.shape, tuple(shape)
        if old == new:
            return x
        if x.array is not None and is_static(new):
            return self.constant(x.array.reshape(new))
        if 0 in old or 0 in new:  # a 0 in tract's `shape` copies an extent, and there is nothing to move
            return self.expand(self.const(0, x.type.dtype), new)
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        rest = min(len(old), len(new)) - first
        last = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
        before, after = old[first : len(old) - last], new[first : len(new) - last]
        if not before:
            return self.unsqueeze(x, list(range(first, first + len(after))))
        if not after:
            return self.squeeze(x, list(range(first, first + len(before))))
        part: dict[str, Any] = {} if len(before) == len(old) else {"axis_start": first, "axis_count": len(before)}
        proven = provable(self, x, first, before, after)
        if proven is None:
            return self.reshape(joined(self, x, first, before, after), new)
        x, sizes = proven
        stated = [*new[:first], *sizes, *new[first + len(after) :]]
        made: NnefValue = self.emit("reshape", x, shape_=as_products(self, sizes, before), shape=stated, **part)
        for axis, size in enumerate(new):  # equal where torch runs, but tract does not know
            made = made if stated[axis] == size else cut(self, made, axis, stated[axis], size)
        return made

    def slice(self, x: NnefValue, axis: int, start: Dim, stop: Dim) -> NnefValue:
        """`x[start:stop]` along an axis; both are in range and count from the front.

        Of equal elements any are as good: tract takes slices apart, and fails where the parts come out alike ("eval()
        called on a Dummy op").
        """
        if start == 0 and stop == x.type.shape[axis]:
            return x
        shape = [stop - start if i == axis else s for i, s in enumerate(x.type.shape)]
        if (number := repeated_number(self, x)) is not None:
            return self.expand(number, shape)
        if axis in x.alike and isinstance(start, int) and isinstance(stop, int):
            start, stop = 0, stop - start
            whole, axes = uncut(self, x, axis)
            if whole is not x:
                return self.unsqueeze(self.slice(whole, axis - sum(a < axis for a in axes), start, stop), axes)
        if isinstance(start, Expr) and stop - start == 1 and start.symbols - self.known:
            return self.take(x, self.unsqueeze(self.scalar(start, DType.int64), [0]), axis)  # a place that data names
        if x.type.shape[axis] == 1 and stop != start:  # all or nothing: to tract, which moves it over unsqueeze, all
            return self.take(x, self.range(start, stop, 1, stop - start), axis)
        return self.emit("slice", x, axes=[axis], begin=[start], end=[stop], shape=shape)

    def concat(self, xs: Sequence[NnefValue], axis: int) -> NnefValue:
        """The values one after the other along an axis."""
        xs = [x for x in xs if x.type.shape[axis] != 0] or xs[:1]
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].type.shape)
        xs = [self._of_sizes(x, shape, axis) for x in xs]
        shape[axis] = sum((x.type.shape[axis] for x in xs[1:]), start=shape[axis])
        return self.emit("concat", apart(self, xs), axis=axis, shape=shape)

    def _of_sizes(self, x: NnefValue, shape: Sequence[Dim], axis: int) -> NnefValue:
        """`x` with sizes that are equal to its own by a condition of the graph's, which tract does not know."""
        for a, (own, wanted) in enumerate(zip(x.type.shape, shape, strict=True)):
            if a != axis and own != wanted:
                x = self.slice(x, a, 0, wanted)
        return x

    def expand(self, x: NnefValue, shape: Sequence[Dim]) -> NnefValue:
        """`x` repeated along its axes of size 1, and along new leading ones, to fill `shape`."""
        if x.type.shape == tuple(shape):
            return x
        new = len(shape) - x.type.rank
        if tuple(shape) == (*[1] * new, *x.type.shape):
            return self.unsqueeze(x, list(range(new)))
        if not self.has("tract_core_broadcast"):  # the standard repeats whole axes
            x = self.unsqueeze(x, list(range(len(shape) - x.type.rank)))
            repeats = [1 if a == b else b for a, b in zip(x.type.shape, shape, strict=True)]
            return self.emit("tile", x, repeats=repeats, shape=shape)
        if new and x.type.rank and x.array is None:  # tract moves axes put in behind it to the front, and miscounts
            x = self.unsqueeze(x, list(range(new)))
        return self.emit("tract_core_broadcast", x, shape_=list(shape), shape=shape)

    def take(self, x: NnefValue, index: NnefValue, axis: int) -> NnefValue:
        """`x` at the places along an axis that an integer tensor names."""
        if x.type.shape[axis] == 1 and index.type.shape == (1,) and not x.packed:
            return x
        shape = (*x.type.shape[:axis], *index.type.shape, *x.type.shape[axis + 1 :])
        if not self.has("tract_core_gather"):
            return self._taken(x, index, axis, shape)
        stored = x.type.dtype if x.packed else None  # a gather of 4-bit blocks says what it makes of them
        return self.emit("tract_core_gather", x, index, axis=axis, datum_type=stored, shape=shape)

    def _taken(self, x: NnefValue, index: NnefValue, axis: int, shape: Sequence[Dim]) -> NnefValue:
        """Places that are known now: of a weight, which is a weight of its own then, or slices side by side."""
        places, source, size = self.content(index), self.source(x), x.type.shape[axis]
        if places is None or (source is None and isinstance(size, Expr)):
            lacks = self.target.lacks(OPERATORS["tract_core_gather"])
            self.refuse(f"it needs tract_core_gather: {lacks}")
        if source is not None:
            return self.variable(
                f"{x.name}_taken", TensorType(x.type.dtype, tuple(shape)), lambda: np.take(source(), places, axis)
            )
        flat = places.reshape(-1) % size
        runs = np.split(flat, np.flatnonzero(np.diff(flat) != 1) + 1)
        parts = [self.slice(x, axis, int(r[0]), int(r[-1]) + 1) for r in runs if len(r)]
        return self.reshape(self.concat(parts, axis), shape)

    def range(self, begin: Dim, end: Dim, step: int, count: Dim) -> NnefValue:
        """The integers from `begin` towards `end`, `count` of them; good as an index, for numbers cast the bounds."""
        if self.counted((begin, end)):
            first = self.scalar(begin, DType.int64)
            return self.emit("add", self.emit("mul", self.positions(count), step), first)
        if abs(step) != 1 and isinstance(count, Expr):  # tract counts them anew, and proves no size equal to its own
            return self.progression(begin, step, count)
        return self.emit("tract_core_range", begin, end, step, dtype=DType.int64, shape=[count])

    def floor_division(self, a: NnefValue, b: NnefValue) -> tuple[NnefValue, NnefValue]:
        """(a // b, a % b) rounded down as Python's, on integers; tract's division is cut off at the point."""
        q = self.emit("div", a, b)
        r = self.emit("sub", a, self.emit("mul", q, b))
        if a.type.dtype.kind == "uint":
            return q, r
        below = self.emit("tract_core_xor", self.emit("lt", r, 0), self.emit("lt", b, 0))
        one = self.cast(self.emit("and", self.emit("ne", r, 0), below), a.type.dtype)
        return self.emit("sub", q, one), self.emit("add", r, self.emit("mul", b, one))

    def reduce(
        self, op: str, x: NnefValue, axes: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> NnefValue:
        """A reduction, or the sum, prod, max or min, over axes, all for None or none; they stay only with `keepdim`."""
        op = _REDUCTIONS.get(op, op)
        if x.type.rank == 0:
            return self._unreduced(op, x)
        axes = sorted(self.axes(axes, x))
        if op in _REDUCTIONS.values() and all(x.type.shape[a] == 1 for a in axes):
            # so it is to tract, which then finds a sum and a mean of one number equal, and fails to merge them
            return x if keepdim else self.squeeze(x, axes)
        if op == "sum_reduce" and x.type.dtype is DType.int64 and axes:
            return self._long_sum(x, axes, keepdim)
        if op in ("sum_reduce", "mean_reduce") and self.counted([x.type.shape[a] for a in axes]):
            made = self._sum_of_some(op, x, axes)
        else:
            made = self.emit(op, x, axes=axes)
        return made if keepdim else self.squeeze(made, axes)

    def _sum_of_some(self, op: str, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """A sum or mean of what may be nothing, where tract's own divides by its size: a zero is added."""
        y = self.floating(x)
        for a in axes:
            zero = self.const(0, y.type.dtype)
            y = self.concat([y, self.expand(zero, [1 if i == a else s for i, s in enumerate(y.type.shape)])], a)
        total = self.emit("sum_reduce", y, axes=axes)
        if op == "mean_reduce":
            total = self.emit("div", total, self.scalar(product([x.type.shape[a] for a in axes]), y.type.dtype))
        return self.cast(total, x.type.dtype)

    def _long_sum(self, x: NnefValue, axes: Sequence[int], keepdim: bool) -> NnefValue:
        """A sum of i64, which tract's sum_reduce adds up in 32 bits."""
        letters = "abcdefghijklmnopqrstuvwxyz"[: x.type.rank]
        kept = [i for i in range(x.type.rank) if i not in axes]
        shape = [x.type.shape[i] for i in kept]
        made = self.contract([x], [letters], "".join(letters[i] for i in kept), shape)
        return self.unsqueeze(made, list(axes)) if keepdim else made

    def contract(self, xs: Sequence[NnefValue], terms: Sequence[str], result: str, shape: Sequence[Dim]) -> NnefValue:
        """An einsum; where one operand is summed up to nothing, tract would hand it on as it is."""
        acc = xs[0].type.dtype
        if len(xs) == 1 and not result:
            more = self.unsqueeze(xs[0], [0])
            return self.squeeze(self.contract([more], [f"Z{terms[0]}"], "Z", [1]), [0])
        if len(xs) == 2 and not result and self.target.tract and set(terms[0]) == set(terms[1]):
            # tract merges the axes that both were reshaped from, and then misses one of the result's
            y = self.transpose(xs[1], [terms[1].index(c) for c in terms[0]])
            made = self.reduce("sum_reduce", self.emit("mul", self.floating(xs[0]), self.floating(y)), None)
            return self.cast(made, acc)
        joined = "".join(terms)
        last = len(result) - len(result.rstrip("".join(c for c in result if joined.count(c) > 1)))
        if 0 < last < len(result) - 1 and batches.writes_batch_last(shape[-last:]):
            order = [*range(len(result) - last, len(result)), *range(len(result) - last)]
            made = self.contract(xs, terms, "".join(result[i] for i in order), [shape[i] for i in order])
            return self.transpose(made, [order.index(i) for i in range(len(result))])
        return self.emit("tract_core_einsum", list(xs), expr=f"{','.join(terms)}->{result}", acc=acc, shape=shape)

    def _unreduced(self, op: str, x: NnefValue) -> NnefValue:
        """A reduction of a 0-d tensor, which has no axis."""
        return self.reduce(op, self.unsqueeze(x, [0]), 0)

    def floating(self, x: NnefValue) -> NnefValue:
        """`x` as what torch computes with: halves in f32, all else as it is."""
        return self.cast(x, DType.float32) if x.type.dtype is DType.float16 else x

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> NnefValue:
        """A tensor of one number."""
        return self.expand(self.tensor(value, dtype), shape)

    def is_nan(self, x: NnefValue) -> NnefValue:
        """True where a float is NaN."""
        if x.type.dtype is not DType.float64 and self.has("tract_core_is_nan"):
            return self.emit("tract_core_is_nan", x)
        return self.emit("ne", x, x)

    def extreme(self, op: str, x: NnefValue, y: NnefValue) -> NnefValue:
        """`max` or `min` as torch's: tract's drop NaN."""
        return self.with_nan_of(self.emit(op, x, y), y, x)

    def with_nan_of(self, made: NnefValue, *xs: NnefValue) -> NnefValue:
        """`made`, but NaN where one of `xs` is."""
        for x in xs:
            if x.type.dtype.is_float and (x.array is None or np.isnan(x.array).any()):
                made = self.emit("select", self.is_nan(x), x, made)
        return made

    def positions(self, count: Dim) -> NnefValue:
        """0, 1, .. count - 1 as i64 numbers.

        Not by a range: its numbers are dimensions to tract, which come out wrong where two of them are compared.
        """
        if not isinstance(count, Expr):
            return self.constant(np.arange(count))
        ones = self.expand(self.tensor(1, DType.int64), [count])
        return self.emit("tract_core_cumsum", ones, axis=0, exclusive=True, reverse=False)

    def progression(self, first: Dim, step: Dim, count: Dim) -> NnefValue:
        """`count` numbers in i64, `step` apart, from `first` on."""
        if is_static(known := (first, step, count)):
            return self.constant(known[0] + known[1] * np.arange(known[2]))
        steps = self.emit("mul", self.positions(count), self.tensor(step, DType.int64))
        return self.emit("add", steps, self.tensor(first, DType.int64))

    def put(self, x: NnefValue, index: NnefValue, updates: NnefValue) -> NnefValue:
        """`x` with rows along its first axis overwritten."""
        return self.emit("tract_core_scatter_nd", x, self.unsqueeze(index, [1]), updates, reduction="none")

    def offsets(self, first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> NnefValue:
        """`first + i * strides[0] + j * strides[1] ...` in i64; a constant where all is static and it is small."""
        known = known_offsets(first, strides, shape)
        if known is not None:
            return self.constant(known)
        total = self.tensor(first, DType.int64)
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            column = self.progression(0 if axis else first, stride, size)
            column = self.unsqueeze(column, [i for i in range(len(shape)) if i != axis])
            total = self.emit("add", total, column) if axis else column
        return total

    def together(self, x: NnefValue, y: NnefValue) -> tuple[NnefValue, NnefValue]:
        """Two values in the element type that torch compares them in."""
        dtype = promote_types(x.type.dtype, y.type.dtype)
        return self.cast(x, dtype), self.cast(y, dtype)

    def scan(
        self,
        name: str,
        xs: Sequence[NnefValue],
        states: Sequence[NnefValue],
        body: LoopBody,
        *,
        reverse: bool = False,
    ) -> tuple[list[NnefValue], list[NnefValue]]:
        """A loop over the first axis: `body(slices of xs, states)` gives the new states and what is stacked.

        The slices keep the axis, with size 1. Returns the last states and the stacks, whose order is that of `xs` also
        where the loop runs backwards.
        """
        return loops.scan(self, name, xs, states, body, reverse)
