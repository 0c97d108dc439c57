"""Writing by computed positions."""

from __future__ import annotations

import math

from ir import geometry
from ir.dims import Expr, maximum
from ir.types import DType
from onnx_backend.handlers.elementwise import LARGEST
from onnx_backend.handlers.index import flat, is_mask, places, stacked
from onnx_backend.registry import register as op

REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
FIRST = {"add": 16, "mul": 16, "max": 18, "min": 18}
BEFORE = {  # what reduces, what joins with the old content, and whose neutral element stands elsewhere
    "add": ("ReduceSum", "Add", "sum"),
    "mul": ("ReduceProd", "Mul", "prod"),
    "max": ("ReduceMax", "Max", "amax"),
    "min": ("ReduceMin", "Min", "amin"),
}


def scatter_elements(h, x, axis, index, updates, reduction=None):
    """ONNX's ScatterElements; what writes several times to one place needs a reduction."""
    dtype, work = x.type.dtype, summed_in(x.type.dtype, reduction)
    write = _compared if reduction and h.opset < FIRST[reduction] else _scattered
    made = write(h, h.cast(x, work), axis, index, h.cast(updates, work), reduction)
    if reduction in ("max", "min") and dtype.is_float:
        made = h.emit("Where", _reached_by_nan(h, x, axis, index, updates), h.const(math.nan, work), made)
    return h.cast(made, dtype)


def _scattered(h, x, axis, index, updates, reduction):
    return h.emit("ScatterElements", x, index, updates, axis=axis, reduction=reduction, shape=x.type.shape)


def _compared(h, x, axis, index, updates, reduction):
    """Before ScatterElements had the reduction: each place takes, out of all that is written, what is written there."""
    if any(t.type.shape[a] != s for t in (index, updates) for a, s in enumerate(x.type.shape) if a != axis):
        h.refuse(f"it needs ScatterElements with reduction={reduction!r}; use opset={FIRST[reduction]}")
    size, dtype = x.type.shape[axis], x.type.dtype
    places = h.along(h.range(0, size, size=size), x.type.rank + 1, axis)
    here = h.emit("Equal", h.unsqueeze(h.cast(index, DType.int64), [axis]), places)
    reduce, join, nothing = BEFORE[reduction]
    each = h.emit("Where", here, h.unsqueeze(updates, [axis]), h.const(neutral(nothing, dtype), dtype))
    return h.emit(join, x, h.reduce(reduce, each, [axis + 1]))


def _reached_by_nan(h, x, axis, index, updates):
    """Where a nan is or is written to; onnxruntime's maxima and minima skip it."""
    there, written = (h.cast(h.emit("IsNaN", t), DType.int32) for t in (x, updates))
    return h.cast(scatter_elements(h, there, axis, index, written, "max"), DType.bool)


def scatter_nd(h, x, index, updates, accumulate=False):
    reduction = "add" if accumulate else None
    if accumulate and h.opset < 16:
        h.refuse("it needs ScatterND with reduction='add'; use opset=16")
    dtype, work = x.type.dtype, summed_in(x.type.dtype, reduction)
    made = h.emit("ScatterND", h.cast(x, work), index, h.cast(updates, work), reduction=reduction, shape=x.type.shape)
    return h.cast(made, dtype)


def summed_in(dtype, reduction):
    """onnxruntime's scattering kernels take every type, but not with every reduction, and say so at run time only."""
    if reduction is None:
        return dtype
    return {DType.float16: DType.float32, DType.bfloat16: DType.float32, DType.bool: DType.int32}.get(dtype, dtype)


# -- scatter -----------------------------------------------------------------------------------------------------------


@op("aten::scatter", "aten::scatter_add")
def scatter(h, self, dim, index, src=None, value=None, reduce=None):
    reduce = "add" if h.node.op == "aten::scatter_add" else reduce
    dtype = self.type.dtype
    updates = h.full(index.type.shape, h.stored(value, dtype), dtype) if src is None else fitted(h, src, index)
    return scattered(h, self, dim, index, updates, REDUCTIONS[reduce] if reduce else None)


def fitted(h, src, index):
    """The part of the source that the index speaks of: the source may be larger. A 0-d one is one of one element."""
    if index.type.rank == 0:
        return h.reshape(src if src.type.rank == 0 else h.slice(src, 0, 0, 1, size=1), ())
    if src.type.rank == 0:
        src = h.reshape(src, [1])
    for axis, (have, want) in enumerate(zip(src.type.shape, index.type.shape, strict=True)):
        if have != want:
            src = h.slice(src, axis, 0, want, size=want)
    return src


def scattered(h, x, dim, index, updates, reduction=None):
    if x.type.rank == 0:
        x, index, updates = (h.reshape(t, [1]) for t in (x, index, updates))
        return h.reshape(scatter_elements(h, x, 0, index, updates, reduction), ())
    if index.type.rank == 0:
        index, updates = h.reshape(index, [1]), h.reshape(updates, [1])
    return scatter_elements(h, x, h.axis(dim, x), index, updates, reduction)


@op("aten::scatter_reduce")
def scatter_reduce(h, self, dim, index, src, reduce, include_self=True):
    return combine(h, self, dim, index, fitted(h, src, index), reduce, include_self)


def combine(h, x, dim, index, updates, reduce, include_self):
    """A reduction at each place; without the old content, the neutral element is written there first."""
    dtype = x.type.dtype
    if not include_self:
        x = scattered(h, x, dim, index, h.full(index.type.shape, neutral(reduce, dtype), dtype))
    if reduce != "mean":
        return scattered(h, x, dim, index, updates, REDUCTIONS[reduce])
    total = scattered(h, x, dim, index, updates, "add")
    start = h.full(x.type.shape, int(include_self), dtype)
    counted = scattered(h, start, dim, index, h.full(index.type.shape, 1, dtype), "add")
    counted = counted if include_self else h.emit("Max", counted, 1)
    if dtype.is_float:
        return h.emit("Div", total, counted)
    return h.emit("Div", h.emit("Sub", total, h.emit("Mod", total, counted)), counted)


def neutral(reduce, dtype):
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    high = reduce == "amin"
    if dtype in LARGEST:
        return math.inf if high else -math.inf
    low = 0 if dtype.kind == "uint" else -(2 ** (dtype.bits - 1))
    return low + 2**dtype.bits - 1 if high else low


# -- by the indices of one axis ----------------------------------------------------------------------------------------


def along(h, index, shape, axis):
    """A vector of indices spread over a whole shape."""
    if not shape:
        return h.reshape(index, ())
    index = index if index.type.rank else h.unsqueeze(index, [0])
    return h.expand(h.along(h.cast(index, DType.int64), len(shape), axis), shape)


def write(h, x, dim, index, source, reduction=None):
    """Rows of one axis written: by ScatterND where that axis is the first."""
    if 0 in x.type.shape:  # there is nothing to write to, and onnxruntime spreads no index over no rows
        return x
    if x.type.rank == 0 or source.type.rank == 0:
        return scattered(h, x, 0, index, source, reduction)
    axis = h.axis(dim, x)
    if axis == 0 and (reduction is None or (reduction == "add" and h.opset >= 16)) and index.type.rank == 1:
        return scatter_nd(h, x, h.unsqueeze(h.cast(index, DType.int64), [1]), source, bool(reduction))
    return scatter_elements(h, x, axis, along(h, index, source.type.shape, axis), source, reduction)


@op("aten::index_add")
def index_add(h, self, dim, index, source, alpha=1):
    source = h.cast(source, self.type.dtype)
    return write(h, self, dim, index, source if alpha == 1 else h.emit("Mul", source, alpha), "add")


@op("aten::index_copy")
def index_copy(h, self, dim, index, source):
    return write(h, self, dim, index, source)


@op("aten::index_fill")
def index_fill(h, self, dim, index, value):
    value = h.stored(value, self.type.dtype)
    if self.type.rank == 0:
        return h.tensor(value, self)
    axis = h.axis(dim, self)
    index = index if index.type.rank else h.unsqueeze(index, [0])
    size = index.type.shape[0]
    if isinstance(size, int) and size <= FEW and h.may_be_empty(self.type.shape[axis]):
        return fill_named(h, self, axis, index, value)
    shape = [size if i == axis else s for i, s in enumerate(self.type.shape)]
    return write(h, self, dim, index, h.full(shape, value, self.type.dtype))


FEW = 16  # rows that are looked for one by one


def fill_named(h, x, axis, index, value):
    """A fill by a mask: torch allows any index into an axis without elements, onnxruntime's scatters do not."""
    size = x.type.shape[axis]
    index = h.cast(index, DType.int64)
    index = h.emit("Where", h.emit("Less", index, 0), h.emit("Add", index, h.tensor(size, DType.int64)), index)
    here = h.emit("Equal", h.unsqueeze(h.range(0, size, size=size), [1]), h.unsqueeze(index, [0]))
    mask = h.cast(h.reduce("ReduceMax", h.cast(here, DType.int32), [1]), DType.bool)
    return h.emit("Where", h.along(mask, x.type.rank, axis), h.tensor(value, x), x)


@op("aten::index_reduce")
def index_reduce(h, self, dim, index, source, reduce, include_self=True):
    axis = h.axis(dim, self)
    return combine(h, self, dim, along(h, index, source.type.shape, axis), source, reduce, include_self)


# -- x[...] = ----------------------------------------------------------------------------------------------------------


@op("aten::index_put", "aten::_unsafe_index_put")
def index_put(h, self, indices, values, accumulate=False):
    values = h.cast(values, self.type.dtype)
    known = [i for i, t in enumerate(indices) if t is not None]
    first = indices[known[0]]
    if len(known) == 1 and is_mask(first):
        after = self.type.rank - known[0] - first.type.rank
        if values.type.rank <= after or values.type.shape[-after - 1] == 1:
            return fill_mask(h, self, first, after, values, accumulate)
        if values.type.rank + first.type.rank - 1 <= self.type.rank:
            return scattered_values(h, self, first, known[0], after, values, accumulate)
    p = places(h, self, indices)
    rest = [self.type.shape[i] for i in p.front[len(p.axes) :]]
    order = p.to_torch(len(rest))
    target = [[*p.shape, *rest][i] for i in order]
    values = h.transpose(h.expand(values, target), geometry.invert(order))
    x = h.transpose(self, p.front)
    return h.transpose(scatter_nd(h, x, stacked(h, p), values, accumulate), geometry.invert(p.front))


def fill_mask(h, x, mask, after, values, accumulate):
    """The same values, which may vary along the axes after the mask's and before them, at every hit."""
    mask = h.unsqueeze(h.cast(mask, DType.bool), range(mask.type.rank, mask.type.rank + after))
    if all(s == 1 for s in values.type.shape):
        values = h.reshape(values, ())
    elif values.type.rank > after:  # one axis of hits stands for all of the mask's
        hits = values.type.rank - after
        values = h.unsqueeze(values, range(hits, hits + mask.type.rank - after - 1))
    return h.emit("Where", mask, h.emit("Add", x, values) if accumulate else values, x)


def scattered_values(h, x, mask, axis, after, values, accumulate):
    """The n-th hit of a mask over the axes from `axis` on takes the n-th element, or all the only one."""
    values = h.unsqueeze(values, range(axis + 1 + after - values.type.rank))
    count, place = h.tensor(values.type.shape[axis], DType.int64), running(h, mask)
    found = h.reduce("ReduceSum", h.cast(flat(h, mask), DType.int64))
    only = h.emit("Equal", count, 1)
    x = h.require(
        x, h.emit("Or", h.emit("Equal", found, count), only), "the mask selects as many places as are assigned"
    )
    place = place if isinstance(values.type.shape[axis], int) else h.emit("Where", only, 0, place)
    spare = [1 if i == axis else s for i, s in enumerate(values.type.shape)]  # there is one to read without any hit
    values = h.concat([values, h.full(spare, 0, values.type.dtype)], axis)
    found = h.emit("Gather", values, place, axis=axis)
    shape = [*values.type.shape[:axis], *mask.type.shape, *values.type.shape[axis + 1 :]]
    found = h.reshape(found, shape)
    mask = h.unsqueeze(h.cast(mask, DType.bool), range(mask.type.rank, mask.type.rank + after))
    return h.emit("Where", mask, h.emit("Add", x, found) if accumulate else found, x)


def running(h, mask):
    """Which hit of the mask each of its elements would be, in one row."""
    return h.emit("Sub", counted(h, mask), 1)


def counted(h, mask):
    """The hits of a mask up to each of its elements, in one row."""
    return h.emit("CumSum", h.cast(flat(h, mask), DType.int64), h.const(0))


@op("aten::masked_scatter")
def masked_scatter(h, self, mask, source):
    """The n-th hit takes the n-th element: their running count is the place to read, behind one for none so far."""
    shape = geometry.broadcast(self.type.shape, mask.type.shape)
    mask, row = h.expand(mask, shape), flat(h, source)
    spare = h.full([1], 0, row.type.dtype)
    found = h.reshape(h.emit("Gather", h.concat([spare, row], 0), counted(h, mask), axis=0), shape)
    return h.emit("Where", mask, found, self)


# -- writes to a part that is known ------------------------------------------------------------------------------------


@op("aten::select_scatter")
def select_scatter(h, self, src, dim, index):
    """Natively, for the place may be one that data decides, which no decomposition is traced for."""
    axis = h.axis(dim, self)
    size = self.type.shape[axis]
    at = index if isinstance(index, Expr) or index >= 0 else index + size
    here = h.emit("Equal", h.range(0, size, size=size), h.tensor(at, DType.int64))
    mask = h.along(here, self.type.rank, axis)
    return h.emit("Where", mask, h.unsqueeze(h.cast(src, self.type.dtype), [axis]), self)


@op("aten::slice_scatter")
def slice_scatter(h, self, src, dim=0, start=None, end=None, step=1):
    axis, src = h.axis(dim, self), h.cast(src, self.type.dtype)
    size, length = self.type.shape[axis], src.type.shape[axis]
    if src.type.shape == self.type.shape:
        return src
    start = 0 if start is None else start
    start = maximum(start + size, 0) if isinstance(start, int) and start < 0 else start
    if step != 1:
        index = h.emit("Add", h.emit("Mul", h.range(0, length, size=length), step), h.tensor(start, DType.int64))
        return write(h, self, axis, index, src)
    stop = start + length
    before = [] if start == 0 else [h.slice(self, axis, 0, start, size=start)]
    after = [] if stop == size else [h.slice(self, axis, stop, 2**31 - 1, size=size - stop)]
    return h.concat([*before, src, *after], axis)


@op("aten::embedding_renorm")
def embedding_renorm(h, self, indices, max_norm, norm_type=2.0):
    """The rows that the indices name, scaled down to the largest norm allowed."""
    if norm_type not in (1.0, 2.0):
        h.refuse(f"norm_type={norm_type}: 1 and 2 have an op")
    norm = h.reduce(f"ReduceL{int(norm_type)}", self, [1], True)
    rows, read = norm.type.shape, flat(h, indices)
    named = scatter_elements(h, h.full(rows[:1], 0, DType.int32), 0, read, h.full(read.type.shape, 1, DType.int32))
    cut = h.emit("And", h.unsqueeze(h.cast(named, DType.bool), [1]), h.emit("Greater", norm, max_norm))
    scale = h.emit("Div", h.const(max_norm, norm), h.emit("Add", norm, 1e-7))
    return h.emit("Where", cut, h.emit("Mul", self, scale), self)
