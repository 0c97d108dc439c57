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
rows({name: lambda h, self, other, _op=o: h.emit(_op, *both(h, self, other))
      for names, o in {"bitwise_and __and__": "tract_core_bitand", "bitwise_or __or__": "tract_core_bitor",
                       "bitwise_xor __xor__": "tract_core_bitxor", "bitwise_left_shift __lshift__": "tract_shl",
                       "bitwise_right_shift __rshift__": "tract_shr"}.items()
      for name in names.split()})  # fmt: skip
rows({
    "logical_not": "not",
    "bitwise_not": lambda h, self: h.emit("not" if self.type.dtype is DType.bool else "tract_core_bitnot", self),
})  # fmt: skip


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


# -- choice and bounds -----------------------------------------------------------------------------------------------


@op("aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar")
def where(h, condition, self, other):
    return h.emit("select", h.cast(condition, DType.bool), *both(h, self, other))


@op("aten::masked_fill")
def masked_fill(h, self, mask, value):
    return h.emit("select", mask, h.tensor(value, self), self)


@op("aten::clamp", "aten::clip", "aten::clamp_min", "aten::clamp_max")
def clamp(h, self, min=None, max=None):
    made = x = h.cast(self, h.out.dtype)
    bounds = {name: h.tensor(b, x) for name, b in (("max", min), ("min", max)) if b is not None}
    for name, bound in bounds.items():
        made = h.emit(name, made, bound)
    return h.with_nan_of(made, *bounds.values(), x)
