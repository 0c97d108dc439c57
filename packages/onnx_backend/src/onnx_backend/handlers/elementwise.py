"""Element-wise arithmetic, activations, comparisons, logic, bits and casts."""

from __future__ import annotations

import math

from ir.dims import Expr
from ir.types import DType
from onnx_backend.handlers import powers
from onnx_backend.registry import pairs, rows
from onnx_backend.registry import register as op

rows({
    "abs": "Abs", "neg": "Neg", "exp": "Exp", "tanh": "Tanh", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "erf": "Erf", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "logical_not": "Not",
    "absolute": "Abs", "negative": "Neg", "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan",
})  # fmt: skip
pairs({
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "maximum": "Max", "minimum": "Min",
})  # fmt: skip


# -- arithmetic --------------------------------------------------------------------------------------------------------


def scaled(h, x, factor):
    """`x * factor` in the result's element type, where x may be a number too."""
    if factor == 1:
        return h.tensor(x, h.out.dtype)
    return h.emit("Mul", x, factor) if h.is_value(x) else h.tensor(x * factor, h.out.dtype)


@op("aten::add")
def add(h, self, other, alpha=1):
    if h.out.dtype is DType.bool:
        return h.emit("Or", self, other)
    return h.emit("Add", h.tensor(self, h.out.dtype), scaled(h, other, alpha))


@op("aten::sub")
def sub(h, self, other, alpha=1):
    return h.emit("Sub", h.tensor(self, h.out.dtype), scaled(h, other, alpha))


@op("aten::rsub")
def rsub(h, self, other, alpha=1):
    return h.emit("Sub", h.tensor(other, h.out.dtype), scaled(h, self, alpha))


@op("aten::mul")
def mul(h, self, other):
    return h.emit("And" if h.out.dtype is DType.bool else "Mul", self, other)


@op("aten::square")
def square(h, self):
    self = h.cast(self, h.out.dtype)
    return h.emit("Mul", self, self)


def squared(h, x):
    """By Pow, as onnxruntime's fusions of norms look for.

    They lose the epsilon of float64, and read what a Cast before the norm reads, of which they may have no kernel:
    these must not find it.
    """
    apart = x.made_by("Sub")
    told = apart is not None and (source := apart.inputs[0].producer()) is not None and source.op_type == "Cast"
    return h.emit("Mul", x, x) if told or x.type.dtype is DType.float64 else h.emit("Pow", x, h.const(2, x))


@op("aten::pow", "aten::float_power")
def power(h, self, exponent):
    counted = isinstance(exponent, Expr) and h.out.dtype.is_integer  # at run time; floats take it as any number
    if h.is_value(exponent) or not h.is_value(self) or counted:
        self, exponent = h.tensor(self, h.out.dtype), h.tensor(exponent, h.out.dtype)
        return h.emit("Pow", self, exponent) if h.out.dtype.is_float else powers.of_integers(h, self, exponent)
    self = h.cast(self, h.out.dtype)
    if exponent == 1:
        return self
    if h.out.dtype.is_integer:
        return powers.repeated(h, self, exponent)
    if exponent == -1:
        return h.emit("Reciprocal", self)
    if exponent == 2:
        return squared(h, self)
    if exponent not in (0.5, -0.5) or h.out.dtype is DType.float16:  # torch has roots there, and none for float16
        return h.emit("Pow", self, exponent)
    root = h.emit("Sqrt", h.cast(self, DType.float32) if h.out.dtype.bits < 32 else self)
    return h.cast(root if exponent > 0 else h.emit("Reciprocal", root), h.out.dtype)


@op("aten::exp2", "aten::special_exp2")
def exp2(h, self):
    self = h.cast(self, h.out.dtype)
    return h.emit("Pow", h.const(2, self), self)


@op("aten::rsqrt")
def rsqrt(h, self):
    return h.emit("Reciprocal", h.emit("Sqrt", self))


def logarithm(h, x, base):
    """Halves are rounded once and not between the two steps: 2 is the logarithm of 4."""
    dtype = h.out.dtype
    x = h.cast(x, dtype if dtype.bits >= 32 else DType.float32)
    return h.cast(h.emit("Div", h.emit("Log", x), math.log(base)), dtype)


@op("aten::log2")
def log2(h, self):
    return logarithm(h, self, 2)


@op("aten::log10")
def log10(h, self):
    return logarithm(h, self, 10)


@op("aten::deg2rad")
def deg2rad(h, self):
    return h.emit("Mul", self, math.pi / 180)


@op("aten::rad2deg")
def rad2deg(h, self):
    return h.emit("Mul", self, 180 / math.pi)


@op("aten::addcmul")
def addcmul(h, self, tensor1, tensor2, value=1):
    return h.emit("Add", self, h.emit("Mul", scaled(h, tensor1, value), tensor2))


@op("aten::addcdiv")
def addcdiv(h, self, tensor1, tensor2, value=1):
    return h.emit("Add", self, h.emit("Div", scaled(h, tensor1, value), tensor2))


@op("aten::lerp")
def lerp(h, self, end, weight):
    """From the nearer of the two ends, as torch counts: exact at both, infinite ones too; of halves in float32."""
    dtype = self.type.dtype
    self, end = (h.cast(x, dtype if dtype.bits >= 32 else DType.float32) for x in (self, end))
    gap = h.emit("Sub", end, self)
    if isinstance(weight, int | float):
        near = abs(weight) < 0.5
        way = h.emit("Mul", gap, weight if near else 1 - weight)
        return h.cast(h.emit("Add", self, way) if near else h.emit("Sub", end, way), dtype)
    weight = h.tensor(weight, self)
    near = h.emit("Add", self, h.emit("Mul", gap, weight))
    far = h.emit("Sub", end, h.emit("Mul", gap, h.emit("Sub", h.const(1, weight), weight)))
    return h.cast(h.emit("Where", h.emit("Less", h.emit("Abs", weight), 0.5), near, far), dtype)


# -- rounding ----------------------------------------------------------------------------------------------------------


@op("aten::floor")
def floor(h, self):
    return h.emit("Floor", self) if self.type.dtype.is_float else self


@op("aten::ceil")
def ceil(h, self):
    return h.emit("Ceil", self) if self.type.dtype.is_float else self


@op("aten::trunc", "aten::fix")
def trunc(h, self):
    if not self.type.dtype.is_float:
        return self
    return signed(h, h.emit("Floor", h.emit("Abs", self)), self)


@op("aten::frac")
def frac(h, self):
    return h.emit("Sub", self, trunc(h, self))  # a remainder would be -0.0 for -3.0


@op("aten::round")
def round_(h, self, decimals=0):
    if not self.type.dtype.is_float:
        return self if decimals >= 0 else h.refuse("ONNX's Round takes floats only; cast the integers first")
    if decimals == 0:
        return h.emit("Round", self)  # half to even, as in torch
    up, down, factor = ("Mul", "Div", 10.0**decimals) if decimals > 0 else ("Div", "Mul", 10.0**-decimals)
    x = h.cast(self, DType.float32) if self.type.dtype.bits < 32 else self  # which torch rounds once, at the end
    return h.cast(h.emit(down, h.emit("Round", h.emit(up, x, factor)), factor), self.type.dtype)


# -- signs, nan and extremes -------------------------------------------------------------------------------------------


@op("aten::positive")
def positive(h, self):
    return self


@op("aten::sign", "aten::sgn")
def sign(h, self):
    if self.type.dtype is DType.bool:
        return self
    result = h.emit("Sign", self)
    if not self.type.dtype.is_float:
        return result
    return h.emit("Where", h.emit("IsNaN", self), h.const(0, self), result)  # torch gives 0, onnxruntime nan


@op("aten::angle")
def angle(h, self):
    x = h.cast(self, h.out.dtype)
    turned = h.emit("Where", h.emit("Less", x, 0), h.const(math.pi, x), h.const(0, x))
    return h.emit("Where", h.emit("IsNaN", x), x, turned)


@op("aten::signbit")
def signbit(h, self):
    if not self.type.dtype.is_float:
        return h.emit("Less", self, 0) if self.type.dtype.kind == "int" else h.full(h.out.shape, False, DType.bool)
    return h.emit("Or", h.emit("Less", self, 0), h.emit("Less", h.emit("Reciprocal", self), 0))  # 1 / -0.0 is -inf


def signed(h, size, like):
    """`size` with the sign of `like`, by a factor: onnxruntime's Where makes 0.0 of -0.0."""
    minus, plus = (h.const(n, size.type.dtype) for n in (-1.0, 1.0))
    return h.emit("Mul", size, h.emit("Where", signbit(h, like), minus, plus))


@op("aten::copysign")
def copysign(h, self, other):
    self, other = h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)
    return signed(h, h.emit("Abs", self), other)


@op("aten::fmax")
def fmax(h, self, other, extreme="Max"):
    both = h.emit(extreme, self, other)
    if not h.out.dtype.is_float:
        return both
    kept = h.emit("Where", h.emit("IsNaN", other), self, both)
    return h.emit("Where", h.emit("IsNaN", self), other, kept)


@op("aten::fmin")
def fmin(h, self, other):
    return fmax(h, self, other, "Min")


def everywhere(h, truth):
    return h.full(h.out.shape, truth, DType.bool)


@op("aten::isnan")
def isnan(h, self):
    return h.emit("IsNaN", self) if self.type.dtype.is_float else everywhere(h, False)


@op("aten::isinf")
def isinf(h, self, positive=True, negative=True):
    if not self.type.dtype.is_float:
        return everywhere(h, False)
    return h.emit("IsInf", self, detect_positive=positive, detect_negative=negative)


@op("aten::isposinf")
def isposinf(h, self):
    return isinf(h, self, negative=False)


@op("aten::isneginf")
def isneginf(h, self):
    return isinf(h, self, positive=False)


@op("aten::isfinite")
def isfinite(h, self):
    if not self.type.dtype.is_float:
        return everywhere(h, True)
    return h.emit("Less", h.emit("Abs", self), math.inf)  # false of nan


@op("aten::nan_to_num")
def nan_to_num(h, self, nan=None, posinf=None, neginf=None):
    dtype = self.type.dtype
    if not dtype.is_float:
        return self
    largest = LARGEST[dtype]
    high, low = largest if posinf is None else posinf, -largest if neginf is None else neginf
    if posinf is None and neginf is None:
        result = h.emit("Clip", self, -largest, largest)
    else:
        result = h.emit("Where", isinf(h, self, negative=False), h.const(high, self), self)
        result = h.emit("Where", isinf(h, self, positive=False), h.const(low, self), result)
    return h.emit("Where", h.emit("IsNaN", self), h.const(nan or 0.0, self), result)


LARGEST = {
    DType.float16: 65504.0,
    DType.bfloat16: 3.3895313892515355e38,
    DType.float32: 3.4028234663852886e38,
    DType.float64: 1.7976931348623157e308,
}


@op("aten::heaviside")
def heaviside(h, self, values):
    return h.emit("Where", h.emit("Equal", self, 0), values, h.cast(h.emit("Greater", self, 0), h.out.dtype))


# -- casts and copies --------------------------------------------------------------------------------------------------


@op("aten::to", "aten::_to_copy", "aten::type_as", "aten::clone", "aten::alias", "aten::detach", "aten::contiguous",
    "aten::lift_fresh_copy")  # fmt: skip
def to(h, self, **_):
    """Where and how the data lies (device, layout, memory format) has no form in ONNX: only the dtype remains."""
    return h.cast(self, h.out.dtype)


@op("prims::convert_element_type", "prims::device_put")
def convert_element_type(h, a, **_):
    return h.cast(a, h.out.dtype)
