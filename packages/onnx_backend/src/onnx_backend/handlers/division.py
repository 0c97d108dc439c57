"""Quotients and remainders, whose sign is the dividend's or the divisor's, whose zeros have one too."""

from __future__ import annotations

from ir.types import DType
from onnx_backend.handlers.elementwise import trunc
from onnx_backend.registry import register as op


@op("aten::div", "aten::divide", "aten::true_divide")
def div(h, self, other, rounding_mode=None):
    if 0 in h.out.shape:
        return nothing(h)
    if rounding_mode == "floor":
        return floor_divide(h, self, other)
    number = h.out.dtype.is_float and isinstance(other, float)  # which emit rounds, or not, as torch does
    self, other = (h.tensor(self, h.out.dtype), other) if number else operands(h, self, other)
    quotient = h.emit("Div", self, other)  # of integers: rounded to zero
    return trunc(h, quotient) if rounding_mode == "trunc" else quotient


def nothing(h):
    """An empty result: onnxruntime looks for a 0 among integer divisors even where there is nothing to divide."""
    return h.full(h.out.shape, 0, h.out.dtype)


def operands(h, self, other, dtype=None):
    """Dividend and divisor in the result's element type; a divisor of integers is as empty as the result may be."""
    self, other = (h.tensor(x, dtype or h.out.dtype) for x in (self, other))
    dims = [s for s in h.out.shape if h.may_be_empty(s)]
    spread = h.out.dtype.is_integer and not never_zero(other) and any(s not in other.type.shape for s in dims)
    return self, h.expand(other, h.out.shape) if spread else other


@op("aten::floor_divide")
def floor_divide(h, self, other):
    if 0 in h.out.shape:
        return nothing(h)
    half = h.out.dtype in (DType.float16, DType.bfloat16)
    # onnxruntime rounds some halves on the way and some not: 2 // 1e-9 is nan where one step sees a 0 there
    self, other = operands(h, self, other, DType.float32 if half else None)
    if h.out.dtype.kind == "uint":
        return h.emit("Div", self, other)
    if h.out.dtype.is_integer:
        return floored(h, self, other)
    # the remainder comes off first: 1.0 // 0.1 is 9, although 1.0 / 0.1 rounds to 10
    rest = h.emit("Mod", self, other, fmod=1)
    whole = h.emit("Div", h.emit("Sub", self, rest), other)
    down = h.cast(opposite(h, rest, other), self.type.dtype)
    result, ratio = h.emit("Round", h.emit("Sub", whole, down)), h.emit("Div", self, other)
    some = h.emit("Greater", h.emit("Abs", result), 0)
    result = h.emit("Where", some, result, h.emit("Mul", ratio, 0.0))  # 0.0 and -0.0 by the ratio's sign
    result = result if never_zero(other) else h.emit("Where", h.emit("Equal", other, 0), ratio, result)
    return h.cast(result, h.out.dtype)


def floored(h, self, other):
    """The quotient of integers rounded down; nothing on the way leaves the type, even beside its ends."""
    other, turned = one_for_minus_one(h, other)
    self = self if turned is None else h.emit("Where", turned, h.emit("Neg", self), self)
    rest = h.emit("Mod", self, other)  # the sign of the divisor
    if other.array is not None and bool(((other.array > 0) & (other.array & (other.array - 1) == 0)).all()):
        return h.emit("Div", h.emit("Sub", self, rest), other)  # powers of two divide the lowest number
    quotient = h.emit("Div", self, other)  # rounded to zero
    exact = h.emit("Equal", h.emit("Add", h.emit("Mul", quotient, other), rest), self)
    return h.emit("Where", exact, quotient, h.emit("Sub", quotient, 1))


def one_for_minus_one(h, other):
    """A divisor with 1 for -1, and where it was -1: the lowest number over -1 ends onnxruntime's process."""
    if h.out.dtype not in (DType.int32, DType.int64) or (other.array is not None and bool((other.array != -1).all())):
        return other, None
    turned = h.emit("Equal", other, -1)
    return h.emit("Where", turned, 1, other), turned


def opposite(h, rest, other):
    """True where a remainder is not zero and its sign is not the divisor's."""
    if other.array is not None and other.array.size == 1:
        return h.emit("Less" if other.array.item() > 0 else "Greater", rest, 0)
    return h.emit("Less", h.emit("Mul", h.emit("Sign", rest), h.emit("Sign", other)), 0)


def never_zero(x):
    return x.array is not None and bool((x.array != 0).all())


@op("aten::remainder")
def remainder(h, self, other):
    if 0 in h.out.shape:
        return nothing(h)
    self, other = operands(h, self, other)
    if not h.out.dtype.is_float:
        return h.emit("Mod", self, one_for_minus_one(h, other)[0])  # the sign of the divisor
    rest = h.emit("Mod", self, other, fmod=1)  # the sign of the dividend
    return h.emit("Where", opposite(h, rest, other), h.emit("Add", rest, other), rest)


@op("aten::fmod")
def fmod(h, self, other):
    if 0 in h.out.shape:
        return nothing(h)
    self, other = operands(h, self, other)
    if h.out.dtype is DType.int64:  # onnxruntime's Mod goes by way of doubles
        other, _ = one_for_minus_one(h, other)
        return h.emit("Sub", self, h.emit("Mul", h.emit("Div", self, other), other))
    return h.emit("Mod", self, one_for_minus_one(h, other)[0], fmod=1)
