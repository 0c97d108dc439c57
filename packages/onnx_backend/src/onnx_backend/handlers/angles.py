"""Angles of two sides, of which ONNX has none."""

from __future__ import annotations

import math

from ir.types import DType
from onnx_backend.handlers.elementwise import signbit
from onnx_backend.registry import register as op


@op("aten::atan2", "aten::arctan2")
def atan2(h, self, other):
    """atan(y / x), plus or minus pi on the left; infinity over infinity is 1, as in C, and 0 over 0 is the 0 above."""
    dtype = h.out.dtype if h.out.dtype.bits >= 32 else DType.float32
    y, x = h.cast(self, dtype), h.cast(other, dtype)
    origin = h.emit("And", h.emit("Equal", y, 0), h.emit("Equal", x, 0))
    endless = h.emit("And", h.emit("IsInf", y), h.emit("IsInf", x))
    signs = h.emit("Mul", h.emit("Sign", y), h.emit("Sign", x))
    ratio = h.emit("Div", y, h.emit("Where", origin, h.const(1, x), x))
    angle = h.emit("Atan", h.emit("Where", endless, signs, ratio))
    turn = h.emit("Where", signbit(h, y), h.const(-math.pi, x), h.const(math.pi, x))
    return h.cast(h.emit("Where", signbit(h, x), h.emit("Add", angle, turn), angle), h.out.dtype)
