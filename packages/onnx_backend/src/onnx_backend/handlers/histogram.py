"""Counting and reducing by place: histograms, bins, segments."""

from __future__ import annotations

import math

from ir import geometry
from ir.types import DType
from onnx_backend.handlers.reduce import amax, amin, count
from onnx_backend.registry import register as op


@op("aten::histc")
def histc(h, self, bins=100, min=0, max=0):
    x = h.reshape(self, [count(self, range(self.type.rank))])
    low, high = (
        (h.const(min, x), h.const(max, x)) if min != max else (h.reduce("ReduceMin", x), h.reduce("ReduceMax", x))
    )
    if min == max:
        same = h.cast(h.emit("Equal", low, high), x.type.dtype)
        low, high = h.emit("Sub", low, same), h.emit("Add", high, same)
    span = h.emit("Sub", high, low)
    where = h.emit("Floor", h.emit("Div", h.emit("Mul", h.emit("Sub", x, low), float(bins)), span))
    where = h.emit("Where", h.emit("Equal", x, high), h.const(bins - 1, x), where)  # the last bin is closed
    return tally(h, where, h.const(list(range(bins)), x), h.out)


def tally(h, x, places, out):
    """How often each place occurs in a vector."""
    hits = h.cast(h.emit("Equal", h.unsqueeze(x, [1]), places), out.dtype)
    return h.reduce("ReduceSum", hits, [0])


@op("aten::bincount")
def bincount(h, self, weights=None, minlength=0):
    floor = h.const([minlength - 1], self)
    top = h.emit("Add", h.reduce("ReduceMax", h.concat([self, floor], 0)), 1)
    places = h.emit("Range", h.const(0, self), top, h.const(1, self), shape=h.out.shape)
    if weights is None:
        return tally(h, self, places, h.out)
    hits = h.cast(h.emit("Equal", h.unsqueeze(self, [1]), places), h.out.dtype)
    return h.reduce("ReduceSum", h.emit("Mul", hits, h.unsqueeze(h.cast(weights, h.out.dtype), [1])), [0])


@op("aten::histogram.bins_tensor")
def histogram(h, self, bins, weight=None, density=False):
    """Counts between neighbouring edges; the last bin is closed."""
    x, n = h.reshape(self, [count(self, range(self.type.rank))]), bins.type.shape[0]
    low, high = h.slice(bins, 0, 0, n - 1, size=n - 1), h.slice(bins, 0, 1, n, size=n - 1)
    top = h.slice(bins, 0, n - 1, n, size=1)
    each = h.unsqueeze(x, [1])
    inside = h.emit("And", h.emit("GreaterOrEqual", each, low), h.emit("Less", each, high))
    last = h.emit("Equal", h.range(0, n - 1, size=n - 1), h.tensor(n - 2, DType.int64))
    inside = h.emit("Or", inside, h.emit("And", last, h.emit("Equal", each, top)))
    hits = h.cast(inside, x.type.dtype)
    if weight is not None:
        hits = h.emit("Mul", hits, h.unsqueeze(h.reshape(weight, x.type.shape), [1]))
    found = h.reduce("ReduceSum", hits, [0])
    if density:
        found = h.emit("Div", found, h.emit("Mul", h.reduce("ReduceSum", found), h.emit("Sub", high, low)))
    return found, bins


@op("aten::histogram.bin_ct")
def histogram_of_equal_bins(h, self, bins=100, range=None, weight=None, density=False):
    x = self
    low, high = (h.const(v, x) for v in range) if range else (h.reduce("ReduceMin", x), h.reduce("ReduceMax", x))
    same = h.emit("Mul", h.cast(h.emit("Equal", low, high), x.type.dtype), 0.5)  # no width: a half to both sides
    low, high = h.emit("Sub", low, same), h.emit("Add", high, same)
    step = h.emit("Div", h.emit("Sub", high, low), float(bins))
    places = h.range(0, bins + 1, size=bins + 1)  # torch counts the upper half of a linspace from its end
    up = h.emit("Add", low, h.emit("Mul", h.cast(places, x.type.dtype), step))
    down = h.emit("Sub", high, h.emit("Mul", h.cast(h.emit("Sub", bins, places), x.type.dtype), step))
    edges = h.emit("Where", h.emit("Less", places, (bins + 1) // 2), up, down)
    return histogram(h, self, edges, weight, density)


SEGMENTS = {"sum": 0, "mean": 0, "prod": 1, "max": -math.inf, "min": math.inf}  # what an empty segment gives


@op("aten::segment_reduce")
def segment_reduce(h, data, reduce, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    """A segment is a row of a 0/1 matrix over all positions."""
    given = offsets if lengths is None else lengths
    if given is None or given.type.rank != 1 or axis != 0:
        h.refuse("segments by indices or along another axis than the first; give lengths or offsets along axis 0")
    given, count_ = h.cast(given, DType.int64), h.out.shape[0]
    if lengths is None:
        starts, ends = (h.slice(given, 0, i, count_ + i, size=count_) for i in (0, 1))
    else:
        ends = h.emit("CumSum", given, h.const(0, DType.int64))
        starts = h.emit("Sub", ends, given)
    size = data.type.shape[0]
    places = h.range(0, size, size=size)
    starts, ends = (h.unsqueeze(t, [1]) for t in (starts, ends))
    inside = h.emit("And", h.emit("LessOrEqual", starts, places), h.emit("Less", places, ends))
    spread = h.unsqueeze(inside, geometry.axes(None, data.type.rank + 1)[2:])
    each = h.emit("Where", spread, h.unsqueeze(data, [0]), h.const(SEGMENTS[reduce], data))
    if reduce in ("max", "min"):
        found = (amax if reduce == "max" else amin)(h, each, [1])
        return found if initial is None else h.emit(reduce.capitalize(), found, h.const(initial, data))
    found = h.reduce("ReduceProd" if reduce == "prod" else "ReduceSum", each, [1])
    if initial is not None:
        found = h.emit("Mul" if reduce == "prod" else "Add", found, h.const(initial, data))
    if reduce != "mean":
        return found
    filled = h.emit("Sub", ends, starts)
    filled = h.cast(h.reshape(filled, [count_, *[1] * (data.type.rank - 1)]), data.type.dtype)
    mean = h.emit("Div", found, filled)
    return mean if initial is None else h.emit("Where", h.emit("Equal", filled, 0), found, mean)
