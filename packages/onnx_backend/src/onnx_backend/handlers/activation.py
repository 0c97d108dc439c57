"""The activations among the element-wise ops."""

from __future__ import annotations

import math

from ir import dims as d
from ir.dims import Expr
from ir.types import DType
from onnx_backend.building.double import expm1
from onnx_backend.handlers.create import uniform_like
from onnx_backend.handlers.logic import clamp
from onnx_backend.registry import register as op
from onnx_backend.registry import rows

rows({"mish": "Mish"}, since_version=18)


@op("aten::relu")
def relu(h, self):
    if self.type.dtype is DType.float64:
        return clamp(h, self, 0)  # onnxruntime fails to load a Relu before a Clip of this type
    return h.emit("Relu", self) if self.type.dtype.is_float else h.emit("Max", self, 0)


@op("aten::relu6")
def relu6(h, self):
    return h.emit("Clip", self, 0, 6)


@op("aten::hardtanh")
def hardtanh(h, self, min_val=-1, max_val=1):
    return clamp(h, self, min_val, max_val)


@op("aten::hardsigmoid")
def hardsigmoid(h, self):
    return h.emit("HardSigmoid", self, alpha=1 / 6, beta=0.5)


@op("aten::hardswish")
def hardswish(h, self):
    """Of float64 in torch's order: its product is infinite from a sixth of the largest number on."""
    if self.type.dtype is DType.float64:
        return h.emit("Div", h.emit("Mul", self, h.emit("Clip", h.emit("Add", self, 3), 0, 6)), 6)
    return h.emit("HardSwish", self) if h.has("HardSwish") else h.emit("Mul", self, hardsigmoid(h, self))


@op("aten::sigmoid", "aten::special_expit")
def sigmoid(h, self):
    """onnxruntime's Sigmoid is 0 from -18 down, whose logarithm is no number: good enough for a gate alone."""
    return h.emit("Sigmoid", self) if is_gate(h) else exponential(h, self)


def exponential(h, self):
    """A sigmoid that keeps its digits below zero, where onnxruntime's own are right beside 1 alone."""
    x = h.cast(self, DType.float32) if self.type.dtype.bits < 32 else self
    return h.cast(h.emit("Reciprocal", h.emit("Add", h.emit("Exp", h.emit("Neg", x)), 1)), self.type.dtype)


def is_gate(h):
    """True where the result is only multiplied with, or rounded to steps."""
    graph, value = h.driver.scopes[-1], h.node.outputs[0]
    readers = graph.uses.get(value, ())
    alone = all(n.op == "aten::mul" or "::quantize_" in n.op for n in readers)
    return alone and bool(readers) and value not in graph.results.values()


@op("aten::silu")
def silu(h, self):
    """By Sigmoid, whose fourth digit is wrong in onnxruntime below -8: the exponential form takes 2.4 times as long."""
    return h.emit("Mul", self, h.emit("Sigmoid", self))


@op("aten::mish")
def mish(h, self):
    return h.emit("Mul", self, h.emit("Tanh", h.emit("Softplus", self)))


@op("aten::gelu", since_version=20)
def gelu(h, self, approximate="none"):
    return h.emit("Gelu", self, approximate=approximate)


@op("aten::gelu")
def gelu_13(h, self, approximate="none"):
    """In the order of operations that onnxruntime fuses."""
    if approximate == "tanh":
        cubed = h.emit("Add", self, h.emit("Mul", h.emit("Pow", self, 3.0), 0.044715))
        gate = h.emit("Tanh", h.emit("Mul", cubed, math.sqrt(2 / math.pi)))
    else:
        gate = h.emit("Erf", h.emit("Div", self, math.sqrt(2)))
    return h.emit("Mul", h.emit("Mul", self, h.emit("Add", gate, 1)), 0.5)


@op("aten::elu")
def elu(h, self, alpha=1.0, scale=1.0, input_scale=1.0):
    """Not by Elu, Selu or Celu, where onnxruntime computes e^x - 1, which near 0 has no digits of x left."""
    x = h.cast(self, DType.float32) if self.type.dtype.bits < 32 else self
    bent = expm1(h, x if input_scale == 1 else h.emit("Mul", x, input_scale))
    bent = bent if alpha * scale == 1 else h.emit("Mul", bent, alpha * scale)
    above = x if scale == 1 else h.emit("Mul", x, scale)
    return h.cast(h.emit("Where", h.emit("Greater", x, 0), above, bent), self.type.dtype)


@op("aten::selu")
def selu(h, self):
    return elu(h, self, 1.6732632423543772, 1.0507009873554805)


@op("aten::celu")
def celu(h, self, alpha=1.0):
    return elu(h, self, alpha, 1.0, d.call("truediv", 1.0, alpha))


@op("aten::leaky_relu")
def leaky_relu(h, self, negative_slope=0.01):
    if isinstance(negative_slope, Expr):
        return h.emit("PRelu", self, h.tensor(negative_slope, self))
    return h.emit("LeakyRelu", self, alpha=negative_slope)


@op("aten::rrelu")
def rrelu(h, self, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    if training:
        slope = uniform_like(h, self, lower, upper)
        return h.emit("Where", h.emit("Less", self, 0), h.emit("Mul", self, slope), self)
    return h.emit("LeakyRelu", self, alpha=(lower + upper) / 2)


@op("aten::prelu", "aten::_prelu_kernel")
def prelu(h, self, weight):
    if weight.type.rank == 1 and self.type.rank != 1:
        weight = h.reshape(weight, [*weight.type.shape, *[1] * (self.type.rank - 2)] if self.type.rank else [])
    return h.reshape(h.emit("PRelu", self, weight), self.type.shape)


@op("aten::softplus")
def softplus(h, self, beta=1, threshold=20):
    x = h.cast(self, DType.float32) if self.type.dtype.bits < 32 and beta != 1 else self  # rounded once, at the end
    inner = x if beta == 1 else h.emit("Mul", x, beta)
    soft = h.emit("Softplus", inner)
    soft = soft if beta == 1 else h.emit("Div", soft, beta)
    known = not (isinstance(beta, Expr) or isinstance(threshold, Expr))
    if known and threshold >= 20 and abs(beta) <= 1:
        return h.cast(soft, self.type.dtype)  # the two agree from there on; by a larger beta the product may overflow
    return h.cast(h.emit("Where", h.emit("Greater", inner, threshold), x, soft), self.type.dtype)


@op("aten::log_sigmoid")
def log_sigmoid(h, self):
    return h.emit("Sub", h.const(0, self), h.emit("Softplus", h.emit("Neg", self)))  # 0.0 where it is 0


@op("aten::log_sigmoid_forward")
def log_sigmoid_forward(h, self):
    return log_sigmoid(h, self), None  # the buffer serves the backward pass only


@op("aten::hardshrink")
def hardshrink(h, self, lambd=0.5):
    return h.emit("Where", h.emit("LessOrEqual", h.emit("Abs", self), lambd), h.const(0, self), self)


@op("aten::softshrink")
def softshrink(h, self, lambd=0.5):
    """Of halves in float32, as torch computes; zeros are written, not left to cancel."""
    x = h.cast(self, DType.float32) if self.type.dtype.bits < 32 else self
    within = h.emit("LessOrEqual", h.emit("Abs", x), lambd)
    beyond = h.emit("Sub", x, h.emit("Clip", x, -lambd, lambd))
    return h.cast(h.emit("Where", within, h.const(0, x), beyond), self.type.dtype)


@op("aten::threshold")
def threshold(h, self, threshold, value):
    """Halves are compared in float32, as in torch, to a number that is not rounded to them."""
    threshold, value = (h.stored(v, self.type.dtype) for v in (threshold, value))
    x = h.cast(self, DType.float32) if self.type.dtype.is_float and self.type.dtype.bits < 32 else self
    return h.emit("Where", h.emit("LessOrEqual", x, h.tensor(threshold, x)), h.tensor(value, self), self)


@op("aten::glu")
def glu(h, self, dim=-1):
    axis = h.axis(dim, self)
    value, gate = h.split(self, [self.type.shape[axis] // 2] * 2, axis)
    return h.emit("Mul", value, exponential(h, gate))


@op("aten::sinc", "aten::special_sinc")
def sinc(h, self):
    """Of halves in float32, as torch computes: pi itself, rounded to 8 bits, is no zero of the sine."""
    x = h.cast(self, h.out.dtype if h.out.dtype.bits >= 32 else DType.float32)
    angle = h.emit("Mul", x, math.pi)
    wave = h.emit("Div", h.emit("Sin", angle), angle)
    return h.cast(h.emit("Where", h.emit("Equal", x, 0), h.const(1, x), wave), h.out.dtype)
