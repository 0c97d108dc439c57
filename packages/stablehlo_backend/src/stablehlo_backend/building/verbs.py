"""The shape verbs that handlers call: each gives one value, whatever is static and whatever is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir import geometry
from ir.dims import Dim, Expr, maximum, minimum, product
from ir.graph import Value
from ir.helper import numpy_dtype
from ir.types import DType, TensorType
from stablehlo_backend.building.sizes import Sizes
from stablehlo_backend.building.values import HloValue, spelled

_END = 2**62


class Verbs(Sizes):
    """Rearranging, joining, cutting, reducing."""

    def full(self, value: Any, shape: Sequence[Dim], dtype: DType) -> HloValue:
        """A tensor of one number."""
        return self.broadcast(self.tensor(value, dtype), shape)

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
        known = [1 if d == 1 and shape[a] != 1 else 0 for d, a in zip(x.type.shape, axes, strict=True)]
        made = self.emit(
            "dynamic_broadcast_in_dim", x, self.sizes_tensor(shape), broadcast_dimensions=axes, type=result,
            known_expanding_dimensions=[i for i, k in enumerate(known) if k],
            known_nonexpanding_dimensions=[i for i, k in enumerate(known) if not k],
        )  # fmt: skip
        return HloValue(made.name, made.type, (x, axes))

    def align(self, *operands: Any) -> list[HloValue]:
        """Operands as tensors of one element type and one shape; numbers take the type of the tensors."""
        dtype = next(x.type.dtype for x in operands if self.is_value(x))
        tensors = [self.tensor(x, None if self.is_value(x) else dtype) for x in operands]
        shape = geometry.broadcast(*(t.type.shape for t in tensors))
        if geometry.stretches([t.type.shape for t in tensors], shape):
            self.refuse("it takes operands together whose sizes agree at some sizes alone; cut them to one size first")
        return [self.broadcast(t, shape) for t in tensors]

    def reshape(self, x: HloValue, shape: Sequence[Dim]) -> HloValue:
        """The same elements in another shape."""
        shape = tuple(shape)
        result = TensorType(x.type.dtype, shape)
        if shape == x.type.shape:
            return x
        if result.is_static and x.type.is_static:
            return self.emit("reshape", x, type=result)
        return self.emit("tensor.reshape", x, self.sizes_tensor(shape, "i64"), type=result)

    def retyped(self, x: HloValue, type: TensorType) -> HloValue:
        """`x` with other dimensions static; they are the same at run time."""
        if spelled(x.type) == spelled(type):
            return x
        return self.emit("tensor.cast", x, type=type)

    def transpose(self, x: HloValue, permutation: Sequence[int]) -> HloValue:
        """The axes in another order."""
        if list(permutation) == sorted(permutation):
            return x
        shape = [x.type.shape[p] for p in permutation]
        return self.emit("transpose", x, permutation=list(permutation), type=x.type.with_shape(shape))

    def moved(self, x: HloValue, source: int, target: int) -> HloValue:
        """One axis in another place."""
        order = [i for i in range(x.type.rank) if i != source]
        order.insert(target, source)
        return self.transpose(x, order)

    def unsqueeze(self, x: HloValue, axis: int) -> HloValue:
        """An axis of size 1 put in."""
        shape = list(x.type.shape)
        shape.insert(axis, 1)
        return self.reshape(x, shape)

    def squeeze(self, x: HloValue, axis: int) -> HloValue:
        """An axis of size 1 taken out."""
        return self.reshape(x, [d for i, d in enumerate(x.type.shape) if i != axis])

    def cut(
        self, x: HloValue, axis: int, start: Dim, stop: Dim = _END, step: int = 1, length: Dim | None = None
    ) -> HloValue:
        """`x[start:stop:step]` along an axis by Python's rules; `length` where it is known otherwise."""
        size = x.type.shape[axis]
        start, stop = (_clamped(p, size) for p in (start, stop))
        if (start, stop, step) == (0, size, 1):
            return x
        given = maximum(stop - start, 0)
        exact = (given + step - 1) // step
        length = exact if length is None or isinstance(exact, int) else length
        shape = [length if i == axis else d for i, d in enumerate(x.type.shape)]
        if isinstance(start, int) and isinstance(stop, int) and x.type.is_static:
            places: list[list[Dim]] = [[start if i == axis else 0 for i in range(len(shape))]]
            places += [[max(start, stop) if i == axis else d for i, d in enumerate(x.type.shape)]]
            names = ("start_indices", "limit_indices", "strides")
            steps = [step if i == axis else 1 for i in range(len(shape))]
            return self.emit("slice", x, **dict(zip(names, [*places, steps])), type=x.type.with_shape(shape))
        first: list[Dim] = [start if i == axis else 0 for i in range(len(shape))]
        last: list[Dim] = [maximum(start, stop) if i == axis else d for i, d in enumerate(x.type.shape)]
        every: list[Dim] = [step if i == axis else 1 for i in range(len(shape))]
        bounds = [self.sizes_tensor(b) for b in (first, last, every)]
        return self.emit("real_dynamic_slice", x, *bounds, type=x.type.with_shape(shape))

    def window(self, x: HloValue, axis: int, start: int, length: Dim, step: int) -> HloValue:
        """`length` elements along an axis, every `step`-th from `start` on; all of them are there."""
        stop = start + (length - 1) * step + 1
        if step == 1 and length == x.type.shape[axis]:
            return x
        shape = [length if i == axis else d for i, d in enumerate(x.type.shape)]
        first, every = ([v if i == axis else u for i in range(len(shape))] for v, u in ((start, 0), (step, 1)))
        last = [stop if i == axis else d for i, d in enumerate(x.type.shape)]
        if x.type.is_static and isinstance(stop, int):
            kind = x.type.with_shape(shape)
            return self.emit("slice", x, start_indices=first, limit_indices=last, strides=every, type=kind)
        bounds = [self.sizes_tensor(b) for b in (first, last, every)]
        return self.emit("real_dynamic_slice", x, *bounds, type=x.type.with_shape(shape))

    def concat(self, parts: Sequence[HloValue], axis: int) -> HloValue:
        """Tensors one after the other along an axis."""
        parts = [p for p in parts if p.type.shape[axis] != 0] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        total: Dim = sum((p.type.shape[axis] for p in parts), 0)
        shape = [total if i == axis else d for i, d in enumerate(parts[0].type.shape)]
        return self.emit("concatenate", *parts, dimension=axis, type=parts[0].type.with_shape(shape))

    def pad(self, x: HloValue, axis: int, before: Dim, after: Dim, value: Any = 0) -> HloValue:
        """More elements at the ends of an axis; a negative number takes them away."""
        if isinstance(before, int) and before < 0:
            x, before = self.cut(x, axis, -before), 0
        if isinstance(after, int) and after < 0:
            x, after = self.cut(x, axis, 0, x.type.shape[axis] + after), 0
        shape = [d + before + after if i == axis else d for i, d in enumerate(x.type.shape)]
        if isinstance(before, int) and isinstance(after, int):
            if before == after == 0:
                return x
            ends = ([n if i == axis else 0 for i in range(x.type.rank)] for n in (before, after, 0))
            names = ("edge_padding_low", "edge_padding_high", "interior_padding")
            fill = self.tensor(value, x.type.dtype)
            return self.emit("pad", x, fill, **dict(zip(names, ends)), type=x.type.with_shape(shape))
        sides = [[n if i == axis else d for i, d in enumerate(x.type.shape)] for n in (before, after)]
        blocks = [self.full(value, side, x.type.dtype) for side in sides]
        return self.concat([blocks[0], x, blocks[1]], axis)

    def iota(self, shape: Sequence[Dim], axis: int = 0, dtype: DType = DType.int64) -> HloValue:
        """0, 1, 2 ... along an axis."""
        result = TensorType(dtype, tuple(shape))
        if result.is_static:
            return self.emit("iota", iota_dimension=axis, type=result)
        return self.emit("dynamic_iota", self.sizes_tensor(shape), iota_dimension=axis, type=result)

    def reduce(
        self,
        operands: Sequence[HloValue],
        initial: Sequence[Any],
        axes: Sequence[int],
        body: str | Callable[..., Sequence[HloValue]],
    ) -> list[HloValue]:
        """Operands taken together along axes: by an operation, or by a function of two tuples of scalars."""
        shape = [d for i, d in enumerate(operands[0].type.shape) if i not in axes]
        scalars = [TensorType(x.type.dtype, ()) for x in operands]
        fn = body if callable(body) else lambda a, b: [self.emit(body, a, b)]
        start = [self.tensor(v, x.type.dtype) for v, x in zip(initial, operands, strict=True)]
        region = self.builder.region([*scalars, *scalars], fn)
        types = [x.type.with_shape(shape) for x in operands]
        return self.emit("reduce", *operands, *start, dimensions=sorted(axes), regions=[region], type=types)

    def dot(
        self,
        a: HloValue,
        b: HloValue,
        batch: tuple[Sequence[int], Sequence[int]],
        contracted: tuple[Sequence[int], Sequence[int]],
    ) -> HloValue:
        """The sum of products over pairs of axes: batch axes come first, then the others of `a`, then those of `b`."""
        lead = [a.type.shape[i] for i in batch[0]]
        free = [[i for i in range(x.type.rank) if i not in (*batch[k], *contracted[k])] for k, x in enumerate((a, b))]
        outer = [[x.type.shape[i] for i in f] for x, f in zip((a, b), free, strict=True)]
        if any(a.type.shape[i] == 0 for i in contracted[0]):  # IREE's compiler dies of it
            return self.full(0, [*lead, *outer[0], *outer[1]], a.type.dtype)
        if a.type.is_static and b.type.is_static:
            return self._product(a, b, batch, contracted, [*lead, *outer[0], *outer[1]])
        # IREE takes dynamic sizes as one batch axis, one of the sum, and one of each operand
        inner = product(a.type.shape[i] for i in contracted[0])
        left = self.transpose(a, [*batch[0], *free[0], *contracted[0]])
        right = self.transpose(b, [*batch[1], *contracted[1], *free[1]])
        front = [product(lead)] if lead else []
        left = self.reshape(left, (*front, product(outer[0]), inner))
        right = self.reshape(right, (*front, inner, product(outer[1])))
        n = len(front)
        axes = tuple(range(n))
        made = self._product(
            left, right, (axes, axes), ((n + 1,), (n,)), [*front, left.type.shape[n], right.type.shape[n + 1]]
        )
        return self.reshape(made, (*lead, *outer[0], *outer[1]))

    def _product(self, a: HloValue, b: HloValue, batch: Any, contracted: Any, shape: Sequence[Dim]) -> HloValue:
        names = ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions",
                 "rhs_contracting_dimensions")  # fmt: skip
        parts = [f"{n} = {list(v)}" for n, v in zip(names, (*batch, *contracted), strict=True) if v]
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

    def take(self, x: HloValue, index: HloValue) -> HloValue:
        """Rows of `x` by their numbers along its first axis, in the shape of `index`."""
        shape = (*index.type.shape, *x.type.shape[1:])
        return self.emit("torch_index_select", x, index, dim=0, batch_dims=0, type=x.type.with_shape(shape))

    def put(self, x: HloValue, index: HloValue, updates: HloValue, by: str = "") -> HloValue:
        """Rows written into `x` along its first axis, one for each number of the 1-d `index`."""
        scalar = TensorType(x.type.dtype, ())
        region = self.builder.region([scalar, scalar], lambda a, b: [self.emit(by, a, b) if by else b])
        dims = ", ".join(map(str, range(1, x.type.rank)))
        numbers = (
            f"#stablehlo.scatter<update_window_dims = [{dims}], inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
        )
        rows = self.unsqueeze(self.cast(index, DType.int32), 1)  # IREE makes it one itself, and not always well
        return self.emit(
            "scatter", x, rows, updates, scatter_dimension_numbers=numbers, regions=[region], type=[x.type]
        )[0]

    def ordered(self, keys: HloValue) -> HloValue:
        """A 1-d tensor of integers in rising order."""
        scalar = TensorType(keys.type.dtype, ())
        region = self.builder.region([scalar, scalar], lambda a, b: [self.compare("LT", a, b)])
        return self.emit("sort", keys, dimension=0, is_stable=True, regions=[region], type=[keys.type])[0]

    def leading(self, x: HloValue, count: HloValue, size: Dim) -> HloValue:
        """The first elements of a 1-d tensor, as many as a 0-d one says; `size` is what their number is called."""
        number = self._whole(count)
        self.builder.once(("expression", size), lambda: number)
        name, kind = self._gathered([number], "index")
        bounds = [self.sizes_tensor([0]), (name, kind), self.sizes_tensor([1])]
        return self.emit("real_dynamic_slice", x, *bounds, type=x.type.with_shape([size]))

    def count(self, shape: Sequence[Dim]) -> Dim:
        """The number of elements."""
        return product(shape)

    def typed(self, values: Sequence[HloValue], types: Sequence[TensorType]) -> list[HloValue]:
        """Values with exactly these static dimensions."""
        return [self.retyped(v, t) for v, t in zip(values, types, strict=True)]

    def graph_reads(self, value: Value) -> bool:
        """Whether anything reads a result of the node."""
        graph = self.driver.scopes[-1]
        return value in graph.uses or value in graph.results.values()

    def flat(self, x: HloValue, first: int = 0, last: int = -1) -> HloValue:
        """Axes from `first` to `last` as one."""
        shape = x.type.shape
        last = last % len(shape) if shape else 0
        return self.reshape(x, (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :]))

    def lowest(self, dtype: DType) -> Any:
        """The number below all others."""
        return self._end(dtype, -1)

    def highest(self, dtype: DType) -> Any:
        """The number above all others."""
        return self._end(dtype, 1)

    def _end(self, dtype: DType, sign: int) -> Any:
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
    if isinstance(place, Expr) and not isinstance(size, Expr):
        return minimum(maximum(place, 0), size)
    return place if place == 0 else minimum(maximum(place, 0), size)
