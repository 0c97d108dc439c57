"""Values, and how types, attributes and constants are spelled in MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.types import DType, TensorType

ELEMENT = {
    DType.bool: "i1",
    **{DType[f"int{b}"]: f"i{b}" for b in (8, 16, 32, 64)},
    **{DType[f"uint{b}"]: f"ui{b}" for b in (8, 16, 32, 64)},
    DType.float16: "f16",
    DType.bfloat16: "bf16",
    DType.float32: "f32",
    DType.float64: "f64",
}


class HloValue:
    """An SSA value of the module: its name, its type, and what it is a broadcast of, along which axes."""

    __slots__ = ("name", "source", "type")

    def __init__(self, name: str, type: TensorType, source: tuple[HloValue, list[int]] | None = None) -> None:
        self.name = name
        self.type = type
        self.source = source

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


class Index(str):
    """The name of a scalar of MLIR's type `index`: a size that is only known at run time."""


def spelled(type: TensorType | str) -> str:
    """`tensor<?x3xf32>`: a dimension is static or it is not, and which symbol it is says the graph."""
    if isinstance(type, str):
        return type
    dims = [f"{d}x" if isinstance(d, int) else "?x" for d in type.shape]
    return f"tensor<{''.join(dims)}{ELEMENT[type.dtype]}>"


def as_signed(type: TensorType) -> TensorType:
    """The type with signed integers in place of unsigned ones."""
    return type.with_dtype(DType[type.dtype.name.removeprefix("u")]) if type.dtype.kind == "uint" else type


def attribute(value: Any) -> str:
    """A Python value as an attribute; a string stands as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, str):
        return value
    if value and isinstance(value[0], Sequence):
        return f"dense<{[list(v) for v in value]}> : tensor<{len(value)}x{len(value[0])}xi64>"
    return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"


def literal(array: np.ndarray, dtype: DType) -> str:
    """`dense<...>` with exactly these numbers; an array of one number repeated is that number."""
    if array.size and (array == array.flat[0]).all() and len({x.tobytes() for x in array.flat[:64]}) == 1:
        return f"dense<{_number(array.flat[0], dtype)}>"
    if array.size == 0:
        return "dense<>"

    def nested(part: np.ndarray) -> str:
        return f"[{', '.join(map(nested, part))}]" if part.ndim else _number(part[()], dtype)

    return f"dense<{nested(array)}>"


def _number(x: Any, dtype: DType) -> str:
    if dtype is DType.bool:
        return "true" if x else "false"
    if dtype.is_integer:
        return str(int(x))
    if np.isfinite(np.float64(x)):
        return f"{float(x):.16e}"
    bits = np.asarray(x).view(f"uint{dtype.bits}")
    return f"0x{int(bits):0{dtype.bits // 4}X}"
