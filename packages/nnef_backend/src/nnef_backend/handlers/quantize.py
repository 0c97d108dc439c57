"""Quantisation with steps that are tensors; with numbers for them torch's own arithmetic is a body that tract runs.

tract's quantised element types are no part of it: what is stored as integers is computed with as floats.
"""

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


@op("quantized_decomposed::quantize_per_tensor.tensor")
def quantize_per_tensor(h, input, scale, zero_point, quant_min, quant_max, dtype):
    step, zero = (_number(h, v) for v in (scale, zero_point))
    return h.cast(_steps(h, h.cast(input, DType.float32), step, zero, quant_min, quant_max), dtype)


@op("quantized_decomposed::dequantize_per_tensor.tensor")
def dequantize_per_tensor(h, input, scale, zero_point, quant_min, quant_max, dtype, out_dtype=None):
    x, step, zero = (h.cast(v, h.out.dtype) for v in (input, _number(h, scale), _number(h, zero_point)))
    return h.emit("mul", h.emit("sub", x, zero), step)


@op("aten::fake_quantize_per_tensor_affine")
def fake_quantize(h, self, scale, zero_point, quant_min, quant_max, fake_quant_enabled=None):
    if fake_quant_enabled is not None:
        h.refuse("a switch for it that is a tensor")
    step, zero = (h.tensor(v, DType.float32) for v in (scale, zero_point))
    return _there_and_back(h, self, step, zero, quant_min, quant_max)


@op("aten::fake_quantize_per_channel_affine")
def fake_quantize_per_channel(h, self, scale, zero_point, axis, quant_min, quant_max):
    sizes = [s if i == h.axis(axis, self) else 1 for i, s in enumerate(self.type.shape)]
    step, zero = (h.reshape(h.cast(v, DType.float32), sizes) for v in (scale, zero_point))
    return _there_and_back(h, self, step, zero, quant_min, quant_max)


@op("quantized_decomposed::choose_qparams", "quantized_decomposed::choose_qparams_symmetric")
def choose_qparams(h, input, quant_min, quant_max, eps, dtype):
    """torch's observers' formula (torch/ao/quantization/utils.py)."""
    x = h.cast(input, DType.float32)
    least, most = (
        h.emit("min", h.reduce("min_reduce", x, None), 0.0),
        h.emit("max", h.reduce("max_reduce", x, None), 0.0),
    )
    if h.node.op.endswith("symmetric"):
        reach = h.emit("max", h.emit("neg", least), most)
        step = h.emit("max", _divided(h, reach, (quant_max - quant_min) / 2), eps)
        zero = h.const(128.0 if dtype is DType.uint8 else 0.0, DType.float32)
    else:
        step = h.emit("max", _divided(h, h.emit("sub", most, least), quant_max - quant_min), eps)
        whole = h.emit("tract_core_round_even", _divided(h, least, step))
        zero = h.emit("clamp", h.emit("sub", float(quant_min), whole), float(quant_min), float(quant_max))
    return h.reshape(h.cast(step, DType.float64), [1]), h.reshape(h.cast(zero, DType.int64), [1])


def _divided(h, x, y):
    """The quotient of f32 as IEEE rounds it, out of f64: tract multiplies with the reciprocal."""
    return h.cast(h.emit("div", *(h.cast(h.tensor(v, DType.float32), DType.float64) for v in (x, y))), DType.float32)


def _number(h, x):
    """A tensor of one element as a number, which broadcasts over any shape."""
    return h.cast(h.reshape(x, []), DType.float32)


def _steps(h, x, step, zero, low, high):
    """The step that a number lies on, still a float."""
    whole = h.emit("tract_core_round_even", h.emit("mul", x, h.emit("recip", step)))
    return h.emit("clamp", h.emit("add", whole, zero), float(low), float(high))


def _there_and_back(h, x, step, zero, low, high):
    return h.emit("mul", h.emit("sub", _steps(h, h.floating(x), step, zero, low, high), zero), step)
