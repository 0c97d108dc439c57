"""Views and their inverses as nodes: by one op where one says it, else by places in memory, one for each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ir import geometry
from ir.dims import Dim
from ir.errors import CaptureError
from ir.graph import Value
from ir.importer.strided import Place, Step, between, dense_order, same_order
from ir.types import DType, TensorType

aten = torch.ops.aten
Emit = Callable[..., Value]  # (overload, type, name, arguments)
Lain = tuple[TensorType, Place, tuple[bool, bool]]  # a view: its type, its place, whether it is conjugated, negated


class Scatters:
    """Emits nodes through `emit`; `number` gives a size's value in the example, of which some are `dynamic`."""

    def __init__(self, emit: Emit, number: Callable[[Dim], int], dynamic: bool) -> None:
        self._emit = emit
        self._number = number
        self._dynamic = dynamic

    def _make(self, overload: Any, like: Value, shape: Sequence[Dim], /, **given: Any) -> Value:
        return self._emit(overload, like.type.with_shape(shape), f"{like.name}_part", given)

    # -- one step --------------------------------------------------------------------------------------------------

    def forward(self, step: Step, type: TensorType, base: Value) -> Value:
        """The view of this type that `step` makes of a value."""
        shape, args = type.shape, step.args
        match step.kind:
            case "reshape":
                return self._make(aten.reshape.default, base, shape, self=base, shape=shape)
            case "permute":
                return self._make(aten.permute.default, base, shape, self=base, dims=args)
            case "slice":
                axis, start, by = args
                end = start + shape[axis] * by
                return self._make(aten.slice.Tensor, base, shape, self=base, dim=axis, start=start, end=end, step=by)
            case "select":
                return self._make(aten.select.int, base, shape, self=base, dim=args[0], index=args[1])
            case "diagonal":
                offset, a, b = args
                return self._make(aten.diagonal.default, base, shape, self=base, offset=offset, dim1=a, dim2=b)
        return base

    def backward(self, step: Step, whole: TensorType, value: Value, base: Callable[[], Value]) -> Value:
        """`base` with the view's place in it taken by `value`."""
        shape, args = whole.shape, step.args
        match step.kind:
            case "reshape":
                return self._make(aten.reshape.default, value, shape, self=value, shape=shape)
            case "permute":
                return self._make(aten.permute.default, value, shape, self=value, dims=tuple(geometry.invert(args)))
            case "slice":
                axis, start, by = args
                end = start + value.type.shape[axis] * by
                return self._make(aten.slice_scatter.default, value, shape, self=base(), src=value, dim=axis,
                                  start=start, end=end, step=by)  # fmt: skip
            case "select":
                return self._make(aten.select_scatter.default, value, shape, self=base(), src=value, dim=args[0],
                                  index=args[1])  # fmt: skip
            case "diagonal":
                offset, a, b = args
                return self._make(aten.diagonal_scatter.default, value, shape, self=base(), src=value, offset=offset,
                                  dim1=a, dim2=b)  # fmt: skip
        return value

    def read(self, whole: Lain, part: Lain, value: Value) -> Value:
        """The part of the whole, also as another element type, or conjugated or negated alone."""
        (type, place, flags), (kind, inner, own) = whole, part
        if flags != own:
            value = self._flagged(self.read((type, place, own), part, self._flagged(value, flags)), own)
        elif type.dtype.bits != kind.dtype.bits:
            place, value = self._in_rows(type, place, value, kind.dtype)
            value = self.take(place, inner, value)
        else:
            value = value if type.dtype is kind.dtype else self._as(value, kind.dtype, type.shape)
            step = between(place, inner)
            value = self.take(place, inner, value) if step is None else self.forward(step, kind, value)
        return value

    def _flagged(self, value: Value, flags: tuple[bool, bool]) -> Value:
        """The value conjugated, negated: what lies in memory of a tensor that torch has marked so, and back."""
        for flag, overload in zip(flags, (aten.conj_physical.default, aten.neg.default), strict=True):
            value = self._make(overload, value, value.type.shape, self=value) if flag else value
        return value

    def put(
        self, whole: Lain, part: Lain, value: Value, base: Callable[[], Value], one_by_one: bool = False
    ) -> Value | None:
        """The whole with its part's place taken by `value`; None if no op does so, or only one by one."""
        (type, place, flags), (kind, inner, own) = whole, part
        value = self._flagged(value, (flags[0] != own[0], flags[1] != own[1]))
        if type.dtype is kind.dtype:
            return self._put(type, place, inner, value, base, one_by_one)
        if type.dtype.is_complex and kind.dtype is type.dtype.real:
            parts = TensorType(kind.dtype, (*type.shape, 2))
            real = lambda: self._emit(aten.view_as_real.default, parts, f"{value.name}_part", {"self": base()})  # noqa: E731
            made = self._put(parts, place.of_parts(), inner, value, real, one_by_one)
            return made and self._emit(aten.view_as_complex.default, type, f"{value.name}_part", {"self": made})
        if kind.dtype.is_complex and type.dtype is kind.dtype.real:
            parts = TensorType(type.dtype, (*kind.shape, 2))
            value = self._emit(aten.view_as_real.default, parts, f"{value.name}_part", {"self": value})
            return self._put(type, place, inner.of_parts(), value, base, one_by_one)
        if kind.dtype.bits == type.dtype.bits:
            value = self._as(value, type.dtype, kind.shape)
            return self._put(type, place, inner, value, base, one_by_one)
        order = dense_order(place, self._number)
        if not one_by_one or order is None:
            return None
        rows, other = self._in_rows(type, place, base(), kind.dtype)
        other = self.scatter(rows, inner, other, value)
        return self._unflat(self._as(other, type.dtype, (place.numel,)), place.permuted(order), order)

    def _in_rows(self, type: TensorType, place: Place, value: Value, dtype: DType) -> tuple[Place, Value]:
        """A value that lies dense, as one axis of another element type's elements, and the place of that."""
        order = dense_order(place, self._number)
        assert order is not None
        laid, count = place.permuted(order), place.numel * type.dtype.bits // dtype.bits
        rows = Place((count,), (1,), laid.offset * type.dtype.bits // dtype.bits)
        return rows, self._as(self._flat(value, order), dtype, (count,))

    def _put(
        self, type: TensorType, whole: Place, part: Place, value: Value, base: Callable[[], Value], one_by_one: bool
    ) -> Value | None:
        step = between(whole, part)
        if step == ("reshape", ()) and self._dynamic and (whole.shape, part.shape) == ((1, 1), (1,)):
            step = Step("diagonal", (0, 0, 1))  # where torch fixed a size of 1 that may be 0, no reshape has these
        if step == ("reshape", ()) and self._dynamic and (whole.shape, part.shape) == ((), (1,)):
            return self._first(value, base())
        if step is not None:
            return self.backward(step, type, value, base)
        return self.scatter(whole, part, base(), value) if one_by_one else None

    def _first(self, value: Value, base: Value) -> Value:
        """The element of `value`, or of the 0-d `base` in runs where torch's 1 is the 0 of an empty view."""
        one = self._make(aten.unsqueeze.default, base, (1,), self=base, dim=0)
        both = self._make(aten.cat.default, base, (2,), tensors=[value, one], dim=0)
        return self._make(aten.select.int, base, (), self=both, dim=0, index=0)

    def _as(self, value: Value, dtype: DType, shape: Sequence[Dim]) -> Value:
        type = TensorType(dtype, tuple(shape))
        return self._emit(aten.view.dtype, type, f"{value.name}_part", {"self": value, "dtype": dtype})

    def laid(self, value: Value, strides: Sequence[Dim], place: Place) -> Value:
        """A value that lies under these strides, laid as the place is: views behind it may need that."""
        shape = value.type.shape
        if len(strides) != len(shape) or tuple(strides) == place.strides:
            return value
        dense = dense_order(Place(shape, tuple(strides)), self._number) is not None
        if dense and same_order(strides, place.strides, shape, self._number):
            return value
        order = sorted(range(len(shape)), key=lambda i: -self._number(place.strides[i]))
        turned = order != list(range(len(shape)))
        if turned:
            value = self.forward(Step("permute", tuple(order)), value.type.with_shape([shape[i] for i in order]), value)
        value = self._make(aten.contiguous.default, value, value.type.shape, self=value)
        return self.backward(Step("permute", tuple(order)), value.type.with_shape(shape), value, lambda: value) \
            if turned else value  # fmt: skip

    # -- one by one ------------------------------------------------------------------------------------------------

    def zeros(self, type: TensorType) -> Value:
        """A tensor of zeros."""
        return self._emit(aten.zeros.default, type, "memory", {"size": type.shape, "dtype": type.dtype})

    def take(self, whole: Place, part: Place, base: Value) -> Value:
        """The elements of `base`, which lies dense, that have the places of `part`."""
        flat = self._turned(base, dense_order(whole, self._number) or ())
        return self._make(aten.take.default, base, part.shape, self=flat, index=self._indices(whole, part))

    def scatter(self, whole: Place, part: Place, base: Value, value: Value) -> Value:
        """`base`, which lies dense, with the elements at the places of `part` taken from `value`."""
        order = dense_order(whole, self._number) or ()
        turned = self._turned(base, order)
        made = self._make(aten.put.default, base, turned.type.shape, self=turned, index=self._indices(whole, part),
                          source=value, accumulate=False)  # fmt: skip
        return self._turned(made, tuple(geometry.invert(order)))

    def _turned(self, value: Value, order: tuple[int, ...]) -> Value:
        if order == tuple(range(value.type.rank)):
            return value
        shape = [value.type.shape[i] for i in order]
        return self._make(aten.permute.default, value, shape, self=value, dims=order)

    def _flat(self, value: Value, order: tuple[int, ...]) -> Value:
        turned = self._turned(value, order)
        count = Place(turned.type.shape, ()).numel
        return self._make(aten.reshape.default, turned, (count,), self=turned, shape=(count,))

    def _unflat(self, value: Value, laid: Place, order: tuple[int, ...]) -> Value:
        value = self._make(aten.reshape.default, value, laid.shape, self=value, shape=laid.shape)
        return self._turned(value, tuple(geometry.invert(order)))

    def _indices(self, whole: Place, part: Place) -> Value:
        """The places of `part` counted from the beginning of `whole`, an int64 tensor of its shape."""
        rank, integers = len(part.shape), Value("places", TensorType(DType.int64, ()))
        last = part.offset - whole.offset + sum((n - 1) * s for n, s in zip(part.shape, part.strides, strict=True))
        over = last - whole.numel
        if isinstance(over, int) and over >= 0 and 0 not in part.shape:
            what = f"reaches to element {last} of a memory of {whole.numel}, which torch leaves undefined"
            raise CaptureError(f"a view by as_strided {what}")

        def number(n: Dim, rank: int) -> Value:
            return self._make(
                aten.full.default, integers, (1,) * rank, size=(1,) * rank, fill_value=n, dtype=DType.int64
            )

        total = number(part.offset - whole.offset, rank)
        for axis, (size, stride) in enumerate(zip(part.shape, part.strides, strict=True)):
            if size == 1:
                continue
            steps = self._make(aten.arange.default, integers, (size,), end=size, dtype=DType.int64)
            if stride != 1:
                steps = self._make(aten.mul.Tensor, steps, (size,), self=steps, other=number(stride, 0))
            column = tuple(size if i == axis else 1 for i in range(rank))
            steps = self._make(aten.reshape.default, steps, column, self=steps, shape=column)
            shape = geometry.broadcast(total.type.shape, column)
            total = self._make(aten.add.Tensor, steps, shape, self=total, other=steps)
        return total
