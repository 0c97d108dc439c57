"""Comparisons, logic, bits and choice: the element-wise ops that answer or ask yes or no."""

from __future__ import annotations

import math

from ir.types import DType
from nnef_backend.handlers.elementwise import both
from nnef_backend.registry import register as op
from nnef_backend.registry import rows

rows({name: lambda h, self, other, _op=o: h.emit(_op, self, other)
      for names, o in {"eq": "eq", "ne not_equal": "ne", "lt less": "lt", "le less_equal": "le", "gt greater": "gt",
                       "ge greater_equal": "ge", "logical_and": "and", "logical_or": "or",
                       "logical_xor": "tract_core_xor"}.items() for name in names.split()})  # fmt: skip
rows({name: lambda h, self, other: h.emit("tract_core_bitand", *both(h, self, other))
      for name in ("bitwise_and", "__and__")})  # fmt: skip
rows({name: lambda h, self, other, _op=o: _bits_beside(h, _op, *both(h, self, other))
      for names, o in {"bitwise_or __or__": "tract_core_bitor", "bitwise_xor __xor__": "tract_core_bitxor"}.items()
      for name in names.split()})  # fmt: skip
rows({
    "logical_not": "not",
    "bitwise_not": lambda h, self: h.emit("not" if self.type.dtype is DType.bool else "tract_core_bitnot", self),
})  # fmt: skip


def _bits_beside(h, op, x, y):
    """Beside zeros the other operand: tract drops them by itself, and has no kernel of `x * (x ^ 0)`, a square then."""
    for a, b in ((x, y), (y, x)):
        zeros = h.content(b)
        if zeros is not None and not zeros.any() and a.type.shape == h.out.shape:
            return a
    return h.emit(op, x, y)


@op("aten::isclose")
def isclose(h, self, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    same = h.emit("eq", self, other)
    if not self.type.dtype.is_float:
        self, other = h.cast(self, DType.float64), h.cast(other, DType.float64)
    elif equal_nan:
        same = h.emit("or", same, h.emit("and", h.is_nan(self), h.is_nan(other)))
    apart = h.emit("abs", h.emit("sub", self, other))
    near = h.emit("le", apart, h.emit("add", h.emit("abs", h.emit("mul", other, rtol)), atol))
    return h.emit("or", same, h.emit("and", h.emit("lt", apart, math.inf), near))


@op("aten::bitwise_left_shift", "aten::__lshift__")
def left_shift(h, self, other):
    return _shifted(h, "tract_shl", *both(h, self, other))


@op("aten::bitwise_right_shift", "aten::__rshift__")
def right_shift(h, self, other):
    return _shifted(h, "tract_shr", *both(h, self, other))


def _shifted(h, op, x, by):
    """By more places than there are, or by less than none, torch shifts everything out; tract goes by the rest."""
    bits, signs = h.out.dtype.bits, op == "tract_shr" and h.out.dtype.kind == "int"
    if by.array is not None and (by.array >= 0).all() and (by.array < bits).all():
        return h.emit(op, x, by)
    inside = h.emit("lt", by, bits)
    inside = inside if by.type.dtype.kind == "uint" else h.emit("and", inside, h.emit("ge", by, 0))
    made = h.emit(op, x, h.emit("select", inside, by, bits - 1))
    return made if signs else h.emit("select", inside, made, 0)  # the last place of a signed number fills all


# -- choice and bounds -----------------------------------------------------------------------------------------------


@op("aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar")
def where(h, condition, self, other):
    choices = both(h, *(h.stored(x, h.out.dtype) for x in (self, other)))
    return h.emit("select", h.cast(condition, DType.bool), *choices)


@op("aten::masked_fill")
def masked_fill(h, self, mask, value):
    return h.emit("select", mask, h.tensor(h.stored(value, self.type.dtype), self), self)


@op("aten::clamp", "aten::clip", "aten::clamp_min", "aten::clamp_max")
def clamp(h, self, min=None, max=None):
    made = x = h.cast(self, h.out.dtype)
    limits = (("max", h.stored(min, h.out.dtype)), ("min", h.stored(max, h.out.dtype)))
    bounds = {name: h.tensor(b, x) for name, b in limits if b is not None}
    for name, bound in bounds.items():
        made = h.emit(name, made, bound)
    return h.with_nan_of(made, *bounds.values(), x)
