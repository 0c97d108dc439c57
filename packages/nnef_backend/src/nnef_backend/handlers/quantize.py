"""The rounding to bfloat16. Quantisation is torch's own arithmetic and ir.decompositions.quantize, in floats."""

from __future__ import annotations

import math

from ir.types import DType
from nnef_backend.passes.widen_bfloat16 import ROUND
from nnef_backend.registry import register as op


@op(ROUND)
def bfloat16(h, self):
    """float32 rounded to a value of bfloat16, halves to even, in f64: beside 2**45 times itself 8 bits of it are left.

    Below bfloat16's normal numbers all have the same last place, 2**-133.
    """
    x = h.cast(self, DType.float64)
    small = h.emit("lt", h.emit("abs", x), 2.0**-126)
    beside = h.emit("select", small, 1.5 * 2.0**-81, h.emit("mul", x, 2.0**45))
    made = h.emit("sub", h.emit("add", x, beside), beside)
    made = h.emit("select", h.emit("eq", made, 0.0), h.emit("mul", x, made), made)  # a zero has the sign of x
    return h.cast(h.emit("select", h.emit("eq", h.emit("abs", x), math.inf), x, made), self.type.dtype)
