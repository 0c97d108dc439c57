"""The rounding to bfloat16, and quantisation there and back; the rest of it is ir.decompositions.quantize."""

from __future__ import annotations

import math

from ir.types import DType
from nnef_backend.passes.widen_bfloat16 import ROUND
from nnef_backend.registry import register as op


@op("aten::fake_quantize_per_tensor_affine")
def fake_quantize(h, self, scale, zero_point, quant_min, quant_max, fake_quant_enabled=None):
    if fake_quant_enabled is not None:
        h.refuse("fake_quant_enabled is a tensor, only known at run time")
    return _there_and_back(h, self, scale, zero_point, quant_min, quant_max, math.inf)


@op("aten::fake_quantize_per_channel_affine")
def fake_quantize_per_channel(h, self, scale, zero_point, axis, quant_min, quant_max):
    after = list(range(1, self.type.rank - h.axis(axis, self)))
    scale, zero_point = (h.unsqueeze(v, after) for v in (scale, zero_point))
    return _there_and_back(h, self, scale, zero_point, quant_min, quant_max, 2.0**63)


def _there_and_back(h, x, scale, zero_point, low, high, limit):
    """NaN, and steps beyond the integers that torch's kernel counts them in, become the lowest step."""
    scale, zero = (h.cast(h.tensor(v, DType.float32), DType.float32) for v in (scale, zero_point))
    steps = h.emit("mul", h.cast(x, DType.float32), h.emit("recip", scale))
    place = h.emit("add", h.emit("tract_core_round_even", steps), zero)
    place = h.emit("min", h.emit("max", place, float(low)), float(high))
    beyond = h.is_nan(steps) if limit == math.inf else h.emit("not", h.emit("lt", h.emit("abs", steps), limit))
    place = h.emit("select", beyond, float(low), place)
    return h.cast(h.emit("mul", h.emit("sub", place, zero), scale), x.type.dtype)


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
