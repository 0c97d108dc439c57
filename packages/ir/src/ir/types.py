"""Element types and tensor types. Names are torch's, without torch."""

from __future__ import annotations

import builtins
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir.dims import Dim


class DType(enum.Enum):
    """An element type; members carry torch's names, `short` is the spelling of the text form (`f32`)."""

    bool = ("bool", "bool", 8)
    uint8 = ("u8", "uint", 8)
    uint16 = ("u16", "uint", 16)
    uint32 = ("u32", "uint", 32)
    uint64 = ("u64", "uint", 64)
    int8 = ("i8", "int", 8)
    int16 = ("i16", "int", 16)
    int32 = ("i32", "int", 32)
    int64 = ("i64", "int", 64)
    float8_e4m3fn = ("f8e4m3fn", "float", 8)
    float8_e5m2 = ("f8e5m2", "float", 8)
    float16 = ("f16", "float", 16)
    bfloat16 = ("bf16", "float", 16)
    float32 = ("f32", "float", 32)
    float64 = ("f64", "float", 64)
    complex32 = ("c32", "complex", 32)
    complex64 = ("c64", "complex", 64)
    complex128 = ("c128", "complex", 128)

    @property
    def short(self) -> str:
        """The spelling in the text form."""
        return self.value[0]

    @property
    def kind(self) -> str:
        """One of bool, uint, int, float, complex."""
        return self.value[1]

    @property
    def bits(self) -> int:
        """Bits per element as stored (a bool takes a byte)."""
        return self.value[2]

    @property
    def is_float(self) -> builtins.bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> builtins.bool:
        """Signed or unsigned, not bool."""
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> builtins.bool:
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """The dtype of a complex type's parts; a real type is its own."""
        return _REAL.get(self, self)

    def __str__(self) -> str:
        return self.short

    def __repr__(self) -> str:
        return f"DType.{self.name}"


_REAL = {
    DType.complex32: DType.float16,
    DType.complex64: DType.float32,
    DType.complex128: DType.float64,
}


def element_type(dtype: object) -> DType:
    """What a handler gives for an element type, if it is one.

    Raises:
        TypeError: it is none; of a name or a type of torch's the message has ours.
    """
    if isinstance(dtype, DType):
        return dtype
    name = str(dtype).removeprefix("torch.")
    ours = f"DType.{name}" if name in DType.__members__ else "one of ir.DType, such as DType.int64"
    raise TypeError(f"{dtype!r:.60} is no element type: give {ours}")


@dataclass(frozen=True)
class TensorType:
    """A tensor's element type and its dimensions, each an int or an expression over named symbols.

    `layout` is torch's word for how the elements lie: "strided", or "sparse_coo", "sparse_csr" and so on, which only
    targets that say `has_sparse` are given.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    layout: str = "strided"

    def __post_init__(self) -> None:
        element_type(self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def numbers(self) -> builtins.int:
        """How many numbers it holds, one along each dynamic dimension."""
        return math.prod(d for d in self.shape if isinstance(d, int))

    @property
    def nbytes(self) -> builtins.int:
        """The bytes that these take."""
        return self.numbers * self.dtype.bits // 8

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape in another element type."""
        return TensorType(dtype, self.shape, self.layout)

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        """The same element type in another shape."""
        return TensorType(self.dtype, tuple(shape), self.layout)

    @property
    def is_sparse(self) -> builtins.bool:
        return self.layout != "strided"

    def __str__(self) -> str:
        dense = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return f"{dense} {self.layout}" if self.is_sparse else dense
