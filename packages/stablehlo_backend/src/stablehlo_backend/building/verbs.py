"""The shape verbs that handlers call: each gives one value, whatever is static and whatever is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ir import geometry
from ir.dims import Dim, Expr, call, maximum, minimum, product
from ir.helper import numpy_dtype
from ir.ops import REFUSE_SMALL
from ir.types import DType, TensorType
from stablehlo_backend.building.builder import Region
from stablehlo_backend.building.sizes import Sizes
from stablehlo_backend.building.values import HloValue, as_signed, is_fixed, is_of_sizes, spans, spelled

Pairs: TypeAlias = "tuple[Sequence[int], Sequence[int]]"  # axes of one operand, and those of the other
_END = 2**62


class Verbs(Sizes):
    """Rearranging, joining, cutting, reducing."""

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> HloValue:
        """A tensor of one number."""
        return self.broadcast(self.tensor(value, dtype), shape)

    def expand(self, x: HloValue, shape: Sequence[Dim]) -> HloValue:
        """`x` repeated along its axes of size 1 and along new leading ones."""
        return self.broadcast(x, shape)

    def broadcast(self, x: HloValue, shape: Sequence[Dim], axes: Sequence[int] | None = None) -> HloValue:
        """`x` in another shape; `axes` says where its own go, by default to the end."""
        shape = tuple(shape)
        axes = list(range(len(shape) - x.type.rank, len(shape))) if axes is None else list(axes)
        if shape == x.type.shape and axes == list(range(len(shape))):
            return x
        if x.source is not None:  # IREE joins two broadcasts to one, and forgets what is known of them
            x, inner = x.source
            axes = [axes[a] for a in inner]
        result = TensorType(x.type.dtype, shape)
        if result.is_static and x.type.is_static:
            return self.emit("broadcast_in_dim", x, broadcast_dimensions=axes, type=result)
        grows = [d == 1 and shape[a] != 1 for d, a in zip(x.type.shape, axes, strict=True)]
        made = self.emit(
            "dynamic_broadcast_in_dim", x, self.sizes_tensor(shape), broadcast_dimensions=axes, type=result,
            known_expanding_dimensions=[i for i, g in enumerate(grows) if g],
            known_nonexpanding_dimensions=[i for i, g in enumerate(grows) if not g],
        )  # fmt: skip
        return HloValue(made.name, made.type, (x, axes))

    def align(self, *operands: Any) -> list[HloValue]:
        """Operands as tensors of one element type and one shape; numbers take the type of the tensors."""
        dtype = next(x.type.dtype for x in operands if self.is_value(x))
        tensors = [x if self.is_value(x) else self.tensor(x, dtype) for x in operands]
        shape = geometry.broadcast(*(t.type.shape for t in tensors))
        if geometry.stretches([t.type.shape for t in tensors], shape):
            self.refuse(
                "its operands' sizes are equal for some values of the dynamic dimensions only; slice them first"
            )
        return [self.broadcast(t, shape) for t in tensors]

    def reshape(self, x: HloValue, shape: Sequence[Dim]) -> HloValue:
        """The same elements in another shape."""
        result = TensorType(x.type.dtype, tuple(shape))
        if result == x.type:
            return x
        if result.is_static and x.type.is_static:
            return self.emit("reshape", x, type=result)
        if isinstance(missing := product(shape) - product(x.type.shape), Expr):
            self.require(call("eq", missing, 0), f"{self._said()} gives a tensor of another number of elements")
        return self.emit("tensor.reshape", x, self.sizes_tensor(shape, "i64"), type=result)

    def retyped(self, x: HloValue, type: TensorType) -> HloValue:
        """`x` with other dimensions static; they are the same at run time."""
        return x if spelled(x.type) == spelled(type) else self.emit("tensor.cast", x, type=type)

    def typed(self, values: Sequence[HloValue], types: Sequence[TensorType]) -> list[HloValue]:
        """Values with exactly these static dimensions."""
        return [self.retyped(v, t) for v, t in zip(values, types, strict=True)]

    def transpose(self, x: HloValue, perm: Sequence[int]) -> HloValue:
        """The axes in another order."""
        if list(perm) == sorted(perm):
            return x
        shape = [x.type.shape[p] for p in perm]
        return self.emit("transpose", x, permutation=list(perm), type=x.type.with_shape(shape))

    def unsqueeze(self, x: HloValue, axes: Sequence[int]) -> HloValue:
        """Axes of size 1 put in."""
        return self.reshape(x, geometry.unsqueezed(x.type.shape, axes))

    def squeeze(self, x: HloValue, axes: Sequence[int]) -> HloValue:
        """Axes of size 1 taken out."""
        return self.reshape(x, [d for i, d in enumerate(x.type.shape) if i not in axes])

    def flat(self, x: HloValue) -> HloValue:
        """All axes as one."""
        return self.reshape(x, (product(x.type.shape),))

    def slice(
        self, x: HloValue, axis: int, start: Dim, stop: Dim = _END, step: int = 1, size: Dim | None = None
    ) -> HloValue:
        """`x[start:stop:step]` along an axis by Python's rules; `size` where it is known otherwise."""
        whole = x.type.shape[axis]
        start, stop = (_clamped(p, whole) for p in (start, stop))
        if (start, stop, step) == (0, whole, 1):
            return x
        exact = (maximum(stop - start, 0) + step - 1) // step
        size = exact if size is None or isinstance(exact, int) else size

        def along(value: Dim, others: Sequence[Dim]) -> list[Dim]:
            return [value if i == axis else d for i, d in enumerate(others)]

        result = x.type.with_shape(along(size, x.type.shape))
        nothing = [0] * x.type.rank
        bounds = along(start, nothing), along(maximum(start, stop), x.type.shape), along(step, [1] * x.type.rank)
        if x.type.is_static and result.is_static and isinstance(start, int):
            starts, limits, steps = bounds
            return self.emit("slice", x, start_indices=starts, limit_indices=limits, strides=steps, type=result)
        return self.emit("real_dynamic_slice", x, *map(self.sizes_tensor, bounds), type=result)

    def concat(self, xs: Sequence[HloValue], axis: int) -> HloValue:
        """Tensors one after the other along an axis."""
        parts = [p for p in xs if p.type.shape[axis] != 0] or list(xs[:1])
        if len(parts) == 1:
            return parts[0]
        total: Dim = sum((p.type.shape[axis] for p in parts), 0)
        shape = [total if i == axis else d for i, d in enumerate(parts[0].type.shape)]
        return self.emit("concatenate", *parts, dimension=axis, type=parts[0].type.with_shape(shape))

    def iota(self, shape: Sequence[Dim], axis: int = 0) -> HloValue:
        """0, 1, 2 ... along an axis, in int64."""
        result = TensorType(DType.int64, tuple(shape))
        if result.is_static:
            return self.emit("iota", iota_dimension=axis, type=result)
        return self.emit("dynamic_iota", self.sizes_tensor(shape), iota_dimension=axis, type=result)

    def region(
        self, types: Sequence[TensorType], body: Callable[..., Sequence[HloValue]], isolated: bool = True
    ) -> Region:
        """A region whose block has arguments of these types; `body` is called with them and gives what it returns."""

        def filled(*arguments: Any) -> list[Any]:
            return [x.name for x in body(*map(HloValue, arguments, types))]

        return Region([spelled(t) for t in types], filled, isolated)

    def scalar_region(
        self, operands: Sequence[HloValue], body: str | Callable[..., Sequence[HloValue]], times: int = 2
    ) -> Region:
        """A region over elements of the operands, so many of each: an operation or a function of them."""
        fn = body if callable(body) else lambda a, b: [self.emit(body, a, b)]
        return self.region([x.type.with_shape(()) for x in operands] * times, fn)

    def reduce(self, op: str, x: HloValue, axes: Sequence[int] | None = None, keepdim: bool = False) -> HloValue:
        """The sum, prod, max, min, any or all along axes; None is all of them."""
        axes = range(x.type.rank) if axes is None else axes
        if op in ("max", "min") and self.driver.root_node.op in REFUSE_SMALL:
            self._require_nonempty([x.type.shape[a] for a in axes])
        shape = [d for i, d in enumerate(x.type.shape) if i not in axes]
        start, body = {
            "sum": (0, "add"), "prod": (1, "multiply"), "any": (False, "or"), "all": (True, "and"),
            "max": (self.lowest(x.type.dtype), "maximum"), "min": (self.lowest(x.type.dtype, 1), "minimum"),
        }[op]  # fmt: skip
        whole, row, along = x.type.shape, x, sorted(axes)
        if not x.type.dtype.is_float and any(isinstance(whole[a], Expr) and not spans(x.name, a) for a in along):
            row, along = self._in_memory(x, along, shape), [len(shape)]
        operands, region = [row, self.tensor(start, x)], self.scalar_region([x], body)
        made = self.emit("reduce", *operands, dimensions=along, regions=[region], type=x.type.with_shape(shape))
        return self.reshape(made, [1 if i in axes else d for i, d in enumerate(whole)]) if keepdim else made

    def _in_memory(self, x: HloValue, axes: Sequence[int], kept: Sequence[Dim]) -> HloValue:
        """These axes as one behind the others: IREE does not compile a reduction along an axis that no operand has."""
        order = [*(i for i in range(x.type.rank) if i not in axes), *axes]
        shape = (*kept, product(x.type.shape[a] for a in axes))
        sizes = self.sizes_tensor(shape, "i64")  # also where they are the same, for what is reshaped is computed first
        return self.emit("tensor.reshape", self.transpose(x, order), sizes, type=x.type.with_shape(shape))

    def _require_nonempty(self, sizes: Sequence[Dim]) -> None:
        """End a run in which one of these is 0: StableHLO has an extreme of no elements, torch has none."""
        for size in sizes:
            if isinstance(size, Expr):
                self.require(call("gt", size, 0), f"{self._said()} has no elements to choose from")

    def _said(self) -> str:
        return self.driver.root_node.op.removeprefix("aten::")

    def dot(self, a: HloValue, b: HloValue, batch: Pairs, contracted: Pairs) -> HloValue:
        """The sum of products over pairs of axes: batch axes come first, then the others of `a`, then those of `b`."""
        lead = [a.type.shape[i] for i in batch[0]]
        free = [[i for i in range(x.type.rank) if i not in (*batch[k], *contracted[k])] for k, x in enumerate((a, b))]
        outer = [[x.type.shape[i] for i in f] for x, f in zip((a, b), free, strict=True)]
        shape = [*lead, *outer[0], *outer[1]]
        if any(a.type.shape[i] == 0 for i in contracted[0]):  # IREE's compiler dies of it
            return self.full(shape, 0, a.type.dtype)
        if a.type.is_static and b.type.is_static:
            return self._product(a, b, batch, contracted, shape)
        # IREE takes dynamic sizes as one batch axis, one of the sum, and one of each operand that is not 1
        front, inner = [product(lead)] if lead else [], product(a.type.shape[i] for i in contracted[0])
        left, right = (
            self.reshape(self.transpose(x, [*batch[k], *free[k], *contracted[k]]), (*front, product(outer[k]), inner))
            for k, x in enumerate((a, b))
        )
        n, rows, columns = len(front), product(outer[0]), product(outer[1])
        if 1 in (rows, columns):
            made = self.reduce("sum", self.emit("multiply", left, right), [n + 1])
        else:
            axes = (range(n), range(n)), ((n + 1,), (n + 1,))
            made = self._product(left, right, *axes, [*front, rows, columns])
        return self.reshape(made, shape)

    def _product(self, a: HloValue, b: HloValue, batch: Pairs, contracted: Pairs, shape: Sequence[Dim]) -> HloValue:
        kinds = [f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs")]
        parts = [f"{n} = {list(v)}" for n, v in zip(kinds, (*batch, *contracted), strict=True) if v]
        numbers = f"#stablehlo.dot<{', '.join(parts)}>"
        return self.emit("dot_general", a, b, dot_dimension_numbers=numbers, type=a.type.with_shape(shape))

    def compare(self, direction: str, a: Any, b: Any) -> HloValue:
        """EQ, NE, LT, LE, GT or GE of two operands."""
        a, b = self.align(a, b)
        word = f"#stablehlo<comparison_direction {direction}>"
        return self.emit("compare", a, b, comparison_direction=word, type=a.type.with_dtype(DType.bool))

    def where(self, condition: HloValue, a: Any, b: Any) -> HloValue:
        """`a` where the condition holds, else `b`."""
        a, b = self.align(a, b)
        shape = geometry.broadcast(condition.type.shape, a.type.shape)
        condition, a, b = (self.broadcast(x, shape) for x in (condition, a, b))
        return self.emit("select", condition, a, b, type=a.type)

    def isnan(self, x: HloValue) -> HloValue:
        """Whether it is no number."""
        return self.compare("NE", x, x)

    def take(self, x: HloValue, index: HloValue, axis: int = 0) -> HloValue:
        """The places of `x` along an axis by their numbers, in the shape of `index`."""
        shape = (*x.type.shape[:axis], *index.type.shape, *x.type.shape[axis + 1 :])
        return self.emit("torch_index_select", x, index, dim=axis, batch_dims=0, type=x.type.with_shape(shape))

    def in_range(self, index: HloValue, size: Dim, from_end: bool = False) -> HloValue:
        """Places along an axis of this size, as IREE reads and writes them: what lies beyond is memory of others.

        A run with one that torch refuses ends. What is written before that is in bounds as well.

        Args:
            index: what the model has computed, or was given.
            size: the size of the axis.
            from_end: whether torch counts those below 0 from the end.
        """
        index = self.cast(index, DType.int64)
        end = self.tensor(size, DType.int64)
        if from_end:
            index = self.where(self.compare("LT", index, 0), self.emit("add", index, end), index)
        if isinstance(size, int) and is_fixed(index.name):  # torch has run the model with these
            return index
        kept = self.emit("maximum", self.emit("minimum", index, self.emit("subtract", end, 1)), 0)
        inside = self.reduce("all", self.emit("and", self.compare("GE", index, 0), self.compare("LT", index, end)))
        self.require(inside, f"{self._said()} has an index that is out of range")
        return kept

    def offsets(self, first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> HloValue:
        """`first + i * strides[0] + j * strides[1] ...` in int64."""
        total = self.full(shape, first, DType.int64)
        for axis, stride in enumerate(strides):
            step = self.emit("multiply", self.iota(shape, axis), self.full(shape, stride, DType.int64), type=total.type)
            total = self.emit("add", total, step, type=total.type)
        return total

    def put(self, x: HloValue, index: HloValue, updates: HloValue, by: str = "") -> HloValue:
        """Rows written into `x` along its first axis, one for each number of the 1-d `index`."""
        if 0 in (*x.type.shape, *updates.type.shape):  # IREE's compiler dies of it
            return x
        if not x.type.is_static and is_of_sizes(x.name):
            x = self.apart(x)
        first = next((d for d in (*index.type.shape, updates.type.shape[0]) if isinstance(d, int)), index.type.shape[0])
        index, updates = (
            self.retyped(t, t.type.with_shape((first, *t.type.shape[1:]))) for t in (index, updates)
        )  # IREE wants their size static in both or in none
        region = self.scalar_region([x], by or (lambda a, b: [b]))
        numbers = (
            f"#stablehlo.scatter<update_window_dims = {list(range(1, x.type.rank))}, inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
        )
        rows = self.unsqueeze(self.cast(index, DType.int32), [1])  # IREE makes it one itself, and not always well
        return self.emit("scatter", x, rows, updates, scatter_dimension_numbers=numbers, regions=[region], type=x.type)

    def apart(self, x: HloValue) -> HloValue:
        """A copy of its own: IREE takes equal tensors for one, and lets two loops or two scatters write to it."""
        nothing = self.held(self.const(-0.0 if x.type.dtype.is_float else 0, x))  # 0.0 would change -0.0
        return self.emit("or" if x.type.dtype is DType.bool else "add", x, nothing)

    def held(self, x: HloValue) -> HloValue:
        """The same 0-d tensor, of which IREE does not know how it was made."""
        if x.type.dtype.kind == "uint":  # which IREE knows in StableHLO alone
            bits = self.held(self.emit("bitcast_convert", x, type=as_signed(x.type)))
            return self.emit("bitcast_convert", bits, type=x.type)
        return self.emit("util.optimization_barrier", x, type=x.type)

    def leading(self, x: HloValue, count: HloValue, size: Dim) -> HloValue:
        """The first elements of a 1-d tensor, as many as a 0-d one says; `size` is what their number is called."""
        if isinstance(size, int):
            self.require(self.compare("EQ", count, size), f"{self._said()} finds other than {size} elements")
            return self.slice(x, 0, 0, size)
        number = self.builder.once(("expression", size), lambda: self._whole(count))
        bounds = [self.sizes_tensor([n]) for n in (0, number, 1)]
        return self.emit("real_dynamic_slice", x, *bounds, type=x.type.with_shape([size]))

    def lowest(self, dtype: DType, sign: int = -1) -> Any:
        """The number below all others; above them with a sign of 1."""
        if dtype.is_float:
            return sign * np.inf
        if dtype is DType.bool:
            return sign > 0
        info = np.iinfo(numpy_dtype(dtype))
        return int(info.max if sign > 0 else info.min)


def _clamped(place: Dim, size: Dim) -> Dim:
    """A place in Python's counting as one between 0 and the size."""
    if isinstance(place, int) and place < 0:
        place = size + place
    if isinstance(place, int) and place >= _END:
        return size
    return place if place == 0 else minimum(maximum(place, 0), size)
