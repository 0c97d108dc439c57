"""Sums, extremes, statistics and norms; scans and sorting along an axis."""

from __future__ import annotations

import math

from ir import dims
from ir.bounds import bounds
from ir.dims import Expr
from ir.types import DType
from onnx_backend.registry import register as op


def reduced(h, op_type, x, dim, keepdim):
    """A Reduce op over torch's axes: None and [] are all of them."""
    return h.reduce(op_type, x, h.axes(dim, x), keepdim) if x.type.rank else x


def count(x, axes):
    """How many elements go into one result."""
    return dims.product(x.type.shape[a] for a in axes)


@op("aten::sum")
def sum_(h, self, dim=None, keepdim=False, dtype=None):
    return total(h, self, h.axes(dim, self), keepdim) if self.type.rank else self


def total(h, x, axes, keepdim=False):
    """The sum over axes; 64-bit integers as a product with ones, for onnxruntime adds them up as doubles."""
    if _wraps(x):  # where onnxruntime stops at the largest number
        return h.cast(total(h, h.cast(x, DType.int64), axes, keepdim), x.type.dtype)
    if x.type.dtype is not DType.int64 or from_narrow(x):
        return h.reduce("ReduceSum", x, axes, keepdim)
    kept, last = [i for i in range(x.type.rank) if i not in axes], [x.type.rank - 1]
    rows = h.transpose(x, [*kept, *axes])
    rows = h.reshape(rows, [*(x.type.shape[i] for i in kept), count(x, axes)])
    found = h.emit("MatMul", rows, h.full((count(x, axes), 1), 1, DType.int64))
    if keepdim and list(axes) == last:
        return found
    found = h.squeeze(found, [len(kept)])
    return h.unsqueeze(found, axes) if keepdim else found


def _wraps(x):
    """True for integers of fewer bits than those that sums and products are counted in."""
    return x.type.dtype.is_integer and x.type.dtype not in (DType.int64, DType.uint64, DType.bool)


def from_narrow(x):
    """True for integers that were of fewer bits: no sum of them comes near 2**53."""
    cast = x.made_by("Cast")
    return cast is not None and cast.inputs[0].dtype is not None and cast.inputs[0].dtype.bitwidth < 64


@op("aten::nansum")
def nansum(h, self, dim=None, keepdim=False, dtype=None):
    if self.type.dtype.is_float:
        self = h.emit("Where", h.emit("IsNaN", self), h.const(0, self), self)
    return sum_(h, self, dim, keepdim)


def average(h, x, axes, keepdim):
    """The mean, and nan for that of nothing: ReduceMean says 0 where an axis turns out empty."""
    if not any(h.may_be_empty(s) or (s == 1 and h.graph.symbols) for s in (x.type.shape[a] for a in axes)):
        return h.reduce("ReduceMean", x, axes, keepdim)
    wide = h.cast(x, DType.float32) if x.type.dtype.bits < 32 else x  # where the sum of halves could overflow
    total = h.reduce("ReduceSum", wide, axes, keepdim)
    return h.cast(h.emit("Div", total, _at_run_time(h, x, axes, total.type.dtype)), x.type.dtype)


def _at_run_time(h, x, axes, dtype):
    """The elements along axes, by the tensor's own sizes: a slice `x[:1]` of nothing has one row in the trace."""
    sizes = h.emit("Gather", h.emit("Shape", x), h.const(axes, DType.int64), axis=0)
    return h.cast(h.emit("ReduceProd", sizes, keepdims=0, shape=()), dtype)


@op("aten::mean")
def mean(h, self, dim=None, keepdim=False, dtype=None):
    return average(h, self, h.axes(dim, self), keepdim) if self.type.rank else self


@op("aten::prod", "prims::prod")
def prod(h, self=None, dim=None, keepdim=False, dtype=None, inp=None, dims=None, output_dtype=None):
    self = h.cast(self if inp is None else inp, h.out.dtype)
    dims = dim if dims is None else dims
    if _wraps(self):
        return h.cast(_whole_product(h, h.cast(self, DType.int64), h.axes(dims, self)), self.type.dtype)
    if self.type.dtype is DType.int64:
        return _whole_product(h, self, h.axes(dims, self))
    return reduced(h, "ReduceProd", self, dims, keepdim)


def _whole_product(h, x, axes):
    """A product of int64 by halves, one by one over a size of run time: onnxruntime's ReduceProd multiplies doubles."""
    for axis in axes if x.type.rank else []:
        count = x.type.shape[axis]
        if not isinstance(count, int) or not count:
            x, count = _product_one_by_one(h, x, axis), 1
        while count > 1:
            half, odd = divmod(count, 2)
            halves = [h.slice(x, axis, i, i + half, size=half) for i in (0, half)]
            pairs = h.emit("Mul", *halves, shape=halves[0].type.shape)
            x = h.concat([pairs, h.slice(x, axis, count - 1, count, size=1)], axis) if odd else pairs
            count = half + odd
    return h.reshape(x, h.out.shape)


def _product_one_by_one(h, x, axis):
    """The axis becomes one element; a 1 is put before the others, for it may have none."""
    shape = [1 if i == axis else s for i, s in enumerate(x.type.shape)]
    one = h.full(shape, 1, x.type.dtype)
    start = h.squeeze(one, [axis])
    (total,) = h.scan(lambda s, v: ([h.emit("Mul", s, v)], []), [start], [h.concat([one, x], axis)], axis)
    return h.reshape(total, shape)


# -- extremes ----------------------------------------------------------------------------------------------------------


@op("aten::amax")
def amax(h, self, dim=None, keepdim=False, op_type="ReduceMax"):
    result = reduced(h, op_type, h.nonempty(self, dim), dim, keepdim)
    if not self.type.dtype.is_float:
        return result
    unknown = reduced(h, "ReduceMax", h.emit("IsNaN", self), dim, keepdim)  # onnxruntime skips a nan on some axes
    return h.emit("Where", unknown, h.const(math.nan, self), result)


@op("aten::amin")
def amin(h, self, dim=None, keepdim=False):
    return amax(h, self, dim, keepdim, "ReduceMin")


@op("aten::aminmax")
def aminmax(h, self, dim=None, keepdim=False):
    return amin(h, self, dim, keepdim), amax(h, self, dim, keepdim)


def place(h, op_type, x, axis, keepdim):
    """The first place of an extreme along an axis; a nan counts as the extreme, as in torch."""
    shape = [1 if i == axis else s for i, s in enumerate(x.type.shape) if keepdim or i != axis]
    at = h.emit(op_type, x, axis=axis, keepdims=keepdim, shape=shape)
    return h.emit("Where", *unknown(h, x, axis, keepdim), at) if x.type.dtype.is_float else at


def unknown(h, x, axis, keepdim):
    """Whether there is a nan along an axis, and the place of the first one."""
    known = h.cast(h.emit("IsNaN", x), DType.int32)
    there = h.cast(h.reduce("ReduceMax", known, [axis], keepdim), DType.bool)
    return there, h.emit("ArgMax", known, axis=axis, keepdims=keepdim, shape=there.type.shape)


@op("aten::max")
def max_(h, self, dim=None, keepdim=False, other=None, extreme="Max"):
    if other is not None:
        dtype = h.out.dtype
        return h.emit(extreme, h.cast(self, dtype), h.cast(other, dtype))
    if dim is None:
        return amax(h, self, None, False, f"Reduce{extreme}")
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    axis = h.axis(dim, self)
    if not self.type.dtype.is_float:
        return amax(h, self, axis, keepdim, f"Reduce{extreme}"), place(h, f"Arg{extreme}", self, axis, keepdim)
    at = place(h, f"Arg{extreme}", self, axis, True)
    found = h.emit("GatherElements", self, at, axis=axis)
    return [found, at] if keepdim else [h.squeeze(x, [axis]) for x in (found, at)]


@op("aten::min")
def min_(h, self, dim=None, keepdim=False, other=None):
    return max_(h, self, dim, keepdim, other, "Min")


@op("aten::argmax")
def argmax(h, self, dim=None, keepdim=False, op_type="ArgMax"):
    if self.type.rank == 0:
        return h.const(0, DType.int64)
    if dim is None:
        flat = h.reshape(self, [count(self, range(self.type.rank))])
        return h.reshape(place(h, op_type, flat, 0, False), h.out.shape)
    return place(h, op_type, self, h.axis(dim, self), keepdim)


@op("aten::argmin")
def argmin(h, self, dim=None, keepdim=False):
    return argmax(h, self, dim, keepdim, "ArgMin")


# -- truth and counting ------------------------------------------------------------------------------------------------


@op("aten::any")
def any_(h, self, dim=None, keepdim=False, op_type="ReduceSum"):
    """Sums and products of int64: unlike extremes, they have a result for no elements."""
    truth = h.cast(h.cast(self, DType.bool), DType.int64)
    return h.cast(h.cast(reduced(h, op_type, truth, dim, keepdim), DType.bool), h.out.dtype)


@op("aten::all")
def all_(h, self, dim=None, keepdim=False):
    return any_(h, self, dim, keepdim, "ReduceProd")


@op("aten::count_nonzero")
def count_nonzero(h, self, dim=None):
    return reduced(h, "ReduceSum", h.cast(h.cast(self, DType.bool), DType.int64), dim, False)


# -- statistics --------------------------------------------------------------------------------------------------------


def moments(h, self, dim, unbiased, correction, keepdim):
    """Variance and mean, which of nothing matters only where it is a result; the correction is 1 by default."""
    less = int(unbiased) if correction is None else correction
    axes = h.axes(dim, self) if self.type.rank else []
    middle = self
    if axes:
        middle = average(h, self, axes, True) if len(h.results) > 1 else h.reduce("ReduceMean", self, axes, True)
    gap = h.emit("Sub", self, middle)
    if less == 0:
        variance = average(h, h.emit("Mul", gap, gap), axes, keepdim)
    else:
        variance = h.emit("Div", h.reduce("ReduceSumSquare", gap, axes, keepdim), _freedom(h, self, axes, less))
    return variance, middle if keepdim else h.squeeze(middle, axes)


def _freedom(h, x, axes, less):
    """The elements of a result less a number, 0 at least. The variance of nothing is nan."""
    number = count(x, axes)
    if not isinstance(number, Expr):
        return h.const(max(number - less, 0) * (number > 0), x)
    number = _at_run_time(h, x, axes, x.type.dtype)
    left = h.emit("Max", h.emit("Sub", number, h.const(less, x)), h.const(0, x))
    return left if less >= 0 else h.emit("Mul", left, h.emit("Min", number, h.const(1, x)))


def _wide_moments(h, self, dim, unbiased, correction, keepdim):
    """In float64, as torch adds up: of 2e19 the square is infinite in float32, and the variance of many may not be."""
    return moments(h, h.cast(self, DType.float64), dim, unbiased, correction, keepdim)


@op("aten::var")
def var(h, self, dim=None, unbiased=True, correction=None, keepdim=False):
    return h.cast(_wide_moments(h, self, dim, unbiased, correction, keepdim)[0], h.out.dtype)


@op("aten::var_mean")
def var_mean(h, self, dim=None, unbiased=True, correction=None, keepdim=False):
    return tuple(h.cast(x, h.out.dtype) for x in _wide_moments(h, self, dim, unbiased, correction, keepdim))


@op("aten::std")
def std(h, self, dim=None, unbiased=True, correction=None, keepdim=False):
    return h.cast(h.emit("Sqrt", _wide_moments(h, self, dim, unbiased, correction, keepdim)[0]), h.out.dtype)


@op("aten::std_mean")
def std_mean(h, self, dim=None, unbiased=True, correction=None, keepdim=False):
    variance, middle = _wide_moments(h, self, dim, unbiased, correction, keepdim)
    return h.cast(h.emit("Sqrt", variance), h.out.dtype), h.cast(middle, h.out.dtype)


@op("aten::logsumexp", "aten::special_logsumexp")
def logsumexp(h, self, dim, keepdim=False):
    made = reduced(h, "ReduceLogSumExp", h.cast(self, h.out.dtype), dim, keepdim)  # skips a nan beside infinity
    unknown = reduced(h, "ReduceSum", h.cast(h.emit("IsNaN", h.cast(self, h.out.dtype)), DType.float32), dim, keepdim)
    return h.emit("Where", h.cast(unknown, DType.bool), h.const(math.nan, made), made)


# -- norms -------------------------------------------------------------------------------------------------------------


@op("aten::linalg_vector_norm")
def linalg_vector_norm(h, self, ord=2, dim=None, keepdim=False, dtype=None):
    return norm(h, self, ord, dim, keepdim)


@op("aten::norm")
def norm(h, self, p=2, dim=None, keepdim=False, dtype=None):
    x, p = h.cast(self, h.out.dtype), 2 if p is None else p
    p = h.static(p, "the order of the norm") if isinstance(p, Expr) else p
    if p == 0:
        return reduced(h, "ReduceSum", h.cast(h.cast(x, DType.bool), x.type.dtype), dim, keepdim)
    one = count(x, h.axes(dim, x) if x.type.rank else [])
    if one == 1:  # a power of one number may leave its type's range, or lose its digits
        return h.reshape(h.emit("Abs", x), h.out.shape)
    if p == 1:
        return reduced(h, "ReduceL1", x, dim, keepdim)
    size = h.emit("Abs", x)
    if p in (math.inf, -math.inf):
        return amax(h, size, dim, keepdim, "ReduceMax" if p > 0 else "ReduceMin")
    wide = h.cast(size, DType.float32) if x.type.dtype.bits < 32 and p != 2 else size
    total = reduced(h, "ReduceL2", x, dim, keepdim) if p == 2 else _power_norm(h, wide, p, dim, keepdim)
    if isinstance(one, Expr) and bounds(one, h.graph.symbols)[0] < 2:  # one number at run time
        alone = h.emit("Equal", h.scalar(one, DType.int64), 1)
        total = h.emit("Where", alone, reduced(h, "ReduceSum", wide, dim, keepdim), total)
    return h.cast(total, x.type.dtype)


def _power_norm(h, size, p, dim, keepdim):
    return h.emit("Pow", reduced(h, "ReduceSum", h.emit("Pow", size, p), dim, keepdim), 1 / p)


@op("aten::dist")
def dist(h, self, other, p=2):
    return norm(h, h.emit("Sub", self, other), p)


@op("aten::trapezoid.dx", "aten::trapz.dx")
def trapezoid(h, y, dx=1, dim=-1):
    """The sum less half of both ends; nothing of nothing. Integers are added as such, both ends in their own type."""
    axis = h.axis(dim, y)
    wide = h.filled(y if y.type.dtype.is_float else h.cast(y, DType.int64), axis)
    ends = h.emit("Add", *(h.emit("Gather", wide, h.const(i, DType.int64), axis=axis) for i in (0, -1)))
    ends = h.cast(h.cast(ends, y.type.dtype), h.out.dtype)
    half = h.emit("Mul", ends, h.const(0.5, h.out.dtype))
    inside = h.emit("Sub", h.cast(total(h, wide, [axis]), h.out.dtype), half)
    return inside if dx == 1 else h.emit("Mul", inside, h.const(dx, h.out.dtype))


# -- running totals ----------------------------------------------------------------------------------------------------


@op("aten::cumsum")
def cumsum(h, self, dim, dtype=None):
    if self.type.rank == 0:
        return self
    return h.cast(h.emit("CumSum", doubled(h, self), h.const(h.axis(dim, self), DType.int64)), self.type.dtype)


def doubled(h, x):
    """In float64, as torch counts running totals: what leaves float32's range on the way may come back."""
    return h.cast(x, DType.float64) if x.type.dtype.is_float else x


def running(h, x, dim, start, step):
    """A scan with one state that begins as `start`; each step stacks its state."""
    axis = h.axis(dim, x)
    size = x.type.shape[axis]
    if 0 in x.type.shape:
        return x
    state = h.full([s for i, s in enumerate(x.type.shape) if i != axis], start, x.type.dtype)
    return h.cut(h.scan(lambda s, v: ([(n := step(s, v))], [n]), [state], [h.filled(x, axis)], axis)[1], axis, size)


@op("aten::cumprod")
def cumprod(h, self, dim, dtype=None):
    if self.type.rank == 0:
        return self
    return h.cast(running(h, doubled(h, self), dim, 1, lambda total, x: h.emit("Mul", total, x)), self.type.dtype)


@op("aten::logcumsumexp")
def logcumsumexp(h, self, dim):
    if self.type.rank == 0:
        return self

    def step(total, x):
        high = h.emit("Max", total, x)
        gap = h.emit("Abs", h.emit("Sub", total, x))
        both = h.emit("Add", high, h.emit("Softplus", h.emit("Neg", gap)))
        endless = h.emit("And", h.emit("Equal", total, x), h.emit("IsInf", x))  # inf - inf is nan
        return h.emit("Where", endless, x, both)

    return h.cast(running(h, doubled(h, self), dim, -math.inf, step), self.type.dtype)


@op("aten::cummax")
def cummax(h, self, dim, keeps="GreaterOrEqual"):
    """Equal elements move the place on; a nan is an extreme that stays."""
    if self.type.rank == 0:
        return self, h.const(0, DType.int64)
    if 0 in self.type.shape:
        return self, h.full(self.type.shape, 0, DType.int64)
    axis = h.axis(dim, self)
    rest = [s for i, s in enumerate(self.type.shape) if i != axis]
    xs = h.filled(self, axis)
    size = xs.type.shape[axis]
    first = h.squeeze(h.slice(xs, axis, 0, 1, size=1), [axis])
    places = h.expand(h.along(h.range(0, size, size=size), self.type.rank, axis), xs.type.shape)

    def step(best, at, x, place):
        better = h.emit(keeps, x, best)
        if self.type.dtype.is_float:
            better = h.emit("Or", h.emit("And", better, h.emit("Not", h.emit("IsNaN", best))), h.emit("IsNaN", x))
        new = [h.emit("Where", better, x, best), h.emit("Where", better, place, at)]
        return new, new

    made = h.scan(step, [first, h.full(rest, 0, DType.int64)], [xs, places], axis)[2:]
    return [h.cut(y, axis, self.type.shape[axis]) for y in made]


@op("aten::cummin")
def cummin(h, self, dim):
    return cummax(h, self, dim, "LessOrEqual")
