"""Where numbers lie among others."""

from __future__ import annotations

import numpy as np

from ir.bounds import bounds
from ir.dims import Expr, maximum
from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::searchsorted")
def searchsorted(h, sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        axis = sorted_sequence.type.rank - 1
        sorted_sequence = h.emit("tract_core_gather_elements", sorted_sequence, sorter, axis=axis)
    edges, x = h.together(sorted_sequence, h.tensor(self))
    right = right or side == "right"
    found = (_counted_edges if _ascending(h.content(edges)) else _halved)(h, edges, x, right)
    return h.cast(found, h.out.dtype)


def _ascending(edges):
    return edges is not None and bool((edges[..., 1:] >= edges[..., :-1]).all()) and not np.isnan(edges).any()


def _counted_edges(h, edges, x, right):
    """How many edges are not above; written so that NaN comes after all of them."""
    edges = h.unsqueeze(edges, [edges.type.rank - 1]) if x.type.rank else edges
    above = h.emit("gt" if right else "ge", edges, h.unsqueeze(x, [x.type.rank]))
    return h.reduce("sum_reduce", h.cast(h.emit("not", above), DType.int64), x.type.rank)


def _halved(h, edges, x, right):
    """torch's own bisection, which says what it finds among edges that hold NaN or are out of order."""
    axis, size = edges.type.rank - 1, edges.type.shape[-1]
    first, end = h.full(x.type.shape, 0, DType.int64), h.expand(h.scalar(size, DType.int64), x.type.shape)
    for _ in range(_halvings(h, size)):
        middle = h.emit("tract_shr", h.emit("add", first, end), 1)
        place = h.emit("min", middle, h.scalar(maximum(size - 1, 0), DType.int64))
        edge = h.emit("tract_core_gather_elements", edges, place, axis=axis) if axis else h.take(edges, place, 0)
        beyond = h.emit("not", h.emit("gt" if right else "ge", edge, x))
        beyond = h.emit("and", beyond, h.emit("lt", first, end))
        first = h.emit("select", beyond, h.emit("add", middle, 1), first)
        end = h.emit("select", beyond, end, middle)
    return first


def _halvings(h, size):
    """How often a size is halved until nothing is left."""
    if not isinstance(size, Expr):
        return size.bit_length()
    most = bounds(size, h.graph.symbols)[1]
    return int(most).bit_length() if most < 2**31 else 31


@op("aten::bucketize")
def bucketize(h, self, boundaries, out_int32=False, right=False):
    return searchsorted(h, boundaries, self, out_int32, right)
