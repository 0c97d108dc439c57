"""Reading and writing by computed positions."""

from __future__ import annotations

import math

import numpy as np

from ir.dims import Expr, product
from ir.geometry import invert, runtime_broadcast
from ir.types import DType
from nnef_backend.building.exact import quotient
from nnef_backend.building.reshaping import cut
from nnef_backend.handlers.elementwise import convert_element_type
from nnef_backend.handlers.order import sort
from nnef_backend.handlers.scattering import along, scatter_rows, written
from nnef_backend.registry import register as op
from nnef_backend.registry import rows

# -- reading ---------------------------------------------------------------------------------------------------------


@op("aten::gather")
def gather(h, self, dim, index, sparse_grad=False):
    if self.type.rank == 0:
        return h.expand(self, h.out.shape)
    if index.type.rank == 0:
        return h.take(self, index, 0)
    return h.emit("tract_core_gather_elements", self, index, axis=h.axis(dim, self))


@op("aten::index")
def index_(h, self, indices):
    if all(i is None for i in indices):
        return self
    indices = _places(h, indices)
    x, linear, _, axes = _linear(h, self, indices)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    made = h.take(x, linear, 0)
    if not adjacent or axes[0] == 0:
        return made
    # the axes of the index come where the first indexed axis was
    n, lead = linear.type.rank, axes[0]
    return h.transpose(made, [*range(n, n + lead), *range(n), *range(n + lead, made.type.rank)])


def _is_mask(index):
    return index is not None and index.type.dtype in (DType.bool, DType.uint8)


def _places(h, indices):
    """The indices with places instead of masks, one tensor for each of a mask's axes."""
    made = []
    for index in indices:
        made += nonzero_numpy(h, index) if _is_mask(index) else [index]
    return made


def _linear(h, x, indices):
    """`x` with the indexed axes in front and as one, positions in that axis, the order of axes and the indexed ones."""
    axes = [a for a, i in enumerate(indices) if i is not None]
    order = axes + [a for a in range(x.type.rank) if a not in axes]
    shape = x.type.shape
    whole = product(shape[a] for a in axes)
    linear = None
    for a in axes:
        place = h.cast(indices[a], DType.int64)
        size = h.tensor(shape[a], DType.int64)
        if len(axes) > 1:  # a single one may stay negative, and tract stops at one that is out of range
            place = h.emit("select", h.emit("lt", place, 0), h.emit("add", place, size), place)
            outside = h.emit("or", h.emit("lt", place, 0), h.emit("ge", place, size))
            place = h.emit("select", outside, h.tensor(whole, DType.int64), place)
        linear = place if linear is None else h.emit("add", h.emit("mul", linear, size), place)
    front = h.transpose(x, order)
    rest = [shape[a] for a in order[len(axes) :]]
    return h.reshape(front, [whole, *rest]), linear, order, axes


@op("aten::one_hot")
def one_hot(h, self, num_classes=-1):
    classes = h.out.shape[-1]
    if num_classes == -1 or isinstance(classes, Expr):
        h.refuse("the number of classes depends on data")
    return h.cast(h.emit("eq", h.unsqueeze(self, [self.type.rank]), h.constant(np.arange(classes))), DType.int64)


# -- writing ---------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min",
               "mean": "add"}  # fmt: skip


@op("aten::index_put", "aten::_unsafe_index_put")
def index_put(h, self, indices, values, accumulate=False):
    values = convert_element_type(h, values, self.type.dtype)
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].type.dtype is DType.bool:
        made = _masked_put(h, self, indices, values, accumulate)
        if made is not None:
            return made
    indices = _places(h, indices)
    together = runtime_broadcast(*(i.type.shape for i in indices if i is not None))
    x, linear, order, axes = _linear(h, self, [i if i is None else h.expand(i, together) for i in indices])
    places, rest = linear.type.shape, x.type.shape[1:]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if adjacent and axes[0] and values.type.rank > len(rest) - axes[0]:
        n, lead = len(places), axes[0]
        values = h.expand(values, [*rest[:lead], *places, *rest[lead:]])
        values = h.transpose(values, [*range(lead, lead + n), *range(lead), *range(lead + n, values.type.rank)])
    values = h.expand(values, [*places, *rest])
    count = product(places)
    reduction = "add" if accumulate else "none"
    made = scatter_rows(h, x, h.reshape(linear, [count]), h.reshape(values, [count, *rest]), reduction)
    return h.transpose(h.reshape(made, [self.type.shape[a] for a in order]), invert(order))


def _masked_put(h, x, indices, values, accumulate):
    mask = next(i for i in indices if i is not None)
    lead = [i is None for i in indices].index(False)
    if lead or values.type.rank > x.type.rank - mask.type.rank:
        return None  # which of the values go where depends on the data of the mask
    for axis, (have, size) in enumerate(zip(mask.type.shape, x.type.shape, strict=False)):
        mask = mask if have == size else cut(h, mask, axis, have, size)  # torch.export does not say that they are equal
    mask = h.unsqueeze(mask, list(range(mask.type.rank, x.type.rank)))
    return h.emit("select", mask, h.emit("add", x, values) if accumulate else values, x)


@op("aten::index_add")
def index_add(h, self, dim, index, source, alpha=1):
    source = source if alpha == 1 else h.emit("mul", source, alpha)
    return _rounded_once(h, self, source, "add", lambda x, new, how: along(h, x, h.axis(dim, x), index, new, how))


def _rounded_once(h, x, new, reduction, write):
    """`write(x, new, reduction)`, a sum or product of halves in f32: as in torch, which rounds the whole of it."""
    if reduction not in ("add", "mul") or x.type.dtype is not DType.float16:
        return write(x, new, reduction)
    return h.cast(write(h.floating(x), h.floating(new), reduction), x.type.dtype)


@op("aten::index_copy")
def index_copy(h, self, dim, index, source):
    return along(h, self, h.axis(dim, self), index, source)


@op("aten::index_fill")
def index_fill(h, self, dim, index, value):
    axis = h.axis(dim, self)
    count = index.type.shape[0] if index.type.rank else 1
    shape = [count if a == axis else s for a, s in enumerate(self.type.shape or (1,))]
    return along(h, self, axis, index, h.expand(h.tensor(h.stored(value, self.type.dtype), self), shape))


@op("aten::index_reduce")
def index_reduce(h, self, dim, index, source, reduce, include_self=True):
    axis = h.axis(dim, self)

    def write(x, new, how):
        return along(h, x, axis, index, new, how)

    return _reduced(h, self, source, reduce, include_self, lambda *args: _rounded_once(h, *args, write))


def _reduced(h, x, new, reduce, include_self, write):
    """`write(x, new, reduction)` with every reduction of torch's, and without the old elements where it says so."""
    floating = x.type.dtype.is_float

    def full(value):
        return h.expand(h.tensor(value, x), new.type.shape)

    start = x if include_self else write(x, full(_neutral(reduce, x.type.dtype)), "none")
    made = write(start, new, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = h.full(x.type.shape, 1, x.type.dtype)
        count = h.emit("max", write(ones if include_self else write(ones, full(0), "none"), full(1), "add"), 1)
        return quotient(h, made, count) if floating else h.floor_division(made, count)[0]
    if reduce not in ("amax", "amin") or not floating:
        return made
    # NaN where one of those compared was NaN, which tract skips
    odd = write(*(h.cast(h.is_nan(v), DType.int32) for v in (start, new)), "max")
    return h.emit("select", h.emit("gt", odd, 0), h.const(math.nan, made), made)


def _neutral(reduce, dtype):
    """What changes no result of a reduction."""
    if reduce in ("amax", "amin"):
        low, high = (-math.inf, math.inf) if dtype.is_float else _limits(dtype)
        return low if reduce == "amax" else high
    return int(reduce == "prod")


def _limits(dtype):
    return (False, True) if dtype is DType.bool else (int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max))


@op("aten::scatter", "aten::scatter_add")
def scatter(h, self, dim, index, src=None, value=None, reduce=None):
    updates = src
    if src is None:
        updates = h.expand(h.tensor(h.stored(value, self.type.dtype), self), index.type.shape)
    reduction = "add" if h.node.op == "aten::scatter_add" else _REDUCTIONS[reduce] if reduce else "none"
    return _scatter(h, self, dim, index, updates, reduction)


def _scatter(h, x, dim, index, updates, reduction):
    if x.type.rank == 0:
        x, index, updates = (h.reshape(v, [1]) for v in (x, index, updates))
        return h.squeeze(_scatter(h, x, 0, index, updates, reduction), [0])
    index, updates = (v if v.type.rank else h.reshape(v, [1]) for v in (index, updates))  # of a vector
    axis = h.axis(dim, x)
    for a, size in enumerate(index.type.shape):  # torch reads no further than the index reaches
        updates = updates if updates.type.shape[a] == size else h.slice(updates, a, 0, size)

    def write(x, new, how):
        return written(h, "tract_core_scatter_elements", x, index, new, how, axis=axis)

    return _rounded_once(h, x, updates, reduction, write)


@op("aten::scatter_reduce")
def scatter_reduce(h, self, dim, index, src, reduce, include_self=True):
    return _reduced(h, self, src, reduce, include_self, lambda x, new, how: _scatter(h, x, dim, index, new, how))


# -- what depends on data --------------------------------------------------------------------------------------------


@op("aten::nonzero", "aten::argwhere")
def nonzero(h, self):
    if self.type.rank == 0:
        h.refuse("nonzero of a tensor of rank 0 has the shape [n, 0]; reshape it to [1] first")
    return h.transpose(h.nonzero(self), [1, 0])


@op("aten::nonzero_numpy")
def nonzero_numpy(h, self):
    found = h.nonzero(self if self.type.rank else h.unsqueeze(self, [0]))
    return [h.squeeze(h.slice(found, 0, i, i + 1), [0]) for i in range(max(1, self.type.rank))]


@op("aten::where")
def where_alone(h, condition):
    """torch.where(condition): the overloads with values to choose from have a handler of their own."""
    return nonzero_numpy(h, condition)


@op("aten::masked_select")
def masked_select(h, self, mask):
    shape = runtime_broadcast(self.type.shape, mask.type.shape)
    flat = [h.reshape(h.expand(x, shape), [product(shape)]) for x in (self, mask)]
    return h.take(flat[0], *nonzero_numpy(h, flat[1]), 0)


def _runs(h, ordered):
    """Where runs of equal values start: a mask, and the number of each value's run."""
    h.must_count()
    (size,) = ordered.type.shape
    if size == 0:
        h.refuse("its input has no elements, and tract fails on a running sum over none")
    before = h.take(ordered, h.emit("max", h.emit("sub", h.positions(size), 1), 0), 0)
    starts = h.emit("or", h.emit("ne", ordered, before), h.emit("eq", h.positions(size), 0))
    number = h.emit("tract_core_cumsum", h.cast(starts, DType.int64), axis=0, exclusive=False, reverse=False)
    return starts, h.emit("sub", number, 1)


def _lengths(h, first, size):
    """How long each run is, from the places where they start."""
    count = first.type.shape[0]
    after = h.take(h.concat([first, h.unsqueeze(h.scalar(size, DType.int64), [0])], 0),
                   h.emit("add", h.positions(count), 1), 0)  # fmt: skip
    return h.emit("sub", after, first)


@op("aten::unique_consecutive")
def unique_consecutive(h, self, return_inverse=False, return_counts=False, dim=None):
    if dim is not None and self.type.rank != 1:
        h.refuse("dim of a tensor with several axes")
    x = h.reshape(self, [product(self.type.shape)])
    starts, number = _runs(h, x)
    (first,) = nonzero_numpy(h, starts)
    inverse = h.reshape(number, self.type.shape) if return_inverse else None
    return h.take(x, first, 0), inverse, _lengths(h, first, x.type.shape[0]) if return_counts else None


@op("aten::_unique2", "aten::_unique")
def unique(h, self, sorted=True, return_inverse=False, return_counts=False):
    h.must_count()
    ordered, order = sort(h, h.reshape(self, [product(self.type.shape)]))
    starts, number = _runs(h, ordered)
    (first,) = nonzero_numpy(h, starts)
    number = h.emit("tract_core_scatter_elements", number, order, number, axis=0, reduction="none")
    inverse = h.reshape(number, self.type.shape) if return_inverse else None
    counts = _lengths(h, first, ordered.type.shape[0]) if return_counts else None
    return [h.take(ordered, first, 0), inverse, counts][: len(h.results)]  # of the older _unique, two


_COUNTS = "tract counts nothing but what is not zero"
_OUTSIDE = "compute it outside of the model"
_ELSE = {
    "aten::bincount": "torch.zeros(n).scatter_add(0, x, torch.ones_like(x, dtype=torch.float32)) counts to a fixed n"
}


def _depends(h, **arguments):
    h.refuse(f"the size of the result depends on data, and {_COUNTS}; {_ELSE.get(h.node.op, _OUTSIDE)}")


rows(dict.fromkeys(("unique_dim", "bincount"), _depends))
