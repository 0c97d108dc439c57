"""Reading by computed positions, and finding positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ir import geometry
from ir.dims import Dim, maximum, product
from ir.types import DType
from onnx_backend.building.values import OnnxValue
from onnx_backend.handlers.order import sort
from onnx_backend.registry import register as op


def flat(h, x):
    return h.reshape(x, [product(x.type.shape)])


@op("aten::gather")
def gather(h, self, dim, index, sparse_grad=False):
    if self.type.rank == 0:
        return h.expand(self, h.out.shape)
    if index.type.rank == 0:
        return h.emit("Gather", self, index, axis=0, shape=())
    if 0 in index.type.shape:
        return h.full(h.out.shape, 0, h.out.dtype)
    return h.emit("GatherElements", self, index, axis=h.axis(dim, self), shape=h.out.shape)


@op("aten::take_along_dim")
def take_along_dim(h, self, indices, dim=None):
    indices = h.cast(indices, DType.int64)
    if dim is None:
        return h.emit("GatherElements", flat(h, self), flat(h, indices), axis=0, shape=h.out.shape)
    axis = h.axis(dim, self)
    # torch counts on past the end: place 4 of 4 is the first
    indices = h.emit("Mod", indices, h.size(maximum(self.type.shape[axis], 1)))
    kept = geometry.broadcast(*([1 if i == axis else s for i, s in enumerate(x.type.shape)] for x in (self, indices)))

    def ntuple(x):
        return h.expand(x, [x.type.shape[axis] if i == axis else s for i, s in enumerate(kept)])

    return h.emit("GatherElements", ntuple(self), ntuple(indices), axis=axis, shape=h.out.shape)


# -- x[...] ------------------------------------------------------------------------------------------------------------


@dataclass
class Places:
    """An advanced index: the axes it reads, their positions by tensors of one broadcast shape, and the order of axes.

    `front` brings the indexed axes to the front of x, `shape` is that of the positions together; the result of a
    gather, `[*shape, *rest]`, has `shape` at axis `at` in torch's result.
    """

    axes: list[int]
    tensors: list[OnnxValue]
    front: list[int]
    shape: list[Dim]
    at: int

    def to_torch(self, rest):
        """The permutation that takes `[*shape, *rest]` to torch's order of axes, where `rest` counts them."""
        k = len(self.shape)
        return [*range(k, k + self.at), *range(k), *range(k + self.at, k + rest)]


def is_mask(x):
    return x is not None and x.type.dtype in (DType.bool, DType.uint8)


def places(h, x, indices):
    """torch's indices as integer tensors by axis; a mask of k axes stands for k of them."""
    by_axis = []
    for index in indices:
        if is_mask(index):
            found = h.emit("NonZero", h.cast(index, DType.bool), shape=(index.type.rank, size_of_mask(h, indices, x)))
            parts = h.split(found, [1] * index.type.rank, 0)
            by_axis += [h.squeeze(p, [0]) for p in parts]
        else:
            by_axis.append(index)
    axes = [i for i, t in enumerate(by_axis) if t is not None]
    tensors = [by_axis[i] for i in axes]
    shape = geometry.runtime_broadcast(*(t.type.shape for t in tensors))
    together = axes == list(range(axes[0], axes[-1] + 1))
    front = [*axes, *(i for i in range(x.type.rank) if i not in axes)]
    return Places(axes, tensors, front, shape, axes[0] if together else 0)


def size_of_mask(h, indices, x):
    """The number of hits: what the result has in place of the mask's axes."""
    read = [i for i in indices if i is not None and not is_mask(i)]
    if read and max(t.type.rank for t in read) > 0:
        sizes = [s for s in geometry.broadcast(*(t.type.shape for t in read)) if s != 1]
        if sizes:
            return sizes[-1]
    before = 0
    for index in indices:
        if index is not None:
            break
        before += 1
    known = [i for i, index in enumerate(indices) if index is not None]
    apart = known[-1] - known[0] + 1 != len(known)
    return h.out.shape[0 if apart else before] if h.node.op in ("aten::index", "aten::_unsafe_index") else hits(h)


def hits(h):
    """A size that nothing names: only its being unknown matters."""
    from ir import dims

    return dims.symbol(f"hits_{h.node.name}")


def stacked(h, p):
    """The positions as GatherND and ScatterND want them: `[*shape, number of axes]`."""
    columns = [h.unsqueeze(h.expand(h.cast(t, DType.int64), p.shape), [len(p.shape)]) for t in p.tensors]
    return h.concat(columns, len(p.shape))


@op("aten::index", "aten::_unsafe_index")
def index(h, self, indices):
    known = [i for i, t in enumerate(indices) if t is not None]
    first = indices[known[0]]
    if len(known) == 1 and is_mask(first):
        if first.type.rank == 1:
            return compressed(h, self, h.cast(first, DType.bool), known[0])
        if first.type.rank == self.type.rank:
            return masked_select(h, self, first)
    if len(known) == 1 and not is_mask(first):
        return h.emit("Gather", self, first, axis=known[0])
    p = places(h, self, indices)
    rest = [self.type.shape[i] for i in p.front[len(p.axes) :]]
    x = h.transpose(self, p.front)
    if len(p.axes) == 1:
        return h.emit("Gather", self, p.tensors[0], axis=p.axes[0])
    found = h.emit("GatherND", x, stacked(h, p), shape=(*p.shape, *rest))
    return h.transpose(found, p.to_torch(len(rest)))


@op("aten::masked_select")
def masked_select(h, self, mask):
    shape = geometry.runtime_broadcast(self.type.shape, mask.type.shape)
    self, mask = h.expand(self, shape), h.expand(h.cast(mask, DType.bool), shape)
    return compressed(h, flat(h, self), flat(h, mask), 0)


def compressed(h, x, mask, axis):
    """What the mask selects; where the model fixes how much that is, a run with more or less of it stops."""
    counted = any(s.value is h.node.outputs[0] for s in h.driver.scopes[-1].sources.values())
    shape = [hits(h) if i == axis and not counted else d for i, d in enumerate(h.out.shape)]
    return h.reshape(h.emit("Compress", x, mask, axis=axis, shape=shape), h.out.shape)


# -- positions that depend on the data ---------------------------------------------------------------------------------


@op("aten::nonzero", "aten::argwhere")
def nonzero(h, self):
    if self.type.rank == 0:  # no column says where: only the number of rows counts
        rows = h.reshape(h.cast(h.cast(self, DType.bool), DType.int64), [1])
        shape = h.emit("Concat", rows, [0], axis=0, shape=(2,))
        return h.emit("ConstantOfShape", shape, value=np.zeros(1, np.int64), dtype=DType.int64, shape=h.out.shape)
    found = h.emit("NonZero", h.cast(self, DType.bool), shape=h.out.shape[::-1])
    return h.transpose(found, [1, 0])


@op("aten::nonzero_static")
def nonzero_static(h, self, size, fill_value=-1):
    """The first `size` positions, made up with the fill value."""
    if self.type.rank == 0:
        return h.full((size, 0), 0, DType.int64)
    found = h.emit("NonZero", h.cast(self, DType.bool), shape=(self.type.rank, hits(h)))
    filled = h.concat([found, h.full([self.type.rank, size], fill_value, DType.int64)], 1)
    return h.transpose(h.slice(filled, 1, 0, size, size=size), [1, 0])


@op("aten::nonzero_numpy")
def nonzero_numpy(h, self):
    x = self if self.type.rank else h.unsqueeze(self, [0])
    found = h.emit("NonZero", h.cast(x, DType.bool), shape=(x.type.rank, h.out.shape[0]))
    return [h.squeeze(part, [0]) for part in h.split(found, [1] * x.type.rank, 0)]


@op("aten::where")
def where_alone(h, condition):
    """torch.where(condition): the overloads with values to choose from have a handler of their own."""
    return nonzero_numpy(h, condition)


@op("aten::_unique2", "aten::unique_dim", "aten::_unique")
def unique(h, self, sorted=True, return_inverse=False, return_counts=False, dim=None):
    if dim is None and self.type.dtype.is_float:  # onnxruntime's Unique loses what is beside a nan
        return _unique_by_order(h, self)[: len(h.results)]
    axis = None if dim is None else h.axis(dim, self)
    x = self if dim is None or not self.type.dtype.is_float else _ranks(h, self)
    values, first, inverse, counts = h.emit(
        "Unique", x, axis=axis, sorted=True, outputs=4, dtype=[x.type.dtype, *[DType.int64] * 3],
        shape=h.out.shape,
    )  # fmt: skip
    for each in (first, counts):
        each.type = each.type.with_shape([h.out.shape[axis or 0]])
    if x is not self:
        values = h.emit("Gather", self, first, axis=axis, shape=h.out.shape)
    inverse.type = inverse.type.with_shape([product(self.type.shape)] if dim is None else [self.type.shape[axis]])
    found = values, h.reshape(inverse, h.results[1].shape) if return_inverse else None, counts
    return found[: len(h.results)]  # of the older _unique, two


@op("aten::unique_consecutive")
def unique_consecutive(h, self, return_inverse=False, return_counts=False, dim=None):
    if dim is not None and self.type.rank != 1:
        h.refuse("dim of a tensor with several axes")
    values, inverse, counts = _runs(h, flat(h, self))
    return values, h.reshape(inverse, self.type.shape), counts


def _unique_by_order(h, x):
    """Numbers in order, each nan by itself: the runs of equal ones."""
    ordered, places = sort(h, flat(h, x))
    values, inverse, counts = _runs(h, ordered)
    return values, _scattered(h, inverse, places, x), counts


def _scattered(h, ordered, places, x):
    """What was computed of a tensor's elements in order, each where its element is."""
    made = h.emit("ScatterElements", h.emit("Mul", places, 0), places, ordered, axis=0, shape=ordered.type.shape)
    return h.reshape(made, x.type.shape)


def _ranks(h, x):
    """The order of a tensor's numbers as int64, the same for equal ones; a nan is after all others, and has its own."""
    ordered, places = sort(h, flat(h, x))
    return _scattered(h, h.emit("CumSum", h.cast(_starts(h, ordered), DType.int64), h.const(0)), places, x)


def _starts(h, x):
    """True where a run of equal elements of a vector begins."""
    (size,) = x.type.shape
    changes = h.emit("Not", h.emit("Equal", h.slice(x, 0, 1, size, size=size - 1), h.slice(x, 0, 0, -1, size=size - 1)))
    starts = h.concat([h.full([1], True, DType.bool), changes], 0)
    return h.slice(starts, 0, 0, h.length(size), size=size)  # of nothing there is no first


def _runs(h, x):
    """Of a vector the first of each run of equal elements, to which run each belongs, and how long they are."""
    (size,) = x.type.shape
    starts = _starts(h, x)
    values = h.emit("Compress", x, starts, axis=0, shape=h.out.shape)
    places = h.range(0, size, size=size)
    first = h.emit("Compress", places, starts, axis=0, shape=h.out.shape)
    ends = h.emit("Concat", h.slice(first, 0, 1, 2**31 - 1), h.size(size), axis=0, shape=h.out.shape)
    inverse = h.emit("Sub", h.emit("CumSum", h.cast(starts, DType.int64), h.const(0)), 1)
    return values, inverse, h.emit("Sub", ends, first)


# -- searching ---------------------------------------------------------------------------------------------------------


@op("aten::searchsorted")
def searchsorted(h, sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    """The number of elements below each value."""
    row = sorted_sequence if sorter is None else h.emit("GatherElements", sorted_sequence, sorter, axis=-1)
    right = right if side is None else side == "right"
    x = h.tensor(self)
    dtype = x.type.dtype if row.type.dtype is x.type.dtype else DType.float64
    x, row = h.cast(x, dtype), h.cast(row, dtype)
    if sorted_sequence.type.dtype.is_float and row.type.shape[-1] != 0:
        h.refuse("the boundaries may hold nan, where torch's binary search gives other positions")
    column = h.unsqueeze(x, [x.type.rank])
    row = row if row.type.rank == 1 else h.unsqueeze(row, [row.type.rank - 1])
    if dtype.is_float:  # a nan comes after everything
        below = h.emit("Not", h.emit("Less" if right else "LessOrEqual", column, row))
    else:
        below = h.emit("GreaterOrEqual" if right else "Greater", column, row)
    return h.reduce("ReduceSum", h.cast(below, h.out.dtype), [len(h.out.shape)])


@op("aten::bucketize")
def bucketize(h, self, boundaries, out_int32=False, right=False):
    return searchsorted(h, boundaries, self, out_int32, right)


@op("aten::one_hot")
def one_hot(h, self, num_classes=-1):
    if num_classes == -1:
        h.refuse("num_classes=-1 is only known at run time")
    x = self if self.type.rank else h.unsqueeze(self, [0])
    shape = (*x.type.shape, num_classes)
    return h.reshape(h.emit("OneHot", x, h.tensor(num_classes, DType.int64), h.const([0, 1]), shape=shape), h.out.shape)
