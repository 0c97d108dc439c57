"""Many numbers in, fewer out: sums, extremes, statistics, norms; running totals and order along an axis."""

from __future__ import annotations

import math

from ir.dims import Expr, maximum, minimum, product
from ir.geometry import invert
from ir.types import DType
from nnef_backend.building.exact import quotient
from nnef_backend.building.reshaping import at_least
from nnef_backend.building.sizes import opaque_size
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
    return _nonempty(h, _extreme(h, "max", self, dim, keepdim), self, dim)


@op("aten::amin", "aten::min")
def amin(h, self, dim=None, keepdim=False):
    return _nonempty(h, _extreme(h, "min", self, dim, keepdim), self, dim)


@op("aten::aminmax")
def aminmax(h, self, dim=None, keepdim=False):
    return amin(h, self, dim, keepdim), amax(h, self, dim, keepdim)


def _nonempty(h, made, x, dim):
    """What was made of `x`, in runs where its axes have elements: torch refuses the largest of none."""
    for axis in h.axes(dim, x) if x.type.rank else ():
        made = at_least(h, made, x.type.shape[axis], 1)
    return made


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
    return amax(h, self, dim, keepdim), argmax(h, self, dim, keepdim)


@op("aten::min.dim")
def min_dim(h, self, dim, keepdim=False):
    return amin(h, self, dim, keepdim), argmin(h, self, dim, keepdim)


@op("aten::argmax")
def argmax(h, self, dim=None, keepdim=False):
    return _nonempty(h, _place(h, "argmax_reduce", self, dim, keepdim), self, dim)


@op("aten::argmin")
def argmin(h, self, dim=None, keepdim=False):
    return _nonempty(h, _place(h, "argmin_reduce", self, dim, keepdim), self, dim)


def _place(h, op, x, dim, keepdim):
    """The first place of an extreme, or of NaN where there is one."""
    if dim is None:
        flat = h.reshape(x, [product(x.type.shape)])
        return h.reshape(_place(h, op, flat, 0, False), h.out.shape)
    if not x.type.dtype.is_float:
        return h.reduce(op, x, dim, keepdim)
    # tract's own search begins with the largest finite number, and finds the first place where no other is beyond that
    extreme, odd = h.reduce(op.replace("arg", ""), x, dim, True), h.is_nan(x)
    hit = h.emit("select", h.reduce("any_reduce", odd, dim, True), odd, h.emit("eq", x, extreme))
    return h.reduce("argmax_reduce", hit, dim, keepdim)


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
    """In f64: of 2e19 the square is infinite in f32, and neither the variance of many nor a deviation has to be."""
    variance = _moments(h, _wide(h, self), dim, unbiased, correction, keepdim)[0]
    return h.cast(variance, h.out.dtype)


@op("aten::std")
def std(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    variance = _moments(h, _wide(h, self), dim, unbiased, correction, keepdim)[0]
    return h.cast(h.emit("sqrt", variance), h.out.dtype)


@op("aten::var_mean")
def var_mean(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    return _rounded(h, _var_mean(h, _wide(h, self), dim, unbiased, correction, keepdim))


@op("aten::std_mean")
def std_mean(h, self, dim=None, unbiased=True, correction=1, keepdim=False):
    variance, middle = _var_mean(h, _wide(h, self), dim, unbiased, correction, keepdim)
    return _rounded(h, (h.emit("sqrt", variance), middle))


def _var_mean(h, x, dim, unbiased, correction, keepdim):
    variance, middle = _moments(h, x, dim, unbiased, correction, keepdim)
    return variance, _updated_mean(h, x, middle, dim, keepdim)


def _rounded(h, xs):
    return tuple(h.cast(x, h.out.dtype) for x in xs)


def _wide(h, x):
    return h.cast(x, DType.float64) if h.target.tract else h.floating(x)  # the standard has floats alone


def _updated_mean(h, x, middle, dim, keepdim):
    """The mean as Welford's updates leave it: NaN after infinity, unless that is the last element."""
    if not x.type.rank:
        return middle
    before = None
    for axis in h.axes(dim, x):
        size = x.type.shape[axis]
        place = h.unsqueeze(h.positions(size), list(range(1, x.type.rank - axis)))
        place = h.emit("lt", place, h.tensor(size - 1, DType.int64))
        before = place if before is None else h.emit("or", before, place)
    endless = h.emit("eq", h.emit("abs", x), math.inf)
    earlier = h.reduce("any_reduce", h.emit("and", endless, before), dim, keepdim)
    return h.emit("select", earlier, h.const(math.nan, middle), middle)


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
    if correction < 0:  # the variance of nothing is nan
        freedom = h.emit("mul", freedom, h.tensor(minimum(product(sizes), 1), x))
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
    if isinstance(ord, Expr):
        ord = h.static(ord, "the order of the norm")
    return h.cast(_vector_norm(h, h.floating(h.cast(self, h.out.dtype)), ord, dim, keepdim), h.out.dtype)


def _vector_norm(h, x, ord, dim, keepdim):
    """Of one number it is its absolute value, to torch as well: a power and its root would lose digits or overflow."""
    count = product([x.type.shape[a] for a in h.axes(dim, x)]) if x.type.rank else 1
    if ord in (0, 1) or math.isinf(ord) or not (count == 1 or isinstance(count, Expr)):
        return _norm_of_several(h, x, ord, dim, keepdim)
    one = _norm_of_several(h, x, 1, dim, keepdim)
    if count == 1:
        return one
    alone = h.emit("eq", opaque_size(h, h.scalar(count, DType.int64)), 1)
    return h.emit("select", alone, one, _norm_of_several(h, x, ord, dim, keepdim))


def _norm_of_several(h, x, ord, dim, keepdim):
    x = h.emit("abs", x)
    if math.isinf(ord):
        return (amax if ord > 0 else amin)(h, x, dim, keepdim)
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
    if p in (0, math.inf):
        h.refuse("such a distance is no norm where there is nan; its decomposition is written")
    rank = h.out.rank
    x1, x2 = h.align(x1, x2)
    apart = h.emit("sub", h.unsqueeze(x1, [rank - 1]), h.unsqueeze(x2, [rank - 2]))
    return h.cast(_norm_of_several(h, h.floating(apart), p, rank, False), h.out.dtype)  # by a kernel of its own


# -- running totals --------------------------------------------------------------------------------------------------


@op("aten::cumsum")
def cumsum(h, self, dim, dtype=None):
    x = h.cast(self, h.out.dtype)
    if x.type.rank == 0:
        return x
    total = h.emit("tract_core_cumsum", _wider(h, x), axis=h.axis(dim, x), exclusive=False, reverse=False)
    return h.cast(total, h.out.dtype)


def _wider(h, x):
    """In what torch counts running totals: halves in f32, f32 in f64, so that what overflows may come back."""
    return _wide(h, x) if x.type.dtype is DType.float32 else h.floating(x)


def _running(h, x, dim, states, step):
    """A scan along an axis: `step(slice, states)` gives the new states, which are stacked as well."""
    axis = h.axis(dim, x)
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    front = h.transpose(x, order)

    def body(slices, before):
        # not squeezed: tract would move the axis between this loop and one along another axis, without end
        after = step(h.take(slices[0], h.const(0, DType.int64), 0), before)
        return after, after

    shape = front.type.shape[1:]
    stacks = h.scan(h.node.name, [front], [h.expand(s, shape) for s in states], body)[1]
    return [h.transpose(stack, invert(order)) for stack in stacks]


@op("aten::cumprod")
def cumprod(h, self, dim, dtype=None):
    x = h.cast(self, h.out.dtype)
    if x.type.rank == 0:
        return x
    x = _wider(h, x)
    made = _running(h, x, dim, [h.const(1, x)], lambda x, states: [h.emit("mul", states[0], x)])[0]
    return h.cast(made, h.out.dtype)


@op("aten::logcumsumexp")
def logcumsumexp(h, self, dim):
    def step(x, states):
        top, apart = h.extreme("max", x, states[0]), h.emit("abs", h.emit("sub", x, states[0]))
        sum_ = h.emit("add", top, h.emit("log", h.emit("add", h.emit("exp", h.emit("neg", apart)), 1.0)))
        return [h.emit("select", h.emit("eq", h.emit("abs", top), math.inf), top, sum_)]

    if self.type.rank == 0:
        return self
    x = h.cast(self, DType.float64)
    return h.cast(_running(h, x, dim, [h.const(-math.inf, x)], step)[0], self.type.dtype)


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


rows({
    "nanmean": lambda h, self, dim=None, keepdim=False, dtype=None: quotient(
        h, nansum(h, self, dim, keepdim), _summed(
            h, "sum_reduce", h.cast(h.emit("not", h.is_nan(self)), h.out.dtype), dim, keepdim)),
    "dist": lambda h, self, other, p=2: vector_norm(h, h.emit("sub", self, other), p),
})  # fmt: skip
