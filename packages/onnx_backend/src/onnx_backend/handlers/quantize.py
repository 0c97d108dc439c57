"""Quantisation: QuantizeLinear and DequantizeLinear, placed so that onnxruntime computes between them in integers.

ONNX divides by the scale where torch multiplies by its reciprocal: a number within a rounding error of the middle
between two steps may come out one step further. What those two ops cannot say falls to torch's own arithmetic.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx_ir import DataType

from ir.dims import Expr
from ir.helper import numpy_dtype
from ir.types import DType
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.building.made import same, turned
from onnx_backend.registry import register as op

_LIMITS = {t: (np.iinfo(t.name).min, np.iinfo(t.name).max) for t in DType if t.is_integer}
_HALF_BYTES = {
    DType.int8: (DataType.INT4, ml_dtypes.int4, -8, 7),
    DType.uint8: (DataType.UINT4, ml_dtypes.uint4, 0, 15),
}


@op("quantized_decomposed::quantize_per_tensor")
def quantize_per_tensor(h, input, scale, zero_point, quant_min, quant_max, dtype):
    return _quantize(h, input, scale, zero_point, quant_min, quant_max, dtype)


@op("quantized_decomposed::dequantize_per_tensor")
def dequantize_per_tensor(h, input, scale, zero_point, quant_min, quant_max, dtype, out_dtype=None):
    return _dequantize(h, input, scale, zero_point, quant_min, quant_max)


@op("quantized_decomposed::quantize_per_channel")
def quantize_per_channel(h, input, scales, zero_points, axis, quant_min, quant_max, dtype):
    return _quantize(h, input, scales, zero_points, quant_min, quant_max, dtype, h.axis(axis, input))


@op("quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(h, input, scales, zero_points, axis, quant_min, quant_max, dtype, out_dtype=None):
    return _dequantize(h, input, scales, zero_points, quant_min, quant_max, h.axis(axis, input))


@op("quantized_decomposed::dequantize_per_channel_group")
def dequantize_per_group(h, input, scales, zero_points, quant_min, quant_max, dtype, group_size, output_dtype):
    return _dequantize(h, input, scales, zero_points, quant_min, quant_max, 1, group_size)


@op("torchao::dequantize_affine")
def dequantize_affine(
    h, input, block_size, scale, zero_point, input_dtype, quant_min=None, quant_max=None, output_dtype=DType.float32
):
    low, high = _LIMITS[input.type.dtype]
    low, high = low if quant_min is None else quant_min, high if quant_max is None else quant_max
    parted = [i for i, (b, s) in enumerate(zip(block_size, input.type.shape, strict=True)) if b != s]
    if not parted:
        return _dequantize(h, input, scale, zero_point, low, high)
    if len(parted) == 1 and block_size[parted[0]] == 1:
        return _dequantize(h, input, scale, zero_point, low, high, parted[0])
    grouped = [i for i, b in enumerate(block_size) if b != 1]
    if len(grouped) != 1:
        h.refuse("block_size divides more than one axis; DequantizeLinear has blocks along one")
    return _dequantize(h, input, scale, zero_point, low, high, grouped[0], block_size[grouped[0]])


@op("aten::fake_quantize_per_tensor_affine")
def fake_quantize(h, self, scale, zero_point, quant_min, quant_max, fake_quant_enabled=None):
    if fake_quant_enabled is not None:
        h.refuse("fake_quant_enabled is a tensor, only known at run time")
    return _fake(h, self, scale, zero_point, quant_min, quant_max)


@op("aten::fake_quantize_per_channel_affine")
def fake_quantize_per_channel(h, self, scale, zero_point, axis, quant_min, quant_max):
    return _fake(h, self, scale, zero_point, quant_min, quant_max, h.axis(axis, self))


@op("aten::_int_mm")
def integer_product(h, self, mat2):
    return h.emit("MatMulInteger", self, mat2, shape=h.out.shape)


# -- the two ops -------------------------------------------------------------------------------------------------------


def _quantize(h, x, scale, zero, low, high, dtype, axis=None):
    """`clamp(round(x / scale) + zero, low, high)`, as QuantizeLinear; a weight is stored as integers."""
    if dtype not in _LIMITS or dtype.bits > 16:
        h.refuse(f"QuantizeLinear makes no {dtype}")
    if h.is_value(low) or h.is_value(high):
        h.refuse("quant_min or quant_max is a tensor; QuantizeLinear needs numbers")
    stored = _stored(h, x, scale, zero, low, high, dtype, axis)
    if stored is not None:
        return stored
    shape = () if axis is None else (x.type.shape[axis],)
    x = h.cast(x, DType.float32)
    step, origin = h.shaped(_scale(h, scale), shape), h.shaped(_zero(h, zero, dtype), shape)
    narrow = (low, high) != _LIMITS[dtype]
    fixed = step.array is not None and origin.array is not None
    if narrow and fixed:  # clipped before it, so that onnxruntime sees the op beside its neighbour
        bounds = (np.float32(n - int(origin.array)) * step.array for n in (low, high))
        x = h.emit("Clip", x, *(float(b) for b in bounds))
    made = h.emit("QuantizeLinear", x, step, origin, axis=axis, shape=x.type.shape)
    return h.emit("Clip", made, low, high) if narrow and not fixed else made


def _dequantize(h, x, scale, zero, low, high, axis=None, block=None):
    """`(x - zero) * scale`, as DequantizeLinear; where the integers of a weight fit into 4 bits they are stored so."""
    if h.out.dtype is not DType.float32:
        h.refuse(f"DequantizeLinear to {h.out.dtype}, where torch rounds each step")
    if block is not None and h.opset < 21:
        h.refuse("scales by block need opset=21")
    sizes = x.type.shape
    blocks = (*sizes[:axis], sizes[axis] // block, *sizes[axis + 1 :]) if block is not None else ()
    shape = blocks or (() if axis is None else (sizes[axis],))
    steps = h.shaped(_scale(h, scale), shape)
    if zero is None:  # without it onnxruntime fails where it quantises a bias beside the weight
        origin = h.const(np.zeros(shape), x.type.dtype)
    else:
        origin = h.shaped(_zero(h, zero, x.type.dtype), shape)
    x, origin = _halved(h, x, _unshared(h, origin, x), low, high)
    operands = [x, steps, *([] if block is not None and _is_zero(origin) else [origin])]
    turned = [_turned(h, t) for t in operands] if block is not None and x.type.rank == 2 else [None]
    if all(t is not None for t in turned):  # the form that onnxruntime makes MatMulNBits of; `linear` turns it back
        return h.transpose(_scaled(h, turned, 1 - axis, block), [1, 0])
    return _scaled(h, operands, axis, block)


def _scaled(h, operands, axis, block):
    made = h.emit("DequantizeLinear", *operands, axis=axis, block_size=block, shape=operands[0].type.shape)
    made.type = made.type.with_dtype(DType.float32)
    return made


def _fake(h, x, scale, zero, low, high, axis=None):
    """There and back again; the narrowest element type that holds the limits."""
    dtype = next((t for t in (DType.uint8, DType.int8, DType.uint16, DType.int16)
                  if _LIMITS[t][0] <= low and high <= _LIMITS[t][1]), None)  # fmt: skip
    if dtype is None or x.type.dtype is not DType.float32:
        h.refuse(f"QuantizeLinear of {x.type.dtype} to {low}..{high}")
    return _dequantize(h, _quantize(h, x, scale, zero, low, high, dtype, axis), scale, zero, low, high, axis)


# -- their operands ----------------------------------------------------------------------------------------------------


def _scale(h, scale):
    """The scale in float32: 0-d for a whole tensor, else a vector."""
    if not h.is_value(scale):
        return h.const(scale, DType.float32)
    return _narrowed(h, scale, DType.float32)


def _zero(h, zero, dtype):
    """The zero point in the integers' type; a weight is stored so."""
    if not h.is_value(zero):
        return h.const(zero, dtype)
    made = h.derived(("cast", dtype), [zero], lambda z: z.astype(numpy_dtype(dtype)), zero.type.shape, dtype)
    return made or h.cast(_narrowed(h, zero, DType.float32), dtype)


def _unshared(h, zero, x):
    """The zero point of an int8 weight: onnxruntime rewrites both as uint8, and fails where two weights share one."""
    held = x.value.const_value
    if held is None or x.type.dtype is not DType.int8:
        return zero
    return h.derived(("zero point", id(held)), [zero], lambda z: z, zero.type.shape) or zero


def _narrowed(h, x, dtype):
    """A chosen parameter, which torch has widened, as it was before."""
    before = x.before if x.made_by("Cast") is not None else None
    return before if before is not None and before.type.dtype is dtype else h.cast(x, dtype)


def _turned(h, x):
    """A transposed weight; None for what is no weight."""
    stored = None if x.value.dtype is TO_ONNX[x.type.dtype] else x.value.dtype
    return h.derived("transposed", [x], lambda w: w.T, x.type.shape[::-1], stored=stored, within=turned)


def _stored(h, x, scale, zero, low, high, dtype, axis):
    """A quantised weight, computed when it is written; None where something of it is known at run time only."""
    tensors = [t for t in (x, scale, zero) if h.is_value(t)]

    def make(x, *rest):
        rest = iter(rest)
        step, origin = (next(rest) if h.is_value(p) else np.float64(p) for p in (scale, zero))
        if axis is not None:
            along = [-1 if i == axis else 1 for i in range(x.ndim)]
            step, origin = step.reshape(along), origin.reshape(along)
        inverse = (1 / step).astype(np.float32)
        whole = np.round(x.astype(np.float32) * inverse) + origin
        return np.clip(whole, low, high).astype(numpy_dtype(dtype))

    key = "quantised", low, high, dtype, axis, *(None if h.is_value(p) else p for p in (scale, zero))
    return h.derived(key, tensors, make, x.type.shape, dtype)


def _halved(h, x, zero, low, high):
    """Integers and zero points in 4 bits, where both are weights whose content fits and the opset has them."""
    stored, kind, least, most = _HALF_BYTES.get(x.type.dtype, (None, None, 0, 0))
    contents = [t.value.const_value for t in (x, zero)]
    if kind is None or h.opset < 21 or low < least or high > most or any(c is None for c in contents):
        return x, zero
    if any(isinstance(s, Expr) for s in x.type.shape) or not all(_within(c.numpy(), least, most) for c in contents):
        return x, zero

    def halve(t):
        return h.derived("4 bits", [t], lambda a: a.astype(kind), t.type.shape, stored=stored, within=same)

    return halve(x), halve(zero)


def _is_zero(x):
    """True of a weight of zeros: without a zero point MatMulNBits reads less."""
    return x.value.const_value is not None and not x.value.const_value.numpy().any()


def _within(array, least, most):
    return array.size == 0 or (array.min() >= least and array.max() <= most)
