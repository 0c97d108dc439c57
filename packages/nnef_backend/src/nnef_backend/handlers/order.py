"""What stands where in the order of numbers along an axis: sorting, the largest and smallest few, medians."""

from __future__ import annotations

import math

from ir.dims import Expr, floordiv, maximum, product
from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::topk")
def topk(h, self, k, dim=-1, largest=True, sorted=True):
    return _ordered(h, self, k, dim, largest)


@op("aten::sort")
def sort(h, self, dim=-1, descending=False, stable=False):
    size = self.type.shape[h.axis(dim, self)] if self.type.rank else 1
    return _ordered(h, self, size, dim, descending)  # both ways of ordering keep the order of equals


@op("aten::argsort")
def argsort(h, self, dim=-1, descending=False, stable=False):
    return sort(h, self, dim, descending)[1]


@op("aten::kthvalue")
def kthvalue(h, self, k, dim=-1, keepdim=False):
    ordered = _ordered(h, self, k, dim, False)
    if not self.type.rank:
        return ordered
    axis = h.axis(dim, self)
    picked = [h.slice(v, axis, k - 1, k) for v in ordered]
    return picked if keepdim else [h.squeeze(v, [axis]) for v in picked]


@op("aten::median")
def median(h, self):
    flat = h.reshape(self, [product(self.type.shape)])
    (size,) = flat.type.shape
    if size == 0:
        return h.const(_nothing(self.type.dtype), self.type.dtype)
    if not isinstance(size, Expr) or not self.type.dtype.is_float or not h.may_be_nothing(size):
        return _middle(h, flat, 0, False)[0]
    # NaN is last of all: as one more it is the median of nothing, and of no other number
    key = _ordered(h, h.concat([flat, h.const([math.nan], flat)], 0), size + 1, 0, False)[0]
    middle = maximum(floordiv(size + 1, 2) - 1, 0)
    odd = h.reduce("any_reduce", h.is_nan(flat), 0)
    return h.emit("select", odd, h.const(math.nan, flat), h.squeeze(h.slice(key, 0, middle, middle + 1), [0]))


def _nothing(dtype):
    """torch's NaN as a number of this type: the least integer by x86's rule, of which 8 and 16 bits keep zeros."""
    if dtype.is_float:
        return math.nan
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "int" and dtype.bits >= 32 else 0


@op("aten::median.dim")
def median_dim(h, self, dim, keepdim=False):
    return _middle(h, self, dim, keepdim)


def _middle(h, x, dim, keepdim):
    if x.type.rank == 0:
        return x, h.const(0, DType.int64)
    axis = h.axis(dim, x)
    middle, place = kthvalue(h, x, floordiv(x.type.shape[axis] + 1, 2), axis, keepdim)
    if not x.type.dtype.is_float:
        return middle, place
    odd = h.reduce("any_reduce", h.is_nan(x), axis, keepdim)
    first = h.reduce("argmax_reduce", h.is_nan(x), axis, keepdim)
    return h.emit("select", odd, h.const(math.nan, x), middle), h.emit("select", odd, first, place)


def _ordered(h, x, k, dim, largest):
    """The `k` largest or smallest, and where they were; NaN counts as larger than infinity."""
    if x.type.rank == 0:
        return x, h.const(0, DType.int64)
    axis = h.axis(dim, x)
    keys, size = _keys(h, x), x.type.shape[axis]
    if isinstance(size, Expr) or isinstance(k, Expr):
        places = h.slice(_ranked(h, keys, axis, largest), axis, 0, k)
        return h.emit("tract_core_gather_elements", x, places, axis=axis), places
    places = None
    for i, key in enumerate(reversed(keys), 1):  # by the last key first: tract keeps the order of equals
        at = key if places is None else h.emit("tract_core_gather_elements", key, places, axis=axis)
        values, order = _first(h, at, k if i == len(keys) else size, axis, largest)
        places = order if places is None else h.emit("tract_core_gather_elements", places, order, axis=axis)
    if keys[0] is x:
        return values, places
    return h.emit("tract_core_gather_elements", x, places, axis=axis), places


def _first(h, key, k, axis, largest):
    shape = [k if i == axis else s for i, s in enumerate(key.type.shape)]
    return h.emit("tract_core_topk", key, k, axis=axis, largest=largest, outputs=2, shape=[shape, shape])


def _ranked(h, keys, axis, largest):
    """The order along an axis of dynamic size, which tract's topk does not take: how many come before each one."""
    key = keys[0]
    place = h.positions(key.type.shape[axis])
    tail = list(range(2, 2 + key.type.rank - axis - 1))
    before = h.unsqueeze(h.emit("lt", h.unsqueeze(place, [0]), h.unsqueeze(place, [1])), tail)  # of equals the first
    for k in reversed(keys):
        others, each = h.unsqueeze(k, [axis]), h.unsqueeze(k, [axis + 1])  # [.., each, others, ..]
        before = h.emit("and", h.emit("eq", others, each), before)
        before = h.emit("or", h.emit("gt" if largest else "lt", others, each), before)
    rank = h.reduce("sum_reduce", h.cast(before, DType.int64), axis + 1)
    places = h.expand(h.unsqueeze(place, list(range(1, key.type.rank - axis))), key.type.shape)
    return h.emit("tract_core_scatter_elements", places, rank, places, axis=axis, reduction="none")


def _keys(h, x):
    """Numbers that tract can compare, in the order of `x`, where NaN is last; of equal ones the next key decides.

    In f64 there is room above the largest f32. Above the largest f64 there is infinity alone.
    """
    if not x.type.dtype.is_float:
        return [x]
    key, odd = h.cast(x, DType.float64), h.is_nan(x)
    if x.type.dtype is DType.float64:
        return [h.cast(odd, DType.float32), h.emit("select", odd, math.inf, key)]
    return [h.emit("select", odd, math.inf, h.emit("min", h.emit("select", odd, 0.0, key), 1e300))]
