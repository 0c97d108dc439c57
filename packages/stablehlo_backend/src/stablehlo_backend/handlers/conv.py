"""Convolutions where IREE takes StableHLO's own; the others are products, by the shared decomposition."""

from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


@op("aten::convolution")
def convolution(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    x, w = wide(h, input), wide(h, weight)
    n = w.type.rank - 2
    if not w.type.is_static or not x.type.with_shape(x.type.shape[1:] if groups == 1 else x.type.shape).is_static:
        h.refuse("IREE convolves with fixed sizes, except for a dynamic batch where groups=1")
    if not x.type.dtype.is_float or 0 in (*x.type.shape, *w.type.shape):
        h.refuse("IREE convolves floats only, and no tensor of size 0")
    ones = [1] * n
    pads = [(p, p) for p in padding]
    if transposed:
        spans = [d * (k - 1) for d, k in zip(dilation, w.type.shape[2:])]
        pads = [(s - p, s - p + e) for s, p, e in zip(spans, padding, output_padding)]
        w = turned(h, w, groups)
    axes = ", ".join(map(str, range(n)))
    window = {
        "window_strides": ones if transposed else stride, "lhs_dilation": stride if transposed else ones,
        "rhs_dilation": dilation, "padding": f"dense<{[list(p) for p in pads]}> : tensor<{n}x2xi64>",
    }  # fmt: skip
    axes = ", ".join(map(str, range(n)))
    numbers = f"#stablehlo.conv<[b, f, {axes}]x[o, i, {axes}]->[b, f, {axes}]>"
    made = h.emit("convolution", x, w, **window, dimension_numbers=numbers, feature_group_count=groups,
                  batch_group_count=1, type=x.type.with_shape(h.out.shape))  # fmt: skip
    made = made if bias is None else h.emit("add", made, h.reshape(wide(h, bias), (*bias.type.shape, *ones)))
    return h.cast(made, h.out.dtype)


def turned(h, w, groups):
    """The weight of a transposed convolution as that of a plain one: channels exchanged, windows turned around."""
    total, each, *kernel = w.type.shape
    w = h.reshape(w, (groups, total // groups, each, *kernel))
    w = h.transpose(w, [0, 2, 1, *range(3, w.type.rank)])
    w = h.reshape(w, (groups * each, total // groups, *kernel))
    return h.emit("reverse", w, dimensions=list(range(2, w.type.rank)), type=w.type)
