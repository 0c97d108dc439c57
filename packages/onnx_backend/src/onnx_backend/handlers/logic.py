"""Comparisons, choice and bits: the element-wise ops that answer or ask yes or no."""

from __future__ import annotations

import math

from ir.dims import Expr
from ir.types import DType
from onnx_backend.handlers.division import floor_divide
from onnx_backend.handlers.elementwise import isfinite
from onnx_backend.registry import register as op

# -- comparisons and choice --------------------------------------------------------------------------------------------


@op("aten::ne", "aten::not_equal")
def ne(h, self, other):
    return h.emit("Not", h.emit("Equal", self, other))


@op("aten::isclose")
def isclose(h, self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    same = h.emit("Equal", self, other)
    if not self.type.dtype.is_float:
        self, other = h.cast(self, DType.float64), h.cast(other, DType.float64)
    room = h.emit("Add", h.emit("Mul", h.emit("Abs", other), abs(rtol)), atol)
    gap = h.emit("Abs", h.emit("Sub", self, other))
    near = h.emit("And", isfinite(h, gap), h.emit("LessOrEqual", gap, room))
    close = h.emit("Or", same, near)
    if not equal_nan:
        return close
    return h.emit("Or", close, h.emit("And", h.emit("IsNaN", self), h.emit("IsNaN", other)))


@op("aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar")
def where(h, condition, self, other):
    condition = h.cast(condition, DType.bool)
    one, two = (h.tensor(h.stored(x, h.out.dtype), h.out.dtype) for x in (self, other))
    return h.emit("Where", condition, one, two)


@op("aten::masked_fill")
def masked_fill(h, self, mask, value):
    return h.emit("Where", h.cast(mask, DType.bool), h.tensor(h.stored(value, h.out.dtype), h.out.dtype), self)


@op("aten::clamp", "aten::clip")
def clamp(h, self, min=None, max=None):
    self = h.cast(self, h.out.dtype)  # a fraction as a bound makes floats of integers
    if any(isinstance(b, float) and math.isnan(b) for b in (min, max)):
        return h.full(h.out.shape, math.nan, h.out.dtype)
    min, max = (h.stored(b, h.out.dtype) for b in (min, max))
    min, max = (h.tensor(b, h.out.dtype) if isinstance(b, Expr) and b.kind == "float" else b for b in (min, max))
    if not any(h.is_value(b) and (b.type.rank or perhaps_nan(b)) for b in (min, max)):
        # a bound left out is the largest finite number to onnxruntime, and infinity is lost
        free = (-math.inf, math.inf) if h.out.dtype.is_float else (None, None)
        bounds = [f if b is None else b for b, f in zip((min, max), free, strict=True)]
        bounds = [None if b is None else h.tensor(b, h.out.dtype) for b in bounds]
        return h.emit("Clip", self, *bounds)
    low = self if min is None else h.emit("Max", self, h.tensor(min, h.out.dtype))
    return low if max is None else h.emit("Min", low, h.tensor(max, h.out.dtype))


def perhaps_nan(bound):
    """True of a bound that makes all of it nan in torch, and is no bound to onnxruntime's Clip."""
    if not bound.type.dtype.is_float:
        return False
    return bound.array is None or bool((bound.array != bound.array).any())


@op("aten::clamp_min")
def clamp_min(h, self, min):
    return clamp(h, self, min=min)


@op("aten::clamp_max")
def clamp_max(h, self, max):
    return clamp(h, self, max=max)


# -- bits --------------------------------------------------------------------------------------------------------------


def bits(h, logic, bitwise, self, other):
    self, other = h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)
    return h.emit(logic if h.out.dtype is DType.bool else bitwise, self, other)


@op("aten::bitwise_and", "aten::__and__")
def bitwise_and(h, self, other):
    return bits(h, "And", "BitwiseAnd", self, other)


@op("aten::bitwise_or", "aten::__or__")
def bitwise_or(h, self, other):
    return bits(h, "Or", "BitwiseOr", self, other)


@op("aten::bitwise_xor", "aten::__xor__")
def bitwise_xor(h, self, other):
    return bits(h, "Xor", "BitwiseXor", self, other)


@op("aten::bitwise_not")
def bitwise_not(h, self):
    if self.type.dtype is DType.bool:
        return h.emit("Not", self)
    return h.emit("BitwiseNot", self) if h.has("BitwiseNot") else h.emit("Sub", h.const(-1, self), self)


@op("aten::bitwise_left_shift", "aten::__lshift__")
def bitwise_left_shift(h, self, other):
    """Nothing is left where the shift is negative or as wide as the type."""
    self, bits = h.tensor(self, h.out.dtype), h.out.dtype.bits
    other = h.tensor(other) if isinstance(other, Expr) else other
    if not h.is_value(other):
        return h.emit("Mul", self, h.const(1 << other if 0 <= other < bits else 0, h.out.dtype))
    other = h.cast(other, DType.int64)
    factor = h.cast(h.emit("Pow", h.const(2, DType.int64), other), h.out.dtype)
    return h.emit("Where", beyond(h, other, bits), h.const(0, factor), h.emit("Mul", self, factor))


@op("aten::bitwise_right_shift", "aten::__rshift__")
def bitwise_right_shift(h, self, other):
    """The sign is left where the shift is negative or as wide as the type."""
    self, dtype = h.tensor(self, h.out.dtype), h.out.dtype
    other = h.tensor(other) if isinstance(other, Expr) else other
    width = dtype.bits - (dtype.kind == "int")  # one less moves out all but the sign, too
    if not h.is_value(other) and 0 <= other < width:
        return floor_divide(h, self, h.const(1 << other, dtype))
    rest = h.const(0, self)
    if dtype.kind == "int":
        rest = h.emit("Where", h.emit("Less", self, 0), h.const(-1, self), rest)
    if not h.is_value(other):
        return h.expand(rest, h.out.shape)
    other, wide = h.cast(other, DType.int64), h.cast(self, DType.int64)
    power = h.emit("Pow", h.const(2, DType.int64), h.emit("Clip", other, 0, width - 1))
    quotient = h.emit("Div", h.emit("Sub", wide, h.emit("Mod", wide, power)), power)
    return h.emit("Where", beyond(h, other, width), rest, h.cast(quotient, dtype))


def beyond(h, shift, width):
    return h.emit("Or", h.emit("Less", shift, 0), h.emit("GreaterOrEqual", shift, width))
