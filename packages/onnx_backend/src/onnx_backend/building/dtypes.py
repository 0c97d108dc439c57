"""Element types between ir, onnx and onnxruntime's schema strings."""

from __future__ import annotations

import math
from functools import cache

import onnx_ir

from ir.types import DType

_NAMES = {
    DType.bool: ("BOOL", "bool"),
    DType.uint8: ("UINT8", "uint8"),
    DType.uint16: ("UINT16", "uint16"),
    DType.uint32: ("UINT32", "uint32"),
    DType.uint64: ("UINT64", "uint64"),
    DType.int8: ("INT8", "int8"),
    DType.int16: ("INT16", "int16"),
    DType.int32: ("INT32", "int32"),
    DType.int64: ("INT64", "int64"),
    DType.float8_e4m3fn: ("FLOAT8E4M3FN", "float8e4m3fn"),
    DType.float8_e5m2: ("FLOAT8E5M2", "float8e5m2"),
    DType.float16: ("FLOAT16", "float16"),
    DType.bfloat16: ("BFLOAT16", "bfloat16"),
    DType.float32: ("FLOAT", "float"),
    DType.float64: ("DOUBLE", "double"),
    DType.complex64: ("COMPLEX64", "complex64"),
    DType.complex128: ("COMPLEX128", "complex128"),
}
TO_ONNX = {d: onnx_ir.DataType[n] for d, (n, _) in _NAMES.items()}
FROM_ONNX = {o: d for d, o in TO_ONNX.items()}
SCHEMA_NAMES = {d: f"tensor({s})" for d, (_, s) in _NAMES.items()}
FROM_SCHEMA = {s: d for d, s in SCHEMA_NAMES.items()}
FLOAT8 = frozenset({DType.float8_e4m3fn, DType.float8_e5m2})


@cache
def saturates(dtype: DType) -> bool:
    """True where torch casts what is beyond a type of 8 bits to its largest number, and not to infinity or NaN."""
    import torch

    return math.isfinite(torch.tensor(math.inf).to(getattr(torch, dtype.name)).float().item())
