"""Where numbers lie among others."""

from __future__ import annotations

import numpy as np

from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::searchsorted")
def searchsorted(h, sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        axis = sorted_sequence.type.rank - 1
        sorted_sequence = h.emit("tract_core_gather_elements", sorted_sequence, sorter, axis=axis)
    edges, x = h.together(sorted_sequence, h.tensor(self))
    if not _ascending(h.content(edges)):
        h.refuse("the boundaries must be a constant, sorted and free of nan: of others torch's search differs")
    return h.cast(_counted_edges(h, edges, x, right or side == "right"), h.out.dtype)


def _ascending(edges):
    return edges is not None and bool((edges[..., 1:] >= edges[..., :-1]).all()) and not np.isnan(edges).any()


def _counted_edges(h, edges, x, right):
    """How many edges are not above; written so that NaN comes after all of them."""
    edges = h.unsqueeze(edges, [edges.type.rank - 1]) if x.type.rank else edges
    above = h.emit("gt" if right else "ge", edges, h.unsqueeze(x, [x.type.rank]))
    return h.reduce("sum_reduce", h.cast(h.emit("not", above), DType.int64), x.type.rank)


@op("aten::bucketize")
def bucketize(h, self, boundaries, out_int32=False, right=False):
    return searchsorted(h, boundaries, self, out_int32, right)
