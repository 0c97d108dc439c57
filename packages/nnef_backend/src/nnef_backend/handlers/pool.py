"""Pooling over windows, fixed and adaptive."""

from __future__ import annotations

import functools
import math

import numpy as np

from ir.dims import Expr, ceildiv, floordiv, product, quotient
from ir.geometry import ceil_overhang, ntuple
from ir.types import DType
from nnef_backend.building.reshaping import at_least
from nnef_backend.registry import register as op


class Window:
    """The windows of a pool over the last axes, in tract's terms: lists of full rank."""

    def __init__(self, h, x, n, kernel, stride, padding, dilation=1, ceil_mode=False):
        self.n, self.batched = n, x.type.rank == n + 2
        self.x = x if self.batched else h.unsqueeze(x, [0])
        self.kernel, self.padding, self.dilation = ntuple(kernel, n), ntuple(padding, n), ntuple(dilation, n)
        self.stride = ntuple(stride or kernel, n)
        over = [self.overhang(h, i) if ceil_mode else 0 for i in range(n)]
        self.pads = [(p, p + o) for p, o in zip(self.padding, over, strict=True)]
        self.over = over
        self.shape = h.out.shape if self.batched else (1, *h.out.shape)
        if isinstance(self.x.type.shape[1], Expr):
            h.refuse("tract pools only with a fixed number of channels")

    def overhang(self, h, i):
        """What ceil_mode adds to the far padding."""
        k, s, p, d = self.kernel[i], self.stride[i], self.padding[i], self.dilation[i]
        size = self.x.type.shape[2 + i]
        if not isinstance(size, Expr):
            return ceil_overhang(size, k, s, (p, p), d)
        if p + s > d * (k - 1) + 1:
            h.refuse(f"whether ceil_mode's last window starts inside the size {size} is only known at run time")
        return s - 1

    def attributes(self, pads=None):
        """Pads stand for the last axes; the others have none."""
        full = {"size": self.kernel, "stride": self.stride, "dilation": self.dilation}
        return {k: [1, 1, *v] for k, v in full.items()} | {"padding": [(0, 0), (0, 0), *(pads or self.pads)]}

    def result(self, h, y):
        return y if self.batched else h.squeeze(y, [0])


# -- maximum ---------------------------------------------------------------------------------------------------------


@op("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")
def max_pool(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    w = Window(h, self, _space(h), kernel_size, stride, padding, dilation, ceil_mode)
    return w.result(h, _highest(h, w.x, lambda x: _pooled(h, w, x)))


def _pooled(h, w, x):
    border = "constant" if h.target.tract else "ignore"  # tract's constant is -inf here, the standard's is 0
    return h.emit("max_pool", x, border=border, shape=w.shape, **w.attributes())


def _highest(h, x, pooled, made=None):
    """The maxima that `pooled` finds; tract's skip NaN, and begin at the lowest finite number."""
    made = pooled(x) if made is None else made
    if not h.target.tract or not x.type.dtype.is_float:
        return made
    odd, below = h.cast(h.is_nan(x), DType.float32), not _never_negative(h)
    # 2 is NaN, 1 any other number, 0 minus infinity
    kinds = h.emit("add", odd, h.cast(h.emit("ne", x, -math.inf), DType.float32)) if below else odd
    kinds = pooled(kinds)
    made = h.emit("select", h.emit("lt", kinds, 0.5), -math.inf, made) if below else made
    return h.emit("select", h.emit("gt", kinds, 1.5 if below else 0.5), h.const(math.nan, made), made)


def _never_negative(h):
    producer = h.graph.producer.get(h.node.args["self"])
    return producer is not None and producer.op in ("aten::relu", "aten::sigmoid", "aten::abs", "aten::relu6")


@op("aten::max_pool1d_with_indices", "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
def max_pool_with_indices(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    if not wanted(h, 1):
        return [max_pool(h, self, kernel_size, stride, padding, dilation, ceil_mode), None]
    if not h.target.tract:
        h.refuse("the standard counts positions over the whole tensor, torch over one plane")
    w = Window(h, self, _space(h), kernel_size, stride, padding, dilation, ceil_mode)
    types = {"dtype": [t.dtype for t in h.results], "shape": [w.shape, w.shape]}
    made, place = h.emit("max_pool_with_index", w.x, border="constant", outputs=2, **types, **w.attributes())
    if self.type.dtype.is_float:
        made = _highest(h, w.x, lambda x: _pooled(h, w, x), made)
        place = _odd_places(h, w, made, place)
    return [w.result(h, y) for y in (made, place)]


def _odd_places(h, w, made, place):
    """Where torch finds the maximum of a window with NaN, the last of them, and of one with nothing above -inf."""
    space = w.x.type.shape[2:]
    spots = h.reshape(h.cast(h.positions(product(space)), DType.float64), [1, 1, *space])
    spots = h.expand(spots, w.x.type.shape)
    last = _pooled(h, w, h.emit("select", h.is_nan(w.x), spots, -1.0))
    first = h.emit("neg", _pooled(h, w, h.emit("neg", spots)))
    last, first = (h.cast(v, place.type.dtype) for v in (last, first))
    place = h.emit("select", h.emit("le", made, float(np.finfo(made.type.dtype.name).min)), first, place)
    return h.emit("select", h.is_nan(made), last, place)


def _space(h):
    """The number of spatial axes, from the op's name."""
    return int(h.node.op.partition("d")[0][-1]) if "pool" not in h.node.op else int(h.node.op.split("pool")[1][0])


def wanted(h, i):
    """True if something reads the node's i-th result."""
    graph, value = h.driver.scopes[-1], h.node.outputs[i]
    return value in graph.uses or value in graph.results.values()


@op("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(h, self, indices, output_size, stride=None, padding=None):
    n = 2 if h.node.op.endswith("2d") else 3
    lead = list(self.type.shape[:-n])
    empty = h.expand(h.const(0, self), [*lead, product(h.out.shape[-n:])])
    x, i = (h.reshape(v, [*lead, product(self.type.shape[-n:])]) for v in (self, indices))
    y = h.emit("tract_core_scatter_elements", empty, i, x, axis=len(lead), reduction="none")
    return h.reshape(y, h.out.shape)


# -- mean ------------------------------------------------------------------------------------------------------------


def in_single(pool):
    """A handler of means that computes those of float16 in float32, as torch does: tract's sums end at 65504."""

    def handler(h, self, *given, **named):
        if self.type.dtype is not DType.float16 or not h.target.tract:
            return pool(h, self, *given, **named)
        return h.cast(pool(h, h.cast(self, DType.float32), *given, **named), DType.float16)

    return functools.wraps(pool)(handler)


@op("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
@in_single
def avg_pool(h, self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True,
             divisor_override=None):  # fmt: skip
    w = Window(h, self, _space(h), kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        total = h.emit("box", w.x, border="constant", normalize=False, shape=w.shape, **w.attributes())
        return w.result(h, h.emit("div", total, float(divisor_override)))
    x, pads, border = w.x, w.pads, "constant" if count_include_pad else "ignore"
    if count_include_pad and any(w.over):
        # torch counts the padding, but not what ceil_mode adds to it: the first becomes part of the input
        grow = [(0, 0), (0, 0), *((p, p) for p in w.padding)]
        shape = [s + b + a for s, (b, a) in zip(x.type.shape, grow, strict=True)]
        x = h.emit("pad", x, padding=grow, border="constant", value=0.0, shape=shape) if any(w.padding) else x
        pads, border = [(0, o) for o in w.over], "ignore"
    return w.result(h, h.emit("avg_pool", x, border=border, shape=w.shape, **w.attributes(pads)))


# -- adaptive --------------------------------------------------------------------------------------------------------


@op("aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")  # fmt: skip
@in_single
def adaptive_avg_pool(h, self, output_size):
    return adaptive(h, self, "avg_pool", "mean_reduce")


@op("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(h, self, output_size):
    y = _highest(h, self, lambda x: adaptive(h, x, "max_pool", "max_reduce"))
    for size in self.type.shape[-_space(h) :]:
        y = at_least(h, y, size, 1)
    return [y, adaptive_indices(h, self) if wanted(h, 1) else None]


def adaptive(h, x, pool, reduce):
    n = _space(h)
    axes = list(range(x.type.rank - n, x.type.rank))
    sizes = {a: (x.type.shape[a], h.out.shape[a]) for a in axes}
    whole = [a for a, (_, out) in sizes.items() if out == 1]
    x = h.emit(reduce, x, axes=whole) if whole else x
    steps = {a: quotient(*sizes[a]) for a in axes if a not in whole}
    if all(isinstance(s, int) for s in steps.values()):
        return windows(h, x, pool, n, [steps.get(a, 1) for a in axes])
    if reduce == "mean_reduce":
        h.refuse("the windows of this adaptive pool differ in size, and tract's pools have one size")
    for a in steps:
        x = by_slices(h, x, reduce, a, sizes[a][1])
    return x


def windows(h, x, pool, n, steps):
    """The windows tile the input exactly."""
    if all(s == 1 for s in steps):
        return x
    w = Window(h, x, n, steps, steps, 0)
    return w.result(h, h.emit(pool, w.x, border="constant", shape=w.shape, **w.attributes()))


def by_slices(h, x, reduce, axis, count):
    """Along one axis, a slice for each place of the result: windows of adaptive pools overlap and differ in size."""
    size = x.type.shape[axis]
    if size == count:
        return x
    count = h.static(count, "the output size")
    parts = [h.slice(x, axis, floordiv(size * i, count), ceildiv(size * (i + 1), count)) for i in range(count)]
    return h.concat([h.emit(reduce, p, axes=[axis]) for p in parts], axis)


def adaptive_indices(h, x):
    """Where the maxima lie in their planes."""
    n = _space(h)
    if not all(o == 1 for o in h.out.shape[-n:]):
        h.refuse("tract has indices of windows of one size only")
    return h.reshape(_first(h, x, n), h.out.shape)


def _first(h, x, n):
    """[..., 1]: the place of the first maximum in the flattened last axes."""
    flat = h.reshape(x, [*x.type.shape[:-n], product(x.type.shape[-n:])])
    axes = [flat.type.rank - 1]
    first = h.emit("argmax_reduce", flat, axes=axes)
    if not x.type.dtype.is_float:
        return first
    odd = h.is_nan(flat)
    last = h.emit("argmax_reduce", h.emit("select", odd, h.positions(flat.type.shape[-1]), -1), axes=axes)
    return h.emit("select", h.emit("any_reduce", odd, axes=axes), last, first)
