"""The verbs over `emit` that many handlers speak: shapes, and ops whose form depends on the opset."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir import dims as d
from ir.dims import Dim, Expr
from ir.geometry import unsqueezed
from ir.shape_verbs import known_offsets
from ir.types import DType, TensorType
from onnx_backend.building.kernels import work_type
from onnx_backend.building.schema import op_schema
from onnx_backend.building.sizes import Sizes
from onnx_backend.building.values import OnnxValue
from onnx_backend.building.wide_integers import extreme


class Verbs(Sizes):
    """Everything here is said with `emit`, `sizes` and constants."""

    @abc.abstractmethod
    def graph_of(self, name: str, formals: Sequence[OnnxValue], results: Callable[..., Sequence[OnnxValue]]) -> Any:
        """A sub-graph attribute written by a function of its formal inputs."""

    @abc.abstractmethod
    def formal(self, name: str, type: Any) -> OnnxValue:
        """A formal input of a sub-graph or function."""

    # -- verbs of shape --------------------------------------------------------------------------------------------

    def reshape(self, x: OnnxValue, shape: Sequence[Dim]) -> OnnxValue:
        """`x` in another shape; what stays in place is copied by ONNX, one dimension of the rest is left to it."""
        shape = tuple(shape)
        if x.type.shape == shape:
            return x
        if x.array is not None and d.is_static(shape):
            return self.constant(x.array.reshape(shape))
        if 0 in shape:  # where ONNX reads 0 as "copy"; there is nothing to reshape
            return self.full(shape, 0, x.type.dtype)
        dims = _reshape_dims(x.type.shape, shape)
        if x.before is not None and x.made_by("Reshape") is not None:
            if x.before.type.shape == shape:
                return x.before
            direct = _reshape_dims(x.before.type.shape, shape)
            if sum(isinstance(s, Expr) for s in direct) <= sum(isinstance(s, Expr) for s in dims):
                x, dims = x.before, direct
        if -1 in dims and any(isinstance(s, Expr) or s == 0 for s in dims):
            # where a dimension beside the -1 is 0 at run time, nothing tells what the -1 is
            axis = _flatten_axis(x.type.shape, shape)
            if axis is not None:
                return self.emit("Flatten", x, axis=axis, shape=shape)
            # at opset 13 a 0 takes what stands in its place, which is a 0 where the axis was there before
            if self.opset < 14:
                return self.emit("Reshape", x, self.lengths(shape), shape=shape)
            return self.emit("Reshape", x, self.lengths(shape), allowzero=1, shape=shape)
        made = self.emit("Reshape", x, self.lengths(dims), shape=shape)
        made.before = x
        return made

    def unsqueeze(self, x: OnnxValue, axes: Sequence[int]) -> OnnxValue:
        """`x` with axes of size 1 put in; the axes count in the result and are not negative."""
        if not axes:
            return x
        if x.array is not None:
            return self.constant(np.expand_dims(x.array, tuple(axes)))
        return self.emit("Unsqueeze", x, list(axes), shape=unsqueezed(x.type.shape, axes))

    def squeeze(self, x: OnnxValue, axes: Sequence[int]) -> OnnxValue:
        """`x` without these axes of size 1."""
        if not axes:
            return x
        if x.array is not None:
            return self.constant(np.squeeze(x.array, tuple(axes)))
        shape = [s for i, s in enumerate(x.type.shape) if i not in axes]
        return self.emit("Squeeze", x, list(axes), shape=shape)

    def transpose(self, x: OnnxValue, perm: Sequence[int]) -> OnnxValue:
        """`x` with its axes permuted; of two permutations in a row one is left."""
        perm = list(perm)
        earlier = x.made_by("Transpose")
        if x.before is not None and earlier is not None:
            first = earlier.attributes["perm"].as_ints()
            x, perm = x.before, [first[p] for p in perm]
        if perm == list(range(len(perm))):
            return x
        made = self.emit("Transpose", x, perm=perm)
        made.before = x
        return made

    def along(self, x: OnnxValue, rank: int, axis: int) -> OnnxValue:
        """A vector as a tensor of this rank, its axis put at `axis` and all others of size 1."""
        return self.unsqueeze(x, [i for i in range(rank) if i != axis])

    def expand(self, x: OnnxValue, shape: Sequence[Dim]) -> OnnxValue:
        """`x` broadcast to a shape."""
        shape = tuple(shape)
        if x.type.shape == shape:
            return x
        if 0 in shape:  # onnxruntime takes an Expand of a computed tensor to a constant 0 for one that does nothing
            return self.full(shape, 0, x.type.dtype)
        own = (None,) * (len(shape) - x.type.rank) + x.type.shape
        dims = [1 if s == t else t for s, t in zip(own, shape, strict=True)]  # what has its size needs none
        return self.emit("Expand", x, self.lengths(dims), shape=shape)

    def slice(
        self, x: OnnxValue, axis: int, start: Any, stop: Any, step: int = 1, size: Dim | None = None
    ) -> OnnxValue:
        """`x[start:stop:step]` along one axis; bounds are ints, dimensions or int64 tensors of shape [1].

        `size` is that of the result, where the bounds may lie outside of the axis or are tensors.
        """
        if size is None and step == 1 and all(_is_place(b) for b in (start, stop)):
            size = stop - start
        shape = None if size is None else [*x.type.shape[:axis], size, *x.type.shape[axis + 1 :]]
        bounds = [b if isinstance(b, OnnxValue) else self.size(b) for b in (start, stop)]
        return self.emit("Slice", x, *bounds, [axis], [step], shape=shape)

    def filled(self, x: OnnxValue, axis: int, value: Any = 0) -> OnnxValue:
        """`x`, with one element put in along an axis where that is empty at run time; `cut` takes it off again."""
        size = x.type.shape[axis]
        if not self.may_be_empty(size):
            return x
        full = d.maximum(size, 1)
        ends = [full - self.length(size) if i == axis else 0 for i in range(x.type.rank)]
        shape = [*x.type.shape[:axis], full, *x.type.shape[axis + 1 :]]
        return self.emit("Pad", x, [*[0] * x.type.rank, *ends], self.const(value, x) if value else None, shape=shape)

    def cut(self, x: OnnxValue, axis: int, size: Dim) -> OnnxValue:
        """The first `size` elements along an axis."""
        return x if x.type.shape[axis] == size else self.slice(x, axis, 0, self.length(size), size=size)

    def concat(self, xs: Sequence[OnnxValue], axis: int) -> OnnxValue:
        """Values joined along an axis."""
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].type.shape)
        shape[axis] = sum((x.type.shape[axis] for x in xs[1:]), shape[axis])
        return self.emit("Concat", *xs, axis=axis, shape=shape)

    def take(self, x: OnnxValue, index: OnnxValue, axis: int) -> OnnxValue:
        """`x` at the places along an axis that an integer tensor names."""
        return self.emit("Gather", x, index, axis=axis)

    def put(self, x: OnnxValue, index: OnnxValue, updates: OnnxValue) -> OnnxValue:
        """`x` with rows along its first axis overwritten."""
        return self.emit("ScatterND", x, self.unsqueeze(index, [1]), updates, shape=x.type.shape)

    def offsets(self, first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> OnnxValue:
        """`first + i * strides[0] + j * strides[1] ...` in int64; a constant where all is static and it is small."""
        known = known_offsets(first, strides, shape)
        if known is not None:
            return self.constant(known)
        total = self.tensor(first, DType.int64)
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            begin = 0 if axis else first
            column = self.full([size], begin, DType.int64) if stride == 0 else self.steps(size, stride, begin)
            column = self.along(column, len(shape), axis)
            total = self.emit("Add", total, column) if axis else column
        return total

    # -- verbs of several opsets -----------------------------------------------------------------------------------

    def reduce(
        self, op: str, x: OnnxValue, axes: Sequence[int] | None = None, keepdim: bool = False, from_end: bool = False
    ) -> OnnxValue:
        """A Reduce op, or the sum, prod, max or min; axes (None for all) are not negative.

        They are an attribute or an input, by op and opset.

        With `from_end` the last axes are written from the end: so onnxruntime's fusions know them where it has lost the
        rank. Only for what it does fuse, since its own kernels (1.31) give an empty tensor a wrong shape then.
        """
        op = f"Reduce{op.capitalize()}" if op.islower() else op
        axes = list(range(x.type.rank)) if axes is None else list(axes)
        shape = [1 if i in axes else s for i, s in enumerate(x.type.shape) if keepdim or i not in axes]
        if from_end and sorted(axes) == list(range(x.type.rank - len(axes), x.type.rank)):
            axes = [a - x.type.rank for a in axes]
        schema = op_schema(op, self.opset)
        assert schema is not None
        if op == "ReduceMean" and any(x.type.shape[a] == 0 for a in axes):
            return self.full(shape, math.nan, x.type.dtype)  # onnxruntime gives 0
        if op in ("ReduceMax", "ReduceMin") and axes and self.is_wide(op, x):
            return extreme(self, op, x, axes, shape)
        if len(axes) == x.type.rank:  # the default, at every opset
            return self.emit(op, x, keepdims=keepdim, shape=shape)
        if not axes:
            return self.emit(op, x, [], noop_with_empty_axes=1, shape=shape) if "axes" not in schema.attributes else x
        if "axes" in schema.attributes:
            return self.emit(op, x, axes=axes, keepdims=keepdim, shape=shape)
        return self.emit(op, x, axes, keepdims=keepdim, shape=shape)

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> OnnxValue:
        """A tensor of one repeated number: a constant where it is small, else made at run time."""
        shape = tuple(shape)
        count = d.product(shape)
        if isinstance(value, OnnxValue | Expr):
            return self.expand(self.tensor(value, dtype), shape)
        if isinstance(count, int) and count <= 64 and d.is_static(shape):
            return self.constant(np.full(shape, np.asarray(self.const(value, dtype).array)))
        filled = work_type("ConstantOfShape", self.opset, "T2", dtype)
        content = np.reshape(np.asarray(self.const(value, filled).array), (1,))
        made = self.emit("ConstantOfShape", self.lengths(shape), value=content, dtype=filled, shape=shape)
        return self.cast(made, dtype)

    def range(self, start: Any, stop: Any, step: Any = 1, *, size: Dim, dtype: DType = DType.int64) -> OnnxValue:
        """`start, start + step, ...` below `stop`; a constant where all is static and small."""
        static = not any(isinstance(v, Expr | OnnxValue) for v in (start, stop, step))
        if static and isinstance(size, int) and size <= 64:
            return self.const(start + np.arange(size) * step, dtype)
        bounds = [self.tensor(v, dtype) for v in (start, stop, step)]
        return self.emit("Range", *bounds, shape=(size,))

    def split(self, x: OnnxValue, sizes: Sequence[Dim], axis: int) -> list[OnnxValue]:
        """Pieces of these sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        pieces: list[OnnxValue] = self.emit("Split", x, self.lengths(sizes), axis=axis, outputs=len(sizes))
        for piece, size in zip(pieces, sizes, strict=True):
            piece.type = piece.type.with_shape([*x.type.shape[:axis], size, *x.type.shape[axis + 1 :]])
        return pieces

    def loop(
        self, count: Dim, states: Sequence[OnnxValue], step: Callable[..., Sequence[OnnxValue]], stacked: int = 0
    ) -> list[OnnxValue]:
        """A counted loop: `step(i, *states)` gives the new states, then `stacked` values to pile up on a first axis."""
        scalar = TensorType(DType.int64, ())
        formals = [self.formal("i", scalar), self.formal("more", scalar.with_dtype(DType.bool))]
        formals += [self.formal(f"state_{i}", s.type) for i, s in enumerate(states)]
        types: list[TensorType] = []

        def results(i: OnnxValue, more: OnnxValue, *values: OnnxValue) -> list[OnnxValue]:
            made = list(step(i, *values))
            types.extend(m.type for m in made)
            return [more, *made]

        body = self.graph_of("loop", formals, results)
        trips = self.tensor(count, DType.int64)
        made = self.emit("Loop", trips, self.const(True), *states, body=body, outputs=len(types))
        made = made if isinstance(made, list) else [made]
        for i, (value, type) in enumerate(zip(made, types, strict=True)):
            value.type = type if i < len(types) - stacked else type.with_shape([count, *type.shape])
        return made

    def scan(
        self,
        step: Callable[..., tuple[Sequence[OnnxValue], Sequence[OnnxValue]]],
        states: Sequence[OnnxValue],
        xs: Sequence[OnnxValue],
        axis: int,
        reverse: bool = False,
    ) -> list[OnnxValue]:
        """Scan along an axis of the `xs`: `step(*states, *slices)` gives the new states and what is stacked along it.

        The result holds the last states, then the stacked outputs.
        """
        if axis and any(isinstance(s, Expr) or s == 0 for x in xs for s in x.type.shape):
            # onnxruntime ends the process where it has to turn an empty tensor itself; 2n + 1 rows, says torch of
            # `cat([x, x, x[:1]])`, are none at n = 0
            turned = [self.transpose(x, [axis, *(i for i in range(x.type.rank) if i != axis)]) for x in xs]
            made = self.scan(step, states, turned, 0, reverse)
            return [*made[: len(states)], *(self._turned_back(t, axis) for t in made[len(states) :])]
        slices = [x.type.with_shape([s for i, s in enumerate(x.type.shape) if i != axis]) for x in xs]
        formals = [self.formal(f"state_{i}", s.type) for i, s in enumerate(states)]
        formals += [self.formal(f"slice_{i}", t) for i, t in enumerate(slices)]
        stacked: list[OnnxValue] = []

        def results(*values: OnnxValue) -> list[OnnxValue]:
            new, stack = step(*values)
            stacked.extend(stack)
            return [*new, *stack]

        body = self.graph_of("scan", formals, results)
        size = xs[0].type.shape[axis]
        types = [s.type for s in states]
        types += [t.type.with_shape([*t.type.shape[:axis], size, *t.type.shape[axis:]]) for t in stacked]
        made = self.emit(
            "Scan", *states, *xs, body=body, num_scan_inputs=len(xs), outputs=len(types),
            scan_input_axes=[axis] * len(xs), scan_output_axes=[axis] * len(stacked) or None,
            scan_input_directions=[int(reverse)] * len(xs),
            scan_output_directions=[int(reverse)] * len(stacked) or None,
        )  # fmt: skip
        made = made if isinstance(made, list) else [made]
        for value, type in zip(made, types, strict=True):
            value.type = type
        return made

    def _turned_back(self, x: OnnxValue, axis: int) -> OnnxValue:
        return self.transpose(x, [*range(1, axis + 1), 0, *range(axis + 1, x.type.rank)])


def _is_place(bound: Any) -> bool:
    """True of a bound that counts from the front, as far as it is seen."""
    return isinstance(bound, Expr) or (isinstance(bound, int) and 0 <= bound < 2**30)


def _flatten_axis(old: Sequence[Dim], new: Sequence[Dim]) -> int | None:
    """Where Flatten cuts the shape to give this one of rank 2, None if it cannot."""
    cuts = (k for k in range(len(old) + 1) if (d.product(old[:k]), d.product(old[k:])) == tuple(new))
    return next(cuts, None)


def _reshape_dims(old: Sequence[Dim], new: Sequence[Dim]) -> list[Dim]:
    """The operand of Reshape: 0 copies a dimension that stays in place, -1 is the last that nothing else tells."""
    dims: list[Dim] = [0 if isinstance(s, Expr) and i < len(old) and old[i] == s else s for i, s in enumerate(new)]
    unknown = [i for i, s in enumerate(dims) if isinstance(s, Expr)]
    if unknown:
        dims[max(unknown, key=lambda i: (getattr(new[i], "as_symbol", None) is None, i))] = -1
    return dims
