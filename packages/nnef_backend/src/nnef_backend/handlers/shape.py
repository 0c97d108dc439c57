"""The same numbers in another arrangement: views, joins, slices, turns, diagonals, resizing, sampling."""

from __future__ import annotations

import itertools
import math

from ir.bounds import bounds
from ir.dims import Expr, maximum, minimum
from ir.handlers import shape
from ir.types import DType
from nnef_backend.building.hiding import apart
from nnef_backend.building.reshaping import settled, where_holds
from nnef_backend.building.sizes import is_mixed
from nnef_backend.handlers.padding import not_negative, padded
from nnef_backend.handlers.resampling import grid_sample, resize
from nnef_backend.registry import register as op

END = 2**63 - 1  # torch's word for "to the end"


# -- views: torch has worked out the result's shape ------------------------------------------------------------------


@op("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::flatten", "aten::unflatten", "aten::ravel",
    "aten::view_as", "aten::reshape_as", "aten::_reshape_alias", "aten::view_copy")  # fmt: skip
def reshape(h, self, size=None, shape=None, **_):
    given = h.out.shape if size is None and shape is None else size or shape or ()
    exact = [g if isinstance(g, int) and g >= 0 else o for g, o in zip(given, h.out.shape, strict=False)]
    return h.reshape(self, exact if len(exact) == h.out.rank else h.out.shape)


@op("aten::view.dtype")
def view_dtype(h, self, dtype):
    return self if dtype is self.type.dtype else h.refuse("tract cannot read the bits of a tensor as another type")


@op("aten::repeat", "aten::tile")
def repeat(h, self, repeats=None, dims=None):
    repeats = list(dims if repeats is None else repeats)
    repeats = [1] * (self.type.rank - len(repeats)) + [not_negative(h, r) for r in repeats]
    x = h.unsqueeze(self, list(range(len(repeats) - self.type.rank)))
    if all(r == 1 or (d == 1 and r != 0) for d, r in zip(x.type.shape, repeats, strict=True)):
        return h.expand(x, h.out.shape)  # in one form: of two, tract makes one, and fails over what reads both
    return h.emit("tile", x, repeats=repeats)


@op("aten::repeat_interleave.self_Tensor")
def repeat_interleave_each(h, self, repeats, dim=None, output_size=None):
    x = h.reshape(self, [math.prod(self.type.shape)]) if dim is None else self
    axis = 0 if dim is None else h.axis(dim, self)
    return h.take(x, repeated_places(h, h.expand(repeats, [x.type.shape[axis]]), output_size), axis)


@op("aten::repeat_interleave.Tensor")
def repeated_places(h, repeats, output_size=None):
    """Where each place of the result comes from: the number of elements that end before it."""
    if output_size is None:
        h.refuse("the size of the result depends on the repeats; give repeat_interleave their sum, output_size=")
    repeats = h.cast(repeats, DType.int64)
    ends = h.emit("tract_core_cumsum", repeats, axis=0, exclusive=False, reverse=False)
    index = h.unsqueeze(h.positions(output_size), [1])
    before = h.cast(h.emit("le", h.unsqueeze(ends, [0]), index), DType.int64)
    last = h.slice(ends, 0, ends.type.shape[0] - 1, ends.type.shape[0])
    below = h.reduce("sum_reduce", h.emit("max", h.emit("neg", repeats), 0), [0])
    fits = h.emit("and", h.emit("le", last, h.tensor(output_size, DType.int64)), h.emit("eq", below, 0))
    text = f"there are no more than {output_size} repeats, and none is below 0"
    return where_holds(h, h.reduce("sum_reduce", before, [1]), fits, text)


# -- order of axes ---------------------------------------------------------------------------------------------------


# -- joins and splits ------------------------------------------------------------------------------------------------


@op("aten::cat", "aten::concat", "aten::concatenate")
def cat(h, tensors, dim=0, axis=None):
    axis = dim if axis is None else axis
    parts = [x for x in tensors if x.type.shape != (0,) or h.out.rank == 1] or tensors
    return h.concat(parts, h.axis(axis, parts[0]))


@op("aten::stack")
def stack(h, tensors, dim=0):
    axis = dim % h.out.rank
    same = [next((d for d in sizes if isinstance(d, int)), sizes[0]) for sizes in zip(*(x.type.shape for x in tensors))]
    return h.emit("stack", apart(h, [settled(h, x, same) for x in tensors]), axis=axis, shape=h.out.shape)


@op("aten::split", "aten::split_with_sizes", "aten::chunk", "aten::tensor_split", "aten::unsafe_split",
    "aten::unsafe_split_with_sizes", "aten::unsafe_chunk", "aten::split_copy",
    "aten::split_with_sizes_copy")  # fmt: skip
def split(h, self, dim=0, indices=None, **sizes):
    """Pieces one behind the other; at indices, each begins at its own, which need not ascend."""
    axis = h.axis(dim, self)
    lengths = [result.shape[axis] for result in h.results]
    begins = list(itertools.accumulate(lengths, initial=0))
    if indices is not None:
        size = self.type.shape[axis]
        begins = [0, *(clipped(from_front(h, i, size), size) for i in indices)]
    return [window(h, self, axis, begin, n) for begin, n in zip(begins, lengths, strict=False)]


@op("aten::unbind", "aten::unbind_copy")
def unbind(h, self, dim=0):
    axis = h.axis(dim, self)
    return [h.squeeze(h.slice(self, axis, i, i + 1), [axis]) for i in range(len(h.results))]


# -- slices ----------------------------------------------------------------------------------------------------------


@op("aten::select", "aten::select_copy")
def select(h, self, dim, index):
    axis = h.axis(dim, self)
    if from_data(h, index):
        return h.take(self, h.tensor(index, DType.int64), axis)
    return h.squeeze(window(h, self, axis, from_front(h, index, self.type.shape[axis]), 1), [axis])


@op("aten::slice", "aten::slice_copy")
def slice_(h, self, dim=0, start=None, end=None, step=1):
    axis = h.axis(dim, self)
    size, count = self.type.shape[axis], h.out.shape[axis]
    if step == 1 and (end is None or end == END) and not from_data(h, start):
        return h.slice(self, axis, size - count, size)
    begin = clipped(from_front(h, 0 if start is None else start, size), size)
    if step == 1 or count == 0:
        return window(h, self, axis, 0 if count == 0 else begin, count)
    return h.take(self, h.range(begin, begin + count * step, step, count), axis)


@op("aten::narrow", "aten::narrow_copy")
def narrow(h, self, dim, start, length):
    axis = h.axis(dim, self)
    return window(h, self, axis, from_front(h, start, self.type.shape[axis]), length)


def clipped(place, size):
    """A place within an axis, as far as both are known."""
    return minimum(maximum(place, 0), size) if isinstance(size, int) and isinstance(place, int) else maximum(place, 0)


def from_data(h, place):
    """True for a place that was read out of a tensor."""
    return isinstance(place, Expr) and bool(place.symbols - h.known)


def from_front(h, place, size):
    """A place that may be counted from the end as counted from the front."""
    if not isinstance(place, Expr):
        return place + size if place < 0 else place
    low, high = bounds(place, h.graph.symbols)
    if low >= 0 or from_data(h, place):
        return place
    return place + (size if high < 0 else minimum(1, maximum(0, -place)) * size)


def window(h, x, axis, begin, count):
    """`count` places from `begin` on.

    Of an end that adds up quotients tract cannot tell how many there are: they are named one by one.
    """
    end = begin + count
    if not from_data(h, begin) and not (h.target.tract and isinstance(end, Expr) and is_mixed(end)):
        return h.slice(x, axis, begin, end)
    places = h.positions(count)
    return h.take(x, h.emit("add", places, h.tensor(begin, DType.int64)), axis)


# -- turns -----------------------------------------------------------------------------------------------------------


@op("aten::flip", "aten::fliplr", "aten::flipud")
def flip(h, self, dims=None):
    dims = dims if dims is not None else [1] if h.node.op == "aten::fliplr" else [0]
    for axis in h.axes(dims, self) if dims and self.type.rank else []:
        size = self.type.shape[axis]
        self = h.take(self, h.range(size - 1, -1, -1, size), axis)
    return self


@op("aten::roll")
def roll(h, self, shifts, dims=()):
    x = self if dims else h.reshape(self, [math.prod(self.type.shape)])
    for shift, dim in zip(shifts, dims or [0], strict=True):
        axis = h.axis(dim, x)
        size = x.type.shape[axis]
        if isinstance(size, Expr):  # which may be smaller than the shift
            moved = h.emit("sub", h.positions(size), h.scalar(shift, DType.int64))
            x = h.take(x, h.floor_division(moved, h.scalar(size, DType.int64))[1], axis)
            continue
        cut = -h.static(shift, "the shift") % size if size else 0
        x = h.concat([h.slice(x, axis, cut, size), h.slice(x, axis, 0, cut)], axis)
    return h.reshape(x, self.type.shape)


@op("aten::tril", "aten::triu")
def triangle(h, self, diagonal=0):
    upper = h.node.op == "aten::triu"
    return h.emit("tract_core_trilu", self, diagonal, upper=upper, shape=self.type.shape)


# -- space and channels ----------------------------------------------------------------------------------------------


@op("aten::im2col")
def im2col(h, self, kernel_size, dilation, padding, stride):
    x = self if self.type.rank == 4 else h.unsqueeze(self, [0])
    x = padded(h, x, [padding[1], padding[1], padding[0], padding[0]], "constant")
    return shape.columns(h, x, kernel_size, dilation, stride)


# -- diagonals and storage -------------------------------------------------------------------------------------------


@op("aten::diag_embed")
def diag_embed(h, self, offset=0, dim1=-2, dim2=-1):
    rank = self.type.rank + 1
    a, b = dim1 % rank, dim2 % rank
    size = self.type.shape[-1] + abs(offset)
    grown = h.concat([self, h.expand(h.const(0, self), [*self.type.shape[:-1], abs(offset)])] if offset else [self],
                     rank - 2)  # fmt: skip
    square = h.expand(h.const(True), [size, size])
    on = [h.emit("tract_core_trilu", square, offset, upper=upper, shape=[size, size]) for upper in (True, False)]
    # counted from the shorter side of the diagonal, an element's place is its row or its column
    spread = h.unsqueeze(grown, [rank - 1 if offset >= 0 else rank - 2])
    y = h.emit("select", h.emit("and", *on), h.expand(spread, [*self.type.shape[:-1], size, size]), h.const(0, self))
    order = [i for i in range(rank) if i not in (a, b)]
    return h.transpose(y, [rank - 2 if i == a else rank - 1 if i == b else order.index(i) for i in range(rank)])


@op("aten::meshgrid")
def meshgrid(h, tensors, indexing="ij"):
    order = [1, 0] if indexing == "xy" and len(tensors) > 1 else [0, 1]
    made = []
    for i, (x, result) in enumerate(zip(tensors, h.results, strict=True)):
        axis = order[i] if i < 2 else i
        sizes = x.type.shape or (1,)
        x = h.reshape(x, [sizes[0] if a == axis else 1 for a in range(len(tensors))])
        made.append(h.expand(x, result.shape))
    return made


# -- resizing and sampling -------------------------------------------------------------------------------------------


def upsampler(mode):
    def handler(h, input=None, self=None, output_size=None, align_corners=False, **scales):
        return resize(h, input or self, mode, align_corners)

    return handler


op(*(f"aten::{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)))(
    upsampler("nearest")
)
op("aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d")(upsampler("linear"))


@op("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(h, input, grid, interpolation_mode, padding_mode, align_corners):
    return grid_sample(h, input, grid, interpolation_mode, padding_mode, align_corners)
