"""Many numbers in, fewer out: sums, extremes, statistics, norms; running totals and order along an axis."""

from __future__ import annotations

import math

from ir.dims import Expr, floordiv, maximum, product
from ir.geometry import invert
from ir.types import DType
from nnef_backend.exact import quotient
from nnef_backend.registry import register as op
from nnef_backend.registry import rows

LONG = 50_000  # from about here on tract's sums in f32 lose digits, as it adds up one by one


# -- sums ------------------------------------------------------------------------------------------------------------


@op("aten::sum")
def sum_(h, self, dim=None, keepdim=False, dtype=None):
    return _summed(h, "sum_reduce", h.cast(self, h.out.dtype), dim, keepdim)


@op("aten::mean")
def mean(h, self, dim=None, keepdim=False, dtype=None):
    return _summed(h, "mean_reduce", h.cast(self, h.out.dtype), dim, keepdim)


@op("aten::nansum")
def nansum(h, self, dim=None, keepdim=False, dtype=None):
    x = h.cast(self, h.out.dtype)
    x = h.emit("select", h.is_nan(x), 0, x) if x.type.dtype.is_float else x
    return _summed(h, "sum_reduce", x, dim, keepdim)


@op("aten::prod")
def prod(h, self, dim=None, keepdim=False, dtype=None):
    return h.reduce("tract_core_product_reduce", h.cast(self, h.out.dtype), dim, keepdim)


@op("aten::count_nonzero")
def count_nonzero(h, self, dim=None):
    return h.reduce("sum_reduce", h.cast(_truth(h, self), DType.int64), dim)


def _summed(h, op, x, dim, keepdim=False):
    dtype = x.type.dtype
    size = product([s for i, s in enumerate(x.type.shape) if i in h.axes(dim, x) and not isinstance(s, Expr)])
    if dtype is DType.float32 and size > LONG:
        return h.cast(h.reduce(op, h.cast(x, DType.float64), dim, keepdim), dtype)
    return h.reduce(op, x, dim, keepdim)


# -- extremes --------------------------------------------------------------------------------------------------------


@op("aten::amax", "aten::max")
def amax(h, self, dim=None, keepdim=False):
    return _extreme(h, "max", self, dim, keepdim)


@op("aten::amin", "aten::min")
def amin(h, self, dim=None, keepdim=False):
    return _extreme(h, "min", self, dim, keepdim)


@op("aten::aminmax")
def aminmax(h, self, dim=None, keepdim=False):
    return _extreme(h, "min", self, dim, keepdim), _extreme(h, "max", self, dim, keepdim)


def _extreme(h, op, x, dim, keepdim):
    """A largest or smallest element; tract skips NaN, and its search starts from the largest finite number."""
    made = h.reduce(f"{op}_reduce", x, dim, keepdim)
    if not x.type.dtype.is_float:
        return made
    last = -math.inf if op == "max" else math.inf
    found = h.reduce("any_reduce", h.emit("ne", x, last), dim, keepdim)
    made = h.emit("select", found, made, h.const(last, x))
    odd = h.reduce("any_reduce", h.is_nan(x), dim, keepdim)
    return h.emit("select", odd, h.const(math.nan, x), made)


@op("aten::max.dim")
def max_dim(h, self, dim, keepdim=False):
    return _extreme(h, "max", self, dim, keepdim), _place(h, "argmax_reduce", self, dim, keepdim)


@op("aten::min.dim")
def min_dim(h, self, dim, keepdim=False):
    return _extreme(h, "min", self, dim, keepdim), _place(h, "argmin_reduce", self, dim, keepdim)


@op("aten::argmax")
def argmax(h, self, dim=None, keepdim=False):
    return _place(h, "argmax_reduce", self, dim, keepdim)


@op("aten::argmin")
def argmin(h, self, dim=None, keepdim=False):
    return _place(h, "argmin_reduce", self, dim, keepdim)


def _place(h, op, x, dim, keepdim):
    """The first place of an extreme, or of NaN where there is one."""
    if dim is None:
        flat = h.reshape(x, [product(x.type.shape)])
        return h.reshape(_place(h, op, flat, 0, False), h.out.shape)
    place = h.reduce(op, x, dim, keepdim)
    if not x.type.dtype.is_float:
        return place
    odd = h.is_nan(x)
    first = h.reduce("argmax_reduce", odd, dim, keepdim)
    return h.emit("select", h.reduce("any_reduce", odd, dim, keepdim), first, place)


# -- truth -----------------------------------------------------------------------------------------------------------


@op("aten::any")
def any_(h, self, dim=None, keepdim=False):
    return h.cast(h.reduce("any_reduce", _truth(h, self), dim, keepdim), h.out.dtype)


@op("aten::all")
def all_(h, self, dim=None, keepdim=False):
    return h.cast(h.reduce("all_reduce", _truth(h, self), dim, keepdim), h.out.dtype)


def _truth(h, x):
    return h.cast(x, DType.bool)


# -- statistics ------------------------------------------------------------------------------------------------------


@op("aten::var")
def var(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    return _moments(h, self, dim, unbiased, correction, keepdim)[0]


@op("aten::std")
def std(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    return h.emit("sqrt", _moments(h, self, dim, unbiased, correction, keepdim)[0])


@op("aten::var_mean")
def var_mean(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    return _moments(h, self, dim, unbiased, correction, keepdim)


@op("aten::std_mean")
def std_mean(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    variance, middle = _moments(h, self, dim, unbiased, correction, keepdim)
    return h.emit("sqrt", variance), middle


def _moments(h, x, dim, unbiased, correction, keepdim):
    correction = 0 if not unbiased else 1 if correction is None else correction
    axes = h.axes(dim, x) if x.type.rank else []
    middle = _summed(h, "mean_reduce", x, axes, keepdim=True) if axes else x
    apart = h.emit("sub", x, middle)
    squares = h.emit("mul", apart, apart)
    total = _summed(h, "sum_reduce", squares, axes, keepdim) if axes else squares
    sizes = [x.type.shape[a] for a in axes]
    freedom = product(sizes) - correction
    freedom = h.tensor(freedom if isinstance(freedom, Expr) else maximum(freedom, 0), x)
    freedom = freedom if freedom.array is not None else h.emit("max", freedom, 0)
    return quotient(h, total, freedom), middle if keepdim else h.squeeze(middle, sorted(axes))


@op("aten::logsumexp", "aten::special_logsumexp")
def logsumexp(h, self, dim, keepdim=False):
    axes = h.axes(dim, self)
    if self.type.rank and any(self.type.shape[a] == 0 for a in axes):  # nothing has no largest element
        return h.expand(h.const(-math.inf, h.out.dtype), h.out.shape)
    top = _extreme(h, "max", self, axes, True)
    top = h.emit("select", h.emit("eq", h.emit("abs", top), math.inf), 0.0, top)
    total = _summed(h, "sum_reduce", h.emit("exp", h.emit("sub", self, top)), axes, True)
    made = h.emit("add", h.emit("log", total), top)
    return made if keepdim or not self.type.rank else h.squeeze(made, sorted(axes))


# -- norms -----------------------------------------------------------------------------------------------------------


@op("aten::linalg_vector_norm")
def vector_norm(h, self, ord=2, dim=None, keepdim=False, dtype=None):
    return h.cast(_vector_norm(h, h.floating(h.cast(self, h.out.dtype)), ord, dim, keepdim), h.out.dtype)


def _vector_norm(h, x, ord, dim, keepdim):
    x = h.emit("abs", x)
    if math.isinf(ord):
        return _extreme(h, "max" if ord > 0 else "min", x, dim, keepdim)
    if ord == 0:
        return _summed(h, "sum_reduce", h.cast(h.emit("ne", x, 0.0), x.type.dtype), dim, keepdim)
    powered = x if ord == 1 else h.emit("mul", x, x) if ord == 2 else h.emit("pow", x, float(ord))
    total = _summed(h, "sum_reduce", powered, dim, keepdim)
    return total if ord == 1 else h.emit("sqrt", total) if ord == 2 else h.emit("pow", total, 1.0 / ord)


@op("aten::norm")
def norm(h, self, p=2, dim=None, keepdim=False, dtype=None):
    return vector_norm(h, self, 2 if p is None else p, dim, keepdim, dtype)


@op("aten::cdist", "aten::_cdist_forward")
def cdist(h, x1, x2, p=2, compute_mode=None):
    rank = h.out.rank
    x1, x2 = h.align(x1, x2)
    apart = h.emit("sub", h.unsqueeze(x1, [rank - 1]), h.unsqueeze(x2, [rank - 2]))
    return vector_norm(h, apart, p, rank)


# -- running totals --------------------------------------------------------------------------------------------------


@op("aten::cumsum")
def cumsum(h, self, dim, dtype=None):
    x = h.cast(self, h.out.dtype)
    return (
        x if x.type.rank == 0 else h.emit("tract_core_cumsum", x, axis=h.axis(dim, x), exclusive=False, reverse=False)
    )


def _running(h, x, dim, states, step):
    """A scan along an axis: `step(slice, states)` gives the new states, which are stacked as well."""
    axis = h.axis(dim, x)
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    front = h.transpose(x, order)

    def body(slices, before):
        after = step(h.squeeze(slices[0], [0]), before)
        return after, after

    shape = front.type.shape[1:]
    stacks = h.scan(h.node.name, [front], [h.expand(s, shape) for s in states], body)[1]
    return [h.transpose(stack, invert(order)) for stack in stacks]


@op("aten::cumprod")
def cumprod(h, self, dim, dtype=None):
    x = h.cast(self, h.out.dtype)
    if x.type.rank == 0:
        return x
    return _running(h, x, dim, [h.const(1, x)], lambda x, states: [h.emit("mul", states[0], x)])[0]


@op("aten::logcumsumexp")
def logcumsumexp(h, self, dim):
    def step(x, states):
        top, apart = h.extreme("max", x, states[0]), h.emit("abs", h.emit("sub", x, states[0]))
        sum_ = h.emit("add", top, h.emit("log", h.emit("add", h.emit("exp", h.emit("neg", apart)), 1.0)))
        return [h.emit("select", h.emit("eq", h.emit("abs", top), math.inf), top, sum_)]

    return self if self.type.rank == 0 else _running(h, self, dim, [h.const(-math.inf, self)], step)[0]


@op("aten::cummax")
def cummax(h, self, dim):
    return _running_extreme(h, self, dim, "ge")


@op("aten::cummin")
def cummin(h, self, dim):
    return _running_extreme(h, self, dim, "le")


def _running_extreme(h, x, dim, beats):
    """The extreme so far and its last place; NaN stays once it came."""
    if x.type.rank == 0:
        return x, h.const(0, DType.int64)
    axis, floating = h.axis(dim, x), x.type.dtype.is_float

    def step(now, states):
        best, place, count = states
        wins = h.emit(beats, now, best)
        wins = h.emit("or", wins, h.is_nan(now)) if floating else wins
        wins = h.emit("or", wins, h.emit("eq", count, 0))
        best, place = h.emit("select", wins, now, best), h.emit("select", wins, count, place)
        return [best, place, h.emit("add", count, 1)]

    zero = h.const(0, DType.int64)
    return _running(h, x, axis, [h.const(0, x), zero, zero], step)[:2]


# -- order -----------------------------------------------------------------------------------------------------------


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
    key, size = _key(h, x), x.type.shape[axis]
    if isinstance(size, Expr) or isinstance(k, Expr):
        places = _ranked(h, key, axis, largest)
        places = h.slice(places, axis, 0, k)
    else:
        shape = [k if i == axis else s for i, s in enumerate(x.type.shape)]
        values, places = h.emit("tract_core_topk", key, k, axis=axis, largest=largest, outputs=2, shape=[shape, shape])
        if key is x:
            return values, places
    return h.emit("tract_core_gather_elements", x, places, axis=axis), places


def _ranked(h, key, axis, largest):
    """The order along an axis of dynamic size, which tract's topk does not take: how many come before each one."""
    size = key.type.shape[axis]
    others, each = h.unsqueeze(key, [axis]), h.unsqueeze(key, [axis + 1])  # [.., each, others, ..]
    place = h.positions(size)
    tail = list(range(2, 2 + key.type.rank - axis - 1))
    earlier = h.unsqueeze(h.emit("lt", h.unsqueeze(place, [0]), h.unsqueeze(place, [1])), tail)
    before = h.emit("gt" if largest else "lt", others, each)
    before = h.emit("or", before, h.emit("and", h.emit("eq", others, each), earlier))
    rank = h.reduce("sum_reduce", h.cast(before, DType.int64), axis + 1)
    places = h.expand(h.unsqueeze(place, list(range(1, key.type.rank - axis))), key.type.shape)
    return h.emit("tract_core_scatter_elements", places, rank, places, axis=axis, reduction="none")


def _key(h, x):
    """Numbers in the same order that tract can compare: in f64 there is room above the largest f32."""
    if not x.type.dtype.is_float:
        return x
    key, odd = h.cast(x, DType.float64), h.is_nan(x)
    top = 1.7976931348623157e308 if x.type.dtype is DType.float64 else 1e300
    return h.emit("select", odd, math.inf, h.emit("min", h.emit("select", odd, 0.0, key), top))


rows({
    "nanmean": lambda h, self, dim=None, keepdim=False, dtype=None: quotient(
        h, nansum(h, self, dim, keepdim), _summed(
            h, "sum_reduce", h.cast(h.emit("not", h.is_nan(self)), h.out.dtype), dim, keepdim)),
    "dist": lambda h, self, other, p=2: vector_norm(h, h.emit("sub", self, other), p),
})  # fmt: skip
