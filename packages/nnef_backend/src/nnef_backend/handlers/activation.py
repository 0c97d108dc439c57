"""The activations among the element-wise ops."""

from __future__ import annotations

import math

from ir.dims import floordiv
from ir.ops import SUMS_OF_PRODUCTS, is_view
from ir.types import DType
from nnef_backend.handlers.elementwise import expm1, log1p
from nnef_backend.handlers.erf import erf, erfc
from nnef_backend.handlers.logic import clamp
from nnef_backend.registry import register as op
from nnef_backend.registry import rows


@op("aten::relu")
def relu(h, self):
    if h.target.tract and self.type.dtype is DType.float32 and _infinite_by_overflow(h.graph, h.node.args["self"]):
        return h.emit("leaky_relu", self, alpha=-0.0)  # a negative slope, so that a negative number becomes +0.0
    above = h.emit("max", self, 0)
    # not the result yet: `max` loses NaN. Tensors of one shape are compared much faster than one with a number.
    return h.emit("select", h.emit("lt", self, above), above, self) if self.type.dtype.is_float else above


def _infinite_by_overflow(graph, value):
    """True where nothing but an overflow makes -inf, or an infinite input of the model two layers before.

    There `leaky_relu` serves, which tract fuses with the product before it: it keeps NaN, as `max` does not, but is NaN
    for -inf.
    """
    producer = graph.producer.get(value)
    if producer is None:
        return False
    if producer.op == "aten::add":
        return all(_infinite_by_overflow(graph, producer.args[name]) for name in ("self", "other"))
    read = [v for v in producer.inputs if v not in graph.weights]
    return producer.op == "aten::relu" or (producer.op in SUMS_OF_PRODUCTS and all(_is_layer(graph, v) for v in read))


_LAYERS = SUMS_OF_PRODUCTS | {
    f"aten::{name}" for name in (
        "relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "softmax", "layer_norm", "rms_norm", "group_norm",
        "native_layer_norm", "native_group_norm", "hardswish", "embedding")
}  # fmt: skip
_BETWEEN = {f"aten::{name}" for name in (
    "add", "mul", "cat", "avg_pool1d", "avg_pool2d", "max_pool2d", "max_pool1d", "adaptive_avg_pool2d", "pad",
)}  # fmt: skip


def _is_layer(graph, value):
    """True for what a layer made, perhaps rearranged: infinite only if that overflowed or read what is infinite."""
    producer = graph.producer.get(value)
    if producer is None or producer.op in _LAYERS:
        return producer is not None
    between = producer.op in _BETWEEN or (is_view(producer) and producer.overload != "aten::view.dtype")
    return between and all(_is_layer(graph, v) for v in producer.inputs if v not in graph.weights)


@op("aten::hardtanh")
def hardtanh(h, self, min_val=-1, max_val=1):
    return clamp(h, self, *(h.stored(b, self.type.dtype) for b in (min_val, max_val)))


def _one_plus_exp(h, x):
    """1 + exp(-x): sigmoid and silu divide by it, which is exact far below zero and keeps NaN."""
    return h.emit("add", h.emit("exp", h.emit("neg", x)), 1.0)


def _sigmoid(h, x):
    """In f32 where `x` is of halves, in which the exponential overflows from 11.1 on."""
    return h.emit("recip", _one_plus_exp(h, h.floating(x)))


def tanh(h, x):
    """Far from 0 by an exponential, for there tract's own stops at 0.9999993 and drops NaN."""
    if x.type.dtype is DType.float64 or not h.target.tract:
        return h.emit("select", h.is_nan(x), x, h.emit("tanh", x))
    y = h.floating(x)
    rest = h.emit("recip", h.emit("add", h.emit("exp", h.emit("mul", y, 2.0)), 1.0))
    far = h.emit("add", h.emit("mul", rest, -2.0), 1.0)
    return h.cast(h.emit("select", h.emit("lt", h.emit("abs", y), 1.0), h.emit("tanh", y), far), x.type.dtype)


@op("aten::prelu")
def prelu(h, self, weight):
    if h.is_value(weight) and weight.type.rank == 1 and self.type.rank > 1:
        weight = h.unsqueeze(weight, list(range(1, self.type.rank - 1)))  # one slope for each channel, axis 1
    elif h.is_value(weight) and weight.type.rank > self.type.rank:
        weight = h.squeeze(weight, [0])
    # zeros are multiplied as well: a slope may be nan or infinite
    return h.emit("select", h.emit("gt", self, 0), self, h.emit("mul", self, weight))


@op("aten::rrelu")
def rrelu(h, self, lower=0.125, upper=1 / 3, training=False):
    return h.refuse("training=True draws random slopes") if training else prelu(h, self, (lower + upper) / 2)


@op("aten::elu")
def elu(h, self, alpha=1, scale=1, input_scale=1):
    x = h.floating(self)
    grown, scaled = (x if factor == 1 else h.emit("mul", x, factor) for factor in (input_scale, scale))
    below = h.emit("mul", expm1(h, grown), alpha * scale)
    return h.cast(h.emit("select", h.emit("lt", x, 0.0), below, scaled), h.out.dtype)


@op("aten::threshold")
def threshold(h, self, threshold, value):
    threshold, value = (h.stored(v, self.type.dtype) for v in (threshold, value))
    return h.emit("select", h.emit("le", self, threshold), value, self)


@op("aten::softplus")
def softplus(h, self, beta=1, threshold=20):
    return h.cast(_softplus(h, h.floating(self), beta, threshold), self.type.dtype)


def _softplus(h, x, beta=1, threshold=20):
    grown = x if beta == 1 else h.emit("mul", x, beta)
    # log(1 + exp(x)) without an overflow: max(x, 0) + log(1 + exp(-|x|))
    above = h.emit("select", h.emit("lt", grown, 0.0), 0.0, grown)
    smooth = h.emit("add", above, _log1p_of_exp(h, grown))
    smooth = h.emit("div", smooth, beta) if beta != 1 else smooth
    return h.emit("select", h.emit("gt", grown, threshold), x, smooth)


def _log1p_of_exp(h, x):
    """log(1 + exp(-|x|))."""
    return log1p(h, h.emit("exp", h.emit("neg", h.emit("abs", x))))


@op("aten::log_sigmoid")
def log_sigmoid(h, self):
    x = h.floating(self)
    below = h.emit("select", h.emit("lt", x, 0.0), x, 0.0)  # less 0.0 it is 0.0 where the result is 0
    return h.cast(h.emit("sub", below, _log1p_of_exp(h, x)), h.out.dtype)


@op("aten::mish")
def mish(h, self):
    x = h.floating(self)
    return h.cast(h.emit("mul", x, tanh(h, _softplus(h, x))), self.type.dtype)


@op("aten::gelu")
def gelu(h, self, approximate="none"):
    x = h.floating(self)
    if approximate == "tanh":
        return h.cast(gelu_tanh(h, x), self.type.dtype)
    if x.type.dtype is DType.float64:
        grown = erfc(h, h.emit("mul", x, -math.sqrt(0.5)))
    else:
        grown = h.emit("add", erf(h, h.emit("mul", x, math.sqrt(0.5))), 1.0)
    return h.cast(h.emit("mul", h.emit("mul", x, 0.5), grown), self.type.dtype)


def gelu_tanh(h, x):
    """By a sigmoid, for (1 + tanh(u)) / 2 is sigmoid(2 u): tract's tanh loses digits, and so does its own gelu."""
    cube = h.emit("mul", h.emit("mul", h.emit("mul", x, x), x), 0.044715)
    inner = h.emit("mul", h.emit("add", x, cube), 2 * math.sqrt(2 / math.pi))
    return h.emit("mul", _sigmoid(h, inner), x)


@op("aten::glu")
def glu(h, self, dim=-1):
    axis = h.axis(dim, self)
    size = self.type.shape[axis]
    half = floordiv(size, 2)
    first, second = h.slice(self, axis, 0, half), h.slice(self, axis, half, size)
    return h.cast(h.emit("div", h.floating(first), _one_plus_exp(h, h.floating(second))), self.type.dtype)


rows({
    "relu6": lambda h, self: clamp(h, self, 0, 6),
    "sigmoid": lambda h, self: h.cast(_sigmoid(h, self), h.out.dtype),
    "special_expit": lambda h, self: h.cast(_sigmoid(h, self), h.out.dtype),
    # the new tensor first, in whose place tract multiplies
    "silu": lambda h, self: h.cast(h.emit("mul", _sigmoid(h, self), h.floating(self)), h.out.dtype),
    "tanh": lambda h, self: tanh(h, self),
    "hardsigmoid": lambda h, self: clamp(h, h.emit("add", h.emit("mul", self, 1 / 6), 0.5), 0, 1),
    "hardshrink": lambda h, self, lambd=0.5: h.emit(
        "select", h.emit("le", h.emit("abs", self), lambd), 0.0, self),
    "softshrink": lambda h, self, lambd=0.5: h.emit("sub", self, clamp(h, self, -lambd, lambd)),
    "leaky_relu": lambda h, self, negative_slope=0.01: prelu(h, self, negative_slope),
    "selu": lambda h, self: elu(h, self, 1.6732632423543772, 1.0507009873554805),
    "celu": lambda h, self, alpha=1.0: elu(h, self, alpha, 1, 1 / alpha),
})  # fmt: skip
