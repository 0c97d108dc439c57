"""Sorting along an axis, and what is found by it."""

from __future__ import annotations

import math

from ir import dims
from ir.types import DType
from onnx_backend.handlers.reduce import count
from onnx_backend.registry import register as op


@op("aten::topk")
def topk(h, self, k, dim=-1, largest=True, sorted=True):
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    axis = h.axis(dim, self)
    return h.emit("TopK", self, h.size(k), axis=axis, largest=largest, sorted=sorted, outputs=2,
                  dtype=[self.type.dtype, DType.int64], shape=h.out.shape)  # fmt: skip


@op("aten::sort")
def sort(h, self, dim=-1, descending=False, stable=None):
    """TopK keeps the order of equal elements, whichever way it sorts."""
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
    shape = [n if i == axis else s for i, s in enumerate(x.type.shape)]
    ordered = h.emit("TopK", x, h.size(n), axis=axis, largest=False, outputs=2, shape=shape)
    last = [h.slice(t, axis, -1, 2**31 - 1, size=1) for t in ordered]
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
        return median(h, h.reshape(self, [count(self, range(self.type.rank))]), 0)[0]
    axis = h.axis(dim, self)
    value, at = nth(h, self, dims.floordiv(self.type.shape[axis] + 1, 2), axis, keepdim)
    if not self.type.dtype.is_float:
        return value, at
    unknown = h.cast(h.emit("IsNaN", self), DType.int32)
    first = h.emit("ArgMax", unknown, axis=axis, keepdims=keepdim, shape=at.type.shape)
    there = h.cast(h.reduce("ReduceMax", unknown, [axis], keepdim), DType.bool)
    return h.emit("Where", there, h.const(math.nan, value), value), h.emit("Where", there, first, at)


@op("aten::nanmedian")
def nanmedian(h, self, dim=None, keepdim=False):
    """The median of what is a number: with each nan as infinity, it lies in the lower part of the row."""
    if not self.type.dtype.is_float or self.type.rank == 0:
        return median(h, self, dim, keepdim)
    if dim is None:
        return nanmedian(h, h.reshape(self, [count(self, range(self.type.rank))]), 0)[0]
    axis = h.axis(dim, self)
    unknown = h.emit("IsNaN", self)
    known = h.reduce("ReduceSum", h.cast(h.emit("Not", unknown), DType.int64), [axis], True)
    middle = h.emit("Max", h.emit("Div", h.emit("Sub", known, 1), 2), 0)
    high = h.emit("Where", unknown, h.const(math.inf, self), self)
    size = h.size(self.type.shape[axis])
    order = h.emit("TopK", high, size, axis=axis, largest=False, outputs=2, shape=self.type.shape)[1]
    at = h.emit("GatherElements", order, middle, axis=axis)
    value = h.emit("GatherElements", self, at, axis=axis)
    return [value, at] if keepdim else [h.squeeze(x, [axis]) for x in (value, at)]


@op("aten::mode")
def mode(h, self, dim=-1, keepdim=False):
    """The smallest of the most frequent values, and its last place."""
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    axis = h.axis(dim, self)
    same = h.emit("Equal", h.unsqueeze(self, [axis]), h.unsqueeze(self, [axis + 1]))
    often = h.reduce("ReduceSum", h.cast(same, DType.int64), [axis + 1])
    most = h.emit("Equal", often, h.reduce("ReduceMax", often, [axis], True))
    top = h.reduce("ReduceMax", self, [axis], True)
    value = h.reduce("ReduceMin", h.emit("Where", most, self, top), [axis], True)
    hit = h.cast(h.emit("Equal", self, value), DType.int32)
    shape = value.type.shape if keepdim else [s for i, s in enumerate(value.type.shape) if i != axis]
    at = h.emit("ArgMax", hit, axis=axis, keepdims=keepdim, select_last_index=1, shape=shape)
    return value if keepdim else h.squeeze(value, [axis]), at
