"""Tensors out of nothing, said in the shape verbs: fills, and the places in a triangle."""

from __future__ import annotations

import numpy as np

from ir.handlers.registry import shared as op
from ir.helper import numpy_dtype
from ir.ops import FILLS, UNINITIALIZED

# Where a tensor lies and how (device, layout, memory format) is no matter of an artifact; `**_` takes it.


def filled(h, value):
    """The node's result, full of a number."""
    return h.full(h.out.shape, h.stored(value, h.out.dtype), h.out.dtype)


@op(*(name for name, number in FILLS.items() if number is not None), *UNINITIALIZED, "aten::zero")
def zeros(h, **_):
    """Empty tensors are zeros: a model that reads them has no result to compare with."""
    return filled(h, FILLS.get(h.node.op, 0))


@op("aten::full", "aten::full_like", "aten::new_full")
def full(h, fill_value, **_):
    return filled(h, fill_value)


@op("aten::fill")
def fill(h, self, value):
    return filled(h, value)


@op("aten::scalar_tensor")
def scalar_tensor(h, s, **_):
    return filled(h, s)


@op("aten::tril_indices")
def tril_indices(h, row, col, offset=0, **_):
    return h.constant(np.stack(np.tril_indices(row, offset, col)).astype(numpy_dtype(h.out.dtype)))


@op("aten::triu_indices")
def triu_indices(h, row, col, offset=0, **_):
    return h.constant(np.stack(np.triu_indices(row, offset, col)).astype(numpy_dtype(h.out.dtype)))
