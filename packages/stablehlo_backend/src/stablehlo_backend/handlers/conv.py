"""Convolutions: StableHLO's own where IREE takes it, else one product over the elements of each window."""

from ir import geometry
from ir.dims import product
from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


@op("aten::convolution")
def convolution(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    return convolved(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@op("aten::conv1d", "aten::conv2d", "aten::conv3d")
def conv(h, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return convolved(h, input, weight, bias, stride, padding, dilation, False, 0, groups)


@op("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
def conv_transpose(h, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return convolved(h, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


def convolved(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    n = weight.type.rank - 2
    x, w = wide(h, input), wide(h, weight)
    if x.type.rank == n + 1:
        h.refuse("it has no batch axis")
    stride, dilation, extra = (geometry.ntuple(v, n) for v in (stride, dilation, output_padding))
    kernel = [h.static(k, "the size of the kernel") for k in w.type.shape[2:]]
    padding = (0 if padding == "valid" else padding) if padding != "same" else None
    if padding is None:
        pads = geometry.same_pads(kernel, dilation)
    elif transposed:
        padding = geometry.ntuple(padding, n)
        w = turned(h, w, groups)
        pads = [(d * (k - 1) - p, d * (k - 1) - p + e) for k, d, p, e in zip(kernel, dilation, padding, extra)]
        x, stride = inflated(h, x, stride), [1] * n
    else:
        pads = [(p, p) for p in geometry.ntuple(padding, n)]
    for axis, (before, after) in enumerate(pads, start=2):
        x = h.pad(x, axis, before, after)
    made = native(h, x, w, stride, dilation, groups) or by_windows(h, x, w, stride, dilation, groups)
    if bias is not None:
        made = h.emit("add", made, h.reshape(wide(h, bias), (bias.type.shape[0], *[1] * n)))
    return h.cast(made, h.out.dtype)


def turned(h, w, groups):
    """The weight of a transposed convolution as that of a plain one: channels exchanged, windows turned around."""
    total, each, *kernel = w.type.shape
    w = h.reshape(w, (groups, total // groups, each, *kernel))
    w = h.reshape(h.moved(w, 2, 1), (groups * each, total // groups, *kernel))
    return h.emit("reverse", w, dimensions=list(range(2, w.type.rank)), type=w.type)


def inflated(h, x, stride):
    """Zeros between the elements of the spatial axes."""
    if all(s == 1 for s in stride):
        return x
    shape = list(x.type.shape)
    for axis, s in enumerate(stride, start=2):
        shape[axis] = (shape[axis] - 1) * s + 1
    nothing = [0] * len(shape)
    ends = {"edge_padding_low": nothing, "edge_padding_high": nothing}
    between = [0, 0, *(s - 1 for s in stride)]
    return h.emit("pad", x, h.const(0, x), **ends, interior_padding=between, type=x.type.with_shape(shape))


def windows(x, w, stride, dilation):
    sizes = zip(x.type.shape[2:], w.type.shape[2:], stride, dilation)
    return [geometry.window_size(d, k, s, (0, 0), e, False) for d, k, s, e in sizes]


def native(h, x, w, stride, dilation, groups):
    """StableHLO's convolution, which IREE takes with static sizes, and with a dynamic batch in one group."""
    if not x.type.with_shape(x.type.shape[1:] if groups == 1 else x.type.shape).is_static or not x.type.dtype.is_float:
        return None
    n = x.type.rank - 2
    shape = (x.type.shape[0], w.type.shape[0], *windows(x, w, stride, dilation))
    axes = ", ".join(map(str, range(n)))
    return h.emit(
        "convolution", x, w, type=x.type.with_shape(shape), window_strides=stride, rhs_dilation=dilation,
        dimension_numbers=f"#stablehlo.conv<[b, f, {axes}]x[o, i, {axes}]->[b, f, {axes}]>",
        feature_group_count=groups, batch_group_count=1,
    )  # fmt: skip


def by_windows(h, x, w, stride, dilation, groups):
    """The elements of all windows side by side, times the weights."""
    counts = windows(x, w, stride, dilation)
    parts = [x]
    for axis, (count, k, s, d) in enumerate(zip(counts, w.type.shape[2:], stride, dilation), start=2):
        parts = [h.window(p, axis, i * d, count, s) for p in parts for i in range(k)]
    batch, channels = x.type.shape[:2]
    each, taps = channels // groups, len(parts)
    parts = [h.reshape(p, (batch, groups, each, 1, *counts)) for p in parts]
    columns = h.reshape(h.concat(parts, 3), (batch, groups, each * taps, *counts))
    w = h.reshape(w, (groups, w.type.shape[0] // groups, product(w.type.shape[1:])))
    made = h.dot(w, columns, ((0,), (1,)), ((2,), (2,)))  # groups, channels of each, batch, windows
    made = h.transpose(made, [2, 0, 1, *range(3, made.type.rank)])
    return h.reshape(made, (batch, w.type.shape[0] * w.type.shape[1], *counts))
