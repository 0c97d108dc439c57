"""Values, and how types, attributes and constants are spelled in MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from iree.compiler import ir as mlir

from ir.types import DType, TensorType

ELEMENT = {
    DType.bool: "i1",
    **{DType[f"{u}int{b}"]: f"{u}i{b}" for u in ("", "u") for b in (8, 16, 32, 64)},
    DType.float16: "f16",
    DType.bfloat16: "bf16",
    DType.float32: "f32",
    DType.float64: "f64",
}


@dataclass(frozen=True, eq=False)
class HloValue:
    """A value of the module: MLIR's own, its type, and what it is a broadcast of, along which axes."""

    name: Any
    type: TensorType
    source: tuple[HloValue, list[int]] | None = None


def spelled(type: TensorType) -> str:
    """`tensor<?x3xf32>`: a dimension is static or it is not, and which symbol it is says the graph."""
    dims = [f"{d}x" if isinstance(d, int) else "?x" for d in type.shape]
    return f"tensor<{''.join(dims)}{ELEMENT[type.dtype]}>"


def is_fixed(value: Any) -> bool:
    """Whether a value of MLIR is the same in each run: made of constants and weights alone."""
    open_, seen = [value.owner], set()
    while open_:
        made = open_.pop()
        if isinstance(made, mlir.Block) or len(made.operation.regions):
            return False
        if made not in seen:
            seen.add(made)
            open_ += [x.owner for x in made.operation.operands]
    return True


def is_of_sizes(value: Any) -> bool:
    """Whether a value of MLIR reads nothing that a run is given but its sizes."""
    open_, seen = [value.owner], set()
    while open_:
        made = open_.pop()
        if isinstance(made, mlir.Block):
            return False
        if made not in seen:
            seen.add(made)
            open_ += [x.owner for x in made.operation.operands if made.operation.name != "tensor.dim"]
    return True


def is_zero(value: Any) -> bool:
    """Whether a value of MLIR is the number 0, broadcast or not."""
    made = value.owner
    while not isinstance(made, mlir.Block) and made.operation.name.endswith("broadcast_in_dim"):
        made = made.operation.operands[0].owner
    if isinstance(made, mlir.Block) or made.operation.name != "stablehlo.constant":
        return False
    held = mlir.DenseElementsAttr(made.operation.attributes["value"])
    return held.is_splat and not mlir.IntegerAttr(held.get_splat_value()).value


def spans(value: Any, axis: int) -> bool:
    """Whether an operand that a value of MLIR is computed of, element by element, has this axis."""
    open_, seen = [(value, axis)], set()
    while open_:
        x, at = open_.pop()
        if (x, at) in seen:
            continue
        seen.add((x, at))
        if isinstance(x.owner, mlir.Block):
            return True
        made = x.owner.operation
        if made.name.endswith("broadcast_in_dim"):
            source = made.operands[0]
            places = list(mlir.DenseI64ArrayAttr(made.attributes["broadcast_dimensions"]))
            if at in places and source.type.shape[k := places.index(at)] != 1:
                open_.append((source, k))
        elif not made.name.endswith(("constant", "iota")):
            if len(made.regions) or not _is_elementwise(made, x.type.shape):
                return True
            open_ += [(operand, at) for operand in made.operands]
    return False


def _is_elementwise(made: Any, shape: Any) -> bool:
    types = [x.type for x in made.operands]
    return all(isinstance(t, mlir.RankedTensorType) and t.shape == shape for t in types)


def as_signed(type: TensorType) -> TensorType:
    """The type with signed integers in place of unsigned ones."""
    return type.with_dtype(DType[type.dtype.name.removeprefix("u")])


def attribute(value: Any) -> str:
    """A Python value as an attribute; text stands as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, str):
        return value
    return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"


def repeats(array: np.ndarray) -> bool:
    """Whether it is one number all over, by its bits."""
    return bool(array.size) and array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size


def literal(array: np.ndarray) -> str:
    """`dense<...>` with exactly these bits; an array of one number repeated is that number."""
    if not array.size:
        return "dense<>"
    if array.dtype == np.bool_:
        return f"dense<{str(bool(array.flat[0]) if repeats(array) else array.tolist()).lower()}>"
    given = array.reshape(-1)[:1] if repeats(array) else array
    return f'dense<"0x{given.tobytes().hex()}">'
