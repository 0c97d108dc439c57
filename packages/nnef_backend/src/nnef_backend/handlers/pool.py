"""Pooling over windows, fixed and adaptive."""

from __future__ import annotations

from ir.dims import Expr, ceildiv, floordiv, quotient
from ir.geometry import ceil_overhang, spread

from nnef_backend.registry import register as op


class Window:
    """The windows of a pool over the last axes, in tract's terms: lists of full rank."""

    def __init__(self, h, x, n, kernel, stride, padding, dilation=1, ceil_mode=False):
        self.n, self.batched = n, x.type.rank == n + 2
        self.x = x if self.batched else h.unsqueeze(x, [0])
        self.kernel, self.padding, self.dilation = spread(kernel, n), spread(padding, n), spread(dilation, n)
        self.stride = spread(stride or kernel, n)
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
    return w.result(h, h.emit("max_pool", w.x, border="constant", shape=w.shape, **w.attributes()))


@op("aten::max_pool1d_with_indices", "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
def max_pool_with_indices(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    if not wanted(h, 1):
        return [max_pool(h, self, kernel_size, stride, padding, dilation, ceil_mode), None]
    w = Window(h, self, _space(h), kernel_size, stride, padding, dilation, ceil_mode)
    types = {"dtype": [t.dtype for t in h.results], "shape": [w.shape, w.shape]}
    both = h.emit("max_pool_with_index", w.x, border="constant", outputs=2, **types, **w.attributes())
    return [w.result(h, y) for y in both]


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
    *batch, plane = h.out.shape[: h.out.rank - n], 1
    lead = list(h.out.shape[: h.out.rank - n])
    space = h.out.shape[h.out.rank - n :]
    for s in space:
        plane = plane * s
    cells = 1
    for s in self.type.shape[self.type.rank - n :]:
        cells = cells * s
    empty = h.expand(h.const(0, self), [*lead, plane])
    x, i = h.reshape(self, [*lead, cells]), h.reshape(indices, [*lead, cells])
    y = h.emit("tract_core_scatter_elements", empty, i, x, axis=len(lead), reduction="none", shape=empty.type.shape)
    return h.reshape(y, h.out.shape)


# -- mean ------------------------------------------------------------------------------------------------------------


@op("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
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
def adaptive_avg_pool(h, self, output_size):
    return adaptive(h, self, "avg_pool", "mean_reduce")


@op("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(h, self, output_size):
    y = adaptive(h, self, "max_pool", "max_reduce")
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
    lead, space, out = x.type.shape[:-n], x.type.shape[-n:], h.out.shape[-n:]
    if all(o == 1 for o in out):
        flat = 1
        for s in space:
            flat = flat * s
        place = h.emit("argmax_reduce", h.reshape(x, [*lead, flat]), axes=[len(lead)], dtype=h.results[1].dtype,
                       shape=[*lead, 1])  # fmt: skip
        return h.reshape(place, h.out.shape)
    steps = [quotient(s, o) for s, o in zip(space, out, strict=True)]
    if not all(isinstance(s, int) for s in steps):
        h.refuse("tract has no indices of adaptive windows that differ in size")
    w = Window(h, x, n, steps, steps, 0)
    types = {"dtype": [t.dtype for t in h.results], "shape": [w.shape, w.shape]}
    return w.result(h, h.emit("max_pool_with_index", w.x, border="constant", outputs=2, **types, **w.attributes())[1])
