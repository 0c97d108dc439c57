"""What takes elements together: sums, extremes, scans, order."""

import math

from ir.types import DType
from stablehlo_backend.handlers.elementwise import power, wide
from stablehlo_backend.registry import register as op


def kept(h, made, x, axes, keepdim):
    """The result with the axes as ones, where they are to stay."""
    return h.reshape(made, [1 if i in axes else d for i, d in enumerate(x.type.shape)]) if keepdim else made


def axes_of(h, dim, x):
    """The axes, of which a 0-d tensor has none."""
    return h.axes(dim, x) if x.type.rank else []


def reduced(h, x, dim, keepdim, initial, body):
    axes = axes_of(h, dim, x)
    return kept(h, h.reduce([x], [initial], axes, body)[0], x, axes, keepdim)


@op("aten::sum")
def sum_(h, self, dim=None, keepdim=False, dtype=None):
    made = reduced(h, wide(h, h.cast(self, h.out.dtype)), dim, keepdim, 0, "add")
    return h.cast(made, h.out.dtype)


@op("aten::prod")
def prod(h, self, dim=None, keepdim=False, dtype=None):
    return h.cast(reduced(h, wide(h, h.cast(self, h.out.dtype)), dim, keepdim, 1, "multiply"), h.out.dtype)


def average(h, x, dim, keepdim, less=0):
    """The sum divided by the number of elements, or by `less` fewer, but no fewer than none."""
    count = h.const(1, DType.int64)
    for axis in axes_of(h, dim, x):
        count = h.emit("multiply", count, h.tensor(x.type.shape[axis], DType.int64))
    count = h.emit("maximum", h.emit("subtract", h.cast(count, x.type.dtype), less), 0)
    return h.emit("divide", reduced(h, x, dim, keepdim, 0, "add"), count)


@op("aten::mean")
def mean(h, self, dim=None, keepdim=False, dtype=None):
    return h.cast(average(h, wide(h, h.cast(self, h.out.dtype)), dim, keepdim), h.out.dtype)


def variance(h, x, dim, correction, keepdim):
    """The variance and the mean; a correction of None is 1."""
    x = wide(h, x)
    apart = h.emit("subtract", x, average(h, x, dim, True))
    made = average(h, h.emit("multiply", apart, apart), dim, keepdim, 1 if correction is None else correction)
    return made, average(h, x, dim, keepdim)


@op("aten::var.correction", "prims::var")
def var(h, self=None, dim=None, correction=None, keepdim=False, inp=None, dims=None):
    x = self if inp is None else inp
    return h.cast(variance(h, x, dims if dim is None else dim, correction, keepdim)[0], h.out.dtype)


@op("aten::std.correction")
def std(h, self, dim=None, correction=None, keepdim=False):
    return h.cast(h.emit("sqrt", variance(h, self, dim, correction, keepdim)[0]), h.out.dtype)


@op("aten::var_mean.correction")
def var_mean(h, self, dim=None, correction=None, keepdim=False):
    return [h.cast(x, self.type.dtype) for x in variance(h, self, dim, correction, keepdim)]


@op("aten::amax", "aten::max")
def amax(h, self, dim=None, keepdim=False, other=None):
    if other is not None:
        return h.emit("maximum", self, other)
    if h.node.op == "aten::max" and dim is not None:
        return extreme(h, self, dim, keepdim, "GT")
    return reduced(h, self, dim, keepdim, h.lowest(self.type.dtype), "maximum")


@op("aten::amin", "aten::min")
def amin(h, self, dim=None, keepdim=False, other=None):
    if other is not None:
        return h.emit("minimum", self, other)
    if h.node.op == "aten::min" and dim is not None:
        return extreme(h, self, dim, keepdim, "LT")
    return reduced(h, self, dim, keepdim, h.highest(self.type.dtype), "minimum")


@op("aten::argmax")
def argmax(h, self, dim=None, keepdim=False):
    return arg(h, self, dim, keepdim, "GT")


@op("aten::argmin")
def argmin(h, self, dim=None, keepdim=False):
    return arg(h, self, dim, keepdim, "LT")


def arg(h, x, dim, keepdim, direction):
    if dim is None:
        found = extreme(h, h.flat(x), 0, False, direction)[1]
        return h.reshape(found, h.out.shape)
    return extreme(h, x, dim, keepdim, direction)[1]


def extreme(h, x, dim, keepdim, direction):
    """The extreme element along an axis and its first place."""
    if x.type.rank == 0:
        return [x, h.const(0, DType.int64)]
    axis = h.axis(dim, x)
    made = best(h, x, h.iota(x.type.shape, axis), axis, direction, 2**63 - 1)
    return [kept(h, m, x, [axis], keepdim) for m in made]


def best(h, x, places, axis, direction, worst):
    """The extreme element along an axis and the place that goes with it, the one farthest from `worst` of several.

    A nan stands before every number.
    """
    dtype = x.type.dtype
    start = h.lowest(dtype) if direction == "GT" else h.highest(dtype)

    def body(a, i, b, j):
        left, right = (h.cast(t, DType.int8) if dtype is DType.bool else t for t in (a, b))
        ahead, alike = h.compare(direction, left, right), h.compare("EQ", left, right)
        if dtype.is_float:
            odd, other = h.isnan(a), h.isnan(b)
            ahead = h.emit("or", ahead, h.emit("and", odd, h.emit("not", other)))
            alike = h.emit("or", alike, h.emit("and", odd, other))
        first = h.compare("LT" if worst > 0 else "GT", i, j)
        chosen = h.emit("or", ahead, h.emit("and", alike, first))
        return [h.emit("select", chosen, p, q, type=p.type) for p, q in ((a, b), (i, j))]

    return h.reduce([x, places], [start, worst], [axis], body)


@op("aten::any")
def any_(h, self, dim=None, keepdim=False):
    return h.cast(reduced(h, h.cast(self, DType.bool), dim, keepdim, False, "or"), h.out.dtype)


@op("aten::all")
def all_(h, self, dim=None, keepdim=False):
    return h.cast(reduced(h, h.cast(self, DType.bool), dim, keepdim, True, "and"), h.out.dtype)


# -- scans -------------------------------------------------------------------------------------------------------------


def square(h, x, axis, initial):
    """Each element beside all before it: a square for the axis, `initial` above its diagonal."""
    n = x.type.shape[axis]
    shape = (*x.type.shape[:axis], n, *x.type.shape[axis:])
    spread = h.broadcast(x, shape, [i + (i >= axis) for i in range(x.type.rank)])
    before = h.compare("LE", h.iota(shape, axis + 1), h.iota(shape, axis))
    return h.where(before, spread, h.tensor(initial, x.type.dtype))


def scanned(h, x, dim, initial, body):
    """Each element together with all before it."""
    if x.type.rank == 0:
        return x
    axis = h.axis(dim, x)
    return h.reduce([square(h, x, axis, initial)], [initial], [axis + 1], body)[0]


@op("aten::logcumsumexp")
def logcumsumexp(h, self, dim):
    if self.type.rank == 0:
        return self
    axis = h.axis(dim, self)
    parts = square(h, wide(h, self), axis, -math.inf)
    top = h.reduce([parts], [-math.inf], [axis + 1], "maximum")[0]
    top = h.where(h.compare("EQ", h.emit("abs", top), math.inf), 0, top)
    powers = h.emit("exponential", h.emit("subtract", parts, h.unsqueeze(top, axis + 1)))
    total = h.reduce([powers], [0], [axis + 1], "add")[0]
    return h.cast(h.emit("add", h.emit("log", total), top), self.type.dtype)


def running(h, x, dim, direction):
    """The extreme so far and its last place."""
    if x.type.rank == 0:
        return [x, h.const(0, DType.int64)]
    axis = h.axis(dim, x)
    start = h.lowest(x.type.dtype) if direction == "GT" else h.highest(x.type.dtype)
    return best(h, square(h, x, axis, start), square(h, h.iota(x.type.shape, axis), axis, -1), axis + 1, direction, -1)


@op("aten::cummax")
def cummax(h, self, dim):
    return running(h, self, dim, "GT")


@op("aten::cummin")
def cummin(h, self, dim):
    return running(h, self, dim, "LT")


@op("aten::cumsum")
def cumsum(h, self, dim, dtype=None):
    return h.cast(scanned(h, wide(h, h.cast(self, h.out.dtype)), dim, 0, "add"), h.out.dtype)


@op("aten::cumprod")
def cumprod(h, self, dim, dtype=None):
    return h.cast(scanned(h, wide(h, h.cast(self, h.out.dtype)), dim, 1, "multiply"), h.out.dtype)


# -- order -------------------------------------------------------------------------------------------------------------


def ordered(h, x, axis, descending):
    """The elements along an axis in order, and where they were; a nan is above every number."""
    scalar, place = (t.with_shape(()) for t in (x.type, x.type.with_dtype(DType.int64)))

    def before(a, b, *_):
        if descending:
            a, b = b, a
        if a.type.dtype is DType.bool:
            a, b = h.cast(a, DType.int8), h.cast(b, DType.int8)
        ahead = h.compare("LT", a, b)
        if a.type.dtype.is_float:
            ahead = h.emit("or", ahead, h.emit("and", h.isnan(b), h.emit("not", h.isnan(a))))
        return [ahead]

    region = h.builder.region([scalar, scalar, place, place], before)
    places = h.iota(x.type.shape, axis)
    types = [x.type, places.type]
    return h.emit("sort", x, places, dimension=axis, is_stable=True, regions=[region], type=types)


@op("aten::sort")
def sort(h, self, dim=-1, descending=False, stable=None):
    if self.type.rank == 0:
        return [self, h.const(0, DType.int64)]
    return ordered(h, self, h.axis(dim, self), descending)


@op("aten::topk")
def topk(h, self, k, dim=-1, largest=True, sorted=True):
    if self.type.rank == 0:
        return [self, h.const(0, DType.int64)]
    axis = h.axis(dim, self)
    return [h.cut(m, axis, 0, k) for m in ordered(h, self, axis, largest)]


def at_rank(h, x, dim, keepdim, k):
    """The k-th smallest element along an axis and its place."""
    if x.type.rank == 0:
        return [x, h.const(0, DType.int64)]
    axis = h.axis(dim, x)
    parts = (h.cut(m, axis, k, k + 1, 1, 1) for m in ordered(h, x, axis, False))
    return [p if keepdim else h.squeeze(p, axis) for p in parts]


@op("aten::kthvalue")
def kthvalue(h, self, k, dim=-1, keepdim=False):
    return at_rank(h, self, dim, keepdim, k - 1)


@op("aten::median.dim")
def median_dim(h, self, dim, keepdim=False):
    if self.type.rank == 0:
        return at_rank(h, self, dim, keepdim, 0)
    made = at_rank(h, self, dim, keepdim, (self.type.shape[h.axis(dim, self)] - 1) // 2)
    if not self.type.dtype.is_float:
        return made
    top = extreme(h, self, dim, keepdim, "GT")  # the first nan, where there is one
    return [h.where(h.isnan(top[0]), t, m) for t, m in zip(top, made, strict=True)]


@op("aten::median")
def median(h, self):
    flat = h.flat(self) if self.type.rank else h.reshape(self, (1,))
    return median_dim(h, flat, 0)[0]


@op("aten::_cdist_forward")
def cdist(h, x1, x2, p, compute_mode=None):
    a, b = h.unsqueeze(x1, x1.type.rank - 1), h.unsqueeze(x2, x2.type.rank - 2)
    gap = h.emit("abs", h.emit("subtract", *h.align(a, b)))
    axis = gap.type.rank - 1
    if p == math.inf:
        return h.reduce([gap], [0], [axis], "maximum")[0]
    if p == 0:
        return h.reduce([h.cast(h.compare("NE", gap, 0), gap.type.dtype)], [0], [axis], "add")[0]
    parts = gap if p == 1 else h.emit("multiply", gap, gap) if p == 2 else power(h, gap, h.const(p, gap))
    total = h.reduce([parts], [0], [axis], "add")[0]
    return total if p == 1 else h.emit("sqrt", total) if p == 2 else power(h, total, h.const(1 / p, gap))
