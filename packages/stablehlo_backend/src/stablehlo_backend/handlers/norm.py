"""Normalisations and softmax."""

from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.handlers.reduce import average, variance
from stablehlo_backend.registry import register as op


def shifted(h, x, axis):
    """The elements below their maximum, as exponents that cannot overflow."""
    top = h.reduce([x], [h.lowest(x.type.dtype)], [axis], "maximum")[0]
    return h.emit("subtract", x, h.unsqueeze(top, axis))


@op("aten::softmax", "aten::_softmax")
def softmax(h, self, dim, dtype=None, half_to_float=False):
    x = wide(h, h.cast(self, h.out.dtype))
    if x.type.rank == 0:
        x = h.emit("subtract", x, x)
        return h.cast(h.emit("exponential", x), h.out.dtype)
    axis = h.axis(dim, x)
    powers = h.emit("exponential", shifted(h, x, axis))
    total = h.unsqueeze(h.reduce([powers], [0], [axis], "add")[0], axis)
    return h.cast(h.emit("divide", powers, total), h.out.dtype)


@op("aten::log_softmax", "aten::_log_softmax")
def log_softmax(h, self, dim, dtype=None, half_to_float=False):
    x = wide(h, h.cast(self, h.out.dtype))
    if x.type.rank == 0:
        return h.cast(h.emit("subtract", x, x), h.out.dtype)
    axis = h.axis(dim, x)
    below = shifted(h, x, axis)
    total = h.reduce([h.emit("exponential", below)], [0], [axis], "add")[0]
    return h.cast(h.emit("subtract", below, h.unsqueeze(h.emit("log", total), axis)), h.out.dtype)


def normed(h, x, axes, eps):
    """The elements less their mean, over their deviation; also the mean and the inverse deviation."""
    mean = average(h, x, axes, True)
    apart = h.emit("subtract", x, mean)
    spread = h.emit("add", average(h, h.emit("multiply", apart, apart), axes, True), eps)
    factor = h.emit("rsqrt", spread)
    return h.emit("multiply", apart, factor), mean, factor


def affine(h, x, weight, bias, shape):
    for word, other in (("multiply", weight), ("add", bias)):
        x = x if other is None else h.emit(word, x, h.reshape(wide(h, other), shape))
    return x


@op("aten::layer_norm", "aten::native_layer_norm")
def layer_norm(h, input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    x = wide(h, input)
    count = len(normalized_shape)
    made, mean, factor = normed(h, x, list(range(x.type.rank - count, x.type.rank)), eps)
    made = affine(h, made, weight, bias, x.type.shape[x.type.rank - count :])
    if h.node.op == "aten::layer_norm":
        return h.cast(made, h.out.dtype)
    return [h.cast(t, r.dtype) for t, r in zip((made, mean, factor), h.results, strict=True)]


@op("aten::native_group_norm")
def native_group_norm(h, input, weight, bias, N, C, HxW, group, eps):
    x, shape = wide(h, input), input.type.shape
    made, mean, factor = normed(h, h.reshape(x, (N, group, C // group, HxW)), [2, 3], eps)
    made = affine(h, h.reshape(made, shape), weight, bias, (C, *[1] * (len(shape) - 2)))
    moments = (h.reshape(t, (N, group)) for t in (mean, factor))
    return [h.cast(t, r.dtype) for t, r in zip((made, *moments), h.results, strict=True)]


@op("aten::_native_batch_norm_legit_functional")
def training_batch_norm(h, input, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        h.refuse("it normalises by statistics that it hands on unchanged")
    x, shape = wide(h, input), input.type.shape
    axes = [i for i in range(len(shape)) if i != 1]
    made, mean, factor = normed(h, x, axes, eps)
    made = affine(h, made, weight, bias, (shape[1], *[1] * (len(shape) - 2)))
    mean, factor = (h.reshape(t, (shape[1],)) for t in (mean, factor))
    spread = h.reshape(variance(h, x, axes, 1, False)[0], (shape[1],))
    after = [
        h.emit("add", h.emit("multiply", wide(h, old), 1 - momentum), h.emit("multiply", new, momentum))
        for old, new in ((running_mean, mean), (running_var, spread))
    ]
    return [h.cast(t, r.dtype) for t, r in zip((made, mean, factor, *after), h.results, strict=True)]


@op("aten::group_norm")
def group_norm(h, input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    x, shape = wide(h, input), input.type.shape
    apart = h.reshape(x, (shape[0], num_groups, shape[1] // num_groups, *shape[2:]))
    made = h.reshape(normed(h, apart, list(range(2, apart.type.rank)), eps)[0], shape)
    return h.cast(affine(h, made, weight, bias, (shape[1], *[1] * (len(shape) - 2))), h.out.dtype)
