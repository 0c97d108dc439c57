"""The shape verbs over `emit`, as every target has them (ir.shape_verbs). The target's own handlers call torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.steps import Slot
from ir.dims import Dim, product
from ir.geometry import unsqueezed
from ir.types import DType, TensorType


class Verbs:
    """What needs no more than `emit`."""

    emit: Any
    target: Any

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> Slot:
        """A tensor of one number, or of the number that a 0-d tensor holds."""
        type = TensorType(dtype, tuple(shape))
        if isinstance(value, Slot):
            made: Slot = self.emit(Tensor.to, value, dtype, type=value.type.with_dtype(dtype))
            return self.expand(made, shape)
        full: Slot = self.emit(torch.full, list(shape), value, dtype=dtype, device=self.target.device, type=type)
        return full

    def reshape(self, x: Slot, shape: Sequence[Dim]) -> Slot:
        """The same elements in another shape."""
        made: Slot = self.emit(Tensor.reshape, x, list(shape), type=x.type.with_shape(shape))
        return made

    def expand(self, x: Slot, shape: Sequence[Dim]) -> Slot:
        """`x` repeated along its axes of size 1 and along new leading ones."""
        made: Slot = self.emit(Tensor.expand, x, list(shape), type=x.type.with_shape(shape))
        return made

    def unsqueeze(self, x: Slot, axes: Sequence[int]) -> Slot:
        """Axes of size 1 put in."""
        return self.reshape(x, unsqueezed(x.type.shape, axes))

    def squeeze(self, x: Slot, axes: Sequence[int]) -> Slot:
        """Axes of size 1 taken out."""
        return self.reshape(x, [d for i, d in enumerate(x.type.shape) if i not in axes])

    def transpose(self, x: Slot, perm: Sequence[int]) -> Slot:
        """The axes in another order."""
        type = x.type.with_shape([x.type.shape[p] for p in perm])
        made: Slot = self.emit(Tensor.permute, x, list(perm), type=type)
        return made

    def slice(self, x: Slot, axis: int, start: Dim, stop: Dim) -> Slot:
        """`x[start:stop]` along an axis; both are in range."""
        shape = [stop - start if i == axis else d for i, d in enumerate(x.type.shape)]
        made: Slot = self.emit(torch.narrow, x, axis, start, stop - start, type=x.type.with_shape(shape))
        return made

    def concat(self, xs: Sequence[Slot], axis: int) -> Slot:
        """Tensors one after the other along an axis."""
        total: Dim = sum((x.type.shape[axis] for x in xs[1:]), xs[0].type.shape[axis])
        shape = [total if i == axis else d for i, d in enumerate(xs[0].type.shape)]
        made: Slot = self.emit(torch.cat, list(xs), axis, type=xs[0].type.with_shape(shape))
        return made

    def take(self, x: Slot, index: Slot, axis: int) -> Slot:
        """The places along an axis that `index` names."""
        before, after = x.type.shape[:axis], x.type.shape[axis + 1 :]
        places = self.reshape(index, [product(index.type.shape)])
        type = x.type.with_shape([*before, *places.type.shape, *after])
        return self.reshape(
            self.emit(torch.index_select, x, axis, places, type=type), [*before, *index.type.shape, *after]
        )

    def put(self, x: Slot, index: Slot, updates: Slot) -> Slot:
        """`x` with rows overwritten."""
        made: Slot = self.emit(torch.index_copy, x, 0, index, updates, type=x.type)
        return made

    def offsets(self, first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> Slot:
        """Where the elements of a strided tensor lie."""
        total = self.full([1] * len(shape), first, DType.int64)
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            type = TensorType(DType.int64, (size,))
            column = self.emit(torch.arange, size, dtype=torch.int64, device=self.target.device, type=type)
            column = self.emit(torch.mul, column, stride, type=type)
            column = self.reshape(column, [size if i == axis else 1 for i in range(len(shape))])
            grown = [*shape[: axis + 1], *[1] * (len(shape) - axis - 1)]
            total = self.emit(torch.add, total, column, type=TensorType(DType.int64, tuple(grown)))
        return total

    def reduce(self, op: str, x: Slot, axes: Sequence[int] | None = None, keepdim: bool = False) -> Slot:
        """The sum, prod, max or min along axes."""
        axes = list(range(x.type.rank)) if axes is None else sorted(axes)
        if op == "prod":  # torch takes one axis at a time
            for axis in reversed(axes):
                type = x.type.with_shape(_without(x.type.shape, [axis], keepdim))
                x = self.emit(torch.prod, x, axis, keepdim, dtype=x.type.dtype, type=type)
            return x
        type = x.type.with_shape(_without(x.type.shape, axes, keepdim))
        if not axes:
            return x
        more = {"dtype": x.type.dtype} if op == "sum" else {}
        fn = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op]
        made: Slot = self.emit(fn, x, axes, keepdim, **more, type=type)
        return made


def _without(shape: Sequence[Dim], axes: Sequence[int], keepdim: bool) -> list[Dim]:
    """A shape with these axes gone, or of size 1."""
    return [1 if i in axes else d for i, d in enumerate(shape) if keepdim or i not in axes]
