"""Sorting along an axis, and what is found by it."""

from __future__ import annotations

import math

from ir import dims
from ir.types import DType
from onnx_backend.handlers.elementwise import lerp
from onnx_backend.handlers.reduce import count, unknown
from onnx_backend.registry import register as op


@op("aten::topk")
def topk(h, self, k, dim=-1, largest=True, sorted=True):
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    axis = h.axis(dim, self)
    if not self.type.dtype.is_float:
        return ranks(h, self, k, axis, largest, sorted)
    at = order(h, self, k, axis, largest)
    return h.emit("GatherElements", self, at, axis=axis), at


def ranks(h, x, n, axis, largest, sorted=True):
    """onnxruntime's TopK, which keeps the order of equal elements, whichever way it sorts, and has none for nan."""
    shape = [n if i == axis else s for i, s in enumerate(x.type.shape)]
    return h.emit("TopK", x, h.size(n), axis=axis, largest=largest, sorted=sorted, outputs=2,
                  dtype=[x.type.dtype, DType.int64], shape=shape)  # fmt: skip


def order(h, x, n, axis, largest=False):
    """The places of the n first elements along an axis, where nan is the largest."""
    if x.type.dtype is not DType.float64:
        return ranks(h, ranked(h, x), n, axis, largest)[1]
    # no wider type has room for nan above infinity: a second sort, which keeps the order of the first, moves it there
    unknown = h.emit("IsNaN", x)
    size = x.type.shape[axis]
    at = ranks(h, h.emit("Where", unknown, h.const(math.inf, x), x), size, axis, largest)[1]
    behind = ranks(h, h.emit("GatherElements", h.cast(unknown, DType.int64), at, axis=axis), n, axis, largest)[1]
    return h.emit("GatherElements", at, behind, axis=axis)


def ranked(h, x):
    """Numbers in the order of `x`, where nan is the largest: a wider type has room for it above infinity."""
    if not x.type.dtype.is_float:
        return x
    far, dtype = (1e30, DType.float32) if x.type.dtype is DType.float16 else (1e300, DType.float64)
    known = h.emit("Clip", h.cast(x, dtype), -far, far)
    return h.emit("Where", h.emit("IsNaN", x), h.const(math.inf, dtype), known)


@op("aten::sort")
def sort(h, self, dim=-1, descending=False, stable=None):
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    return topk(h, self, self.type.shape[h.axis(dim, self)], dim, descending)


@op("aten::argsort")
def argsort(h, self, dim=-1, descending=False, stable=False):
    return sort(h, self, dim, descending)[1]


@op("aten::msort")
def msort(h, self):
    return sort(h, self, 0)[0]


def nth(h, x, n, axis, keepdim):
    """The n-th smallest elements along an axis, and their places."""
    at = h.slice(order(h, x, n, axis), axis, -1, 2**31 - 1, size=1)
    last = [h.emit("GatherElements", x, at, axis=axis), at]
    return last if keepdim else [h.squeeze(t, [axis]) for t in last]


@op("aten::kthvalue")
def kthvalue(h, self, k, dim=-1, keepdim=False):
    return nth(h, self, k, h.axis(dim, self), keepdim) if self.type.rank else (self, h.const(0, DType.int64))


@op("aten::median")
def median(h, self, dim=None, keepdim=False):
    """The lower one of the two in the middle; a nan where there is any."""
    if self.type.rank == 0:
        return self if dim is None else (self, h.const(0, DType.int64))
    if dim is None:
        row = h.reshape(self, [count(self, range(self.type.rank))])
        return median(h, h.filled(row, 0, math.nan if self.type.dtype.is_float else 0), 0)[0]
    axis = h.axis(dim, self)
    value, at = nth(h, self, dims.floordiv(self.type.shape[axis] + 1, 2), axis, keepdim)
    if not self.type.dtype.is_float:
        return value, at
    there, first = unknown(h, self, axis, keepdim)
    return h.emit("Where", there, h.const(math.nan, value), value), h.emit("Where", there, first, at)


@op("aten::quantile")
def quantile(h, self, q, dim=None, keepdim=False, interpolation="linear", skip=False):
    """Rows sorted, and read between two places; a nan where there is any, or where nothing else is."""
    dtype = self.type.dtype
    if dim is None or self.type.rank == 0:
        self, dim = h.reshape(self, [count(self, range(self.type.rank))]), 0
    axis, last = h.axis(dim, self), self.type.rank - 1
    rows = h.transpose(self, [*(i for i in range(last + 1) if i != axis), axis])
    unknown = h.emit("IsNaN", rows)
    end = h.tensor(rows.type.shape[-1] - 1, dtype)
    if skip:
        end = h.emit("Sub", h.reduce("ReduceSum", h.cast(h.emit("Not", unknown), dtype), [last], True), 1)
    q = h.tensor(q, dtype)
    place = h.emit("Mul", q if q.type.rank else h.unsqueeze(q, [0]), end)
    place = h.emit("Max", place, 0) if skip else place
    rows = sort(h, rows)[0]

    def read(rounding):
        at = h.cast(h.emit(rounding, place), DType.int64)
        return h.emit("GatherElements", rows, at, axis=last) if skip else h.emit("Gather", rows, at, axis=last)

    single = {"lower": "Floor", "higher": "Ceil", "nearest": "Round"}.get(interpolation)
    found = read(single or "Floor")
    if single is None:
        weight = h.emit("Sub", place, h.emit("Floor", place)) if interpolation == "linear" else 0.5
        found = lerp(h, found, read("Ceil"), weight)
    if not skip:
        some = h.cast(h.reduce("ReduceMax", h.cast(unknown, DType.int32), [last], True), DType.bool)
        found = h.emit("Where", some, h.const(math.nan, dtype), found)
    return h.reshape(h.transpose(found, [last, *range(last)]) if q.type.rank else found, h.out.shape)


@op("aten::nanquantile")
def nanquantile(h, self, q, dim=None, keepdim=False, interpolation="linear"):
    return quantile(h, self, q, dim, keepdim, interpolation, skip=True)


@op("aten::bincount")
def bincount(h, self, weights=None, minlength=0):
    """How often each place occurs in a vector, or the sum of the weights there."""
    found = h.reduce("ReduceSum", h.cast(h.emit("Less", self, h.const(0, self)), DType.int64))
    self = h.require(self, h.emit("Equal", found, 0), "no number that bincount counts is negative")
    self = h.cast(self, DType.int64)  # the places end one behind the largest number, which the type may not hold
    floor = h.unsqueeze(h.tensor(minlength - 1, self), [0])
    top = h.emit("Add", h.reduce("ReduceMax", h.concat([self, floor], 0)), 1)
    places = h.emit("Range", h.const(0, self), top, h.const(1, self), shape=h.out.shape)
    here = h.emit("Equal", h.unsqueeze(self, [1]), places)
    if weights is None:
        return h.reduce("ReduceSum", h.cast(here, h.out.dtype), [0])
    each = h.unsqueeze(h.cast(weights, h.out.dtype), [1])  # chosen, as nan times nothing is nan
    return h.reduce("ReduceSum", h.emit("Where", here, each, h.const(0, h.out.dtype)), [0])
