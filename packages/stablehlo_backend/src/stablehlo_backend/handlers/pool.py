"""Pooling, one axis after the other: the elements of a window are strided slices."""

from ir import geometry
from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


def setting(h, x, n, kernel_size, stride, padding, dilation, ceil_mode):
    """For each spatial axis: kernel, step, pads, dilation, the number of windows."""
    kernel = geometry.ntuple(kernel_size, n)
    stride = geometry.ntuple(stride, n) if stride else kernel
    found = []
    for size, k, s, p, d in zip(
        x.type.shape[-n:], kernel, stride, geometry.ntuple(padding, n), geometry.ntuple(dilation, n)
    ):
        count, after = geometry.window_size(size, k, s, (p, p), d, ceil_mode), p
        if ceil_mode:
            size = h.static(size, "a size that ceil_mode rounds up")
            after = max(p, (count - 1) * s + d * (k - 1) + 1 - size - p)
        found.append((k, s, (p, after), d, count))
    return found


@op("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")
def max_pool(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    return pooled(h, self, kernel_size, stride, padding, dilation, ceil_mode)


def pooled(h, x, kernel_size, stride, padding, dilation, ceil_mode):
    n = int(h.node.op.partition("pool")[2][0])
    low = h.lowest(x.type.dtype)
    for i, (k, s, pads, d, count) in enumerate(setting(h, x, n, kernel_size, stride, padding, dilation, ceil_mode)):
        axis = x.type.rank - n + i
        wider = h.pad(x, axis, *pads, value=low)
        parts = [h.window(wider, axis, j * d, count, s) for j in range(k)]
        x = parts[0]
        for part in parts[1:]:
            x = h.emit("maximum", x, part)
    return x


@op("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::max_pool1d_with_indices")
def max_pool_with_indices(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    if not h.graph_reads(h.node.outputs[1]):
        return [pooled(h, self, kernel_size, stride, padding, dilation, ceil_mode), None]
    n = int(h.node.op.partition("pool")[2][0])
    x = self
    places = h.reshape(h.iota([h.count(x.type.shape[-n:])]), x.type.shape[-n:])
    places = h.broadcast(places, x.type.shape)
    steps = setting(h, x, n, kernel_size, stride, padding, dilation, ceil_mode)
    for i, (k, s, pads, d, count) in reversed(list(enumerate(steps))):  # the last axis first: the first place wins
        axis = x.type.rank - n + i
        wider = h.pad(x, axis, *pads, value=h.lowest(x.type.dtype)), h.pad(places, axis, *pads, value=-1)
        pairs = [[h.window(t, axis, j * d, count, s) for t in wider] for j in range(k)]
        x, places = pairs[0]
        for part, place in pairs[1:]:
            better = h.emit("or", h.compare("GT", part, x), h.isnan(part))
            better = h.emit("or", better, h.compare("LT", places, 0))  # anything goes before what only fills
            better = h.emit("and", better, h.compare("GE", place, 0))
            x, places = h.where(better, part, x), h.where(better, place, places)
    return [x, places]


@op("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def avg_pool(h, self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True,
             divisor_override=None):  # fmt: skip
    n = int(h.node.op.partition("pool")[2][0])
    x = wide(h, self)
    ones = h.full(1, self.type.shape[-n:], x.type.dtype)
    for i, (k, s, (p, after), _, count) in enumerate(setting(h, x, n, kernel_size, stride, padding, 1, ceil_mode)):
        axis = x.type.rank - n + i
        x = totalled(h, h.pad(x, axis, p, after), axis, k, s, count)
        inside = p if count_include_pad else 0  # what ceil_mode adds is never counted
        ones = h.pad(h.pad(ones, i, inside, inside, value=1), i, p - inside, after - inside)
        ones = totalled(h, ones, i, k, s, count)
    divisor = ones if divisor_override is None else h.const(divisor_override, x)
    return h.cast(h.emit("divide", x, divisor), self.type.dtype)


def totalled(h, x, axis, kernel, stride, count):
    parts = [h.window(x, axis, j, count, stride) for j in range(kernel)]
    total = parts[0]
    for part in parts[1:]:
        total = h.emit("add", total, part)
    return total


@op("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(h, self, output_size):
    if h.graph_reads(h.node.outputs[1]):
        h.refuse("it hands out the places of the maxima")
    n = int(h.node.op.partition("pool")[2][0])
    x = self
    for axis, count in enumerate(geometry.ntuple(output_size, n), start=x.type.rank - n):
        size = h.static(x.type.shape[axis], "a size that is pooled adaptively")
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        parts = [h.reduce([h.cut(x, axis, a, b)], [h.lowest(x.type.dtype)], [axis], "maximum")[0] for a, b in ends]
        x = h.concat([h.unsqueeze(p, axis) for p in parts], axis)
    return [x, None]
