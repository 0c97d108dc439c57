"""What a symbolic function holds: values, their types and the nodes behind them, by TorchScript's method names.

A `Value` is a tensor of the model, a constant that has not been written yet (a number, a string, None, a torch tensor),
or a list of values. It stays itself until it is an operand.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir
import torch

from ir.dims import Expr
from ir.importer.schema import DTYPES, TORCH_DTYPES
from ir.types import DType
from ir.types import TensorType as IrType
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.building.values import OnnxValue

# TorchScript's numbering of element types: (number, name, torch dtype).
_SCALARS = (
    ("Byte", torch.uint8), ("Char", torch.int8), ("Short", torch.int16), ("Int", torch.int32), ("Long", torch.int64),
    ("Half", torch.float16), ("Float", torch.float32), ("Double", torch.float64), ("ComplexHalf", torch.complex32),
    ("ComplexFloat", torch.complex64), ("ComplexDouble", torch.complex128), ("Bool", torch.bool),
    ("QInt8", torch.qint8), ("QUInt8", torch.quint8), ("QInt32", torch.qint32), ("BFloat16", torch.bfloat16),
)  # fmt: skip
SCALAR_NAMES = {dtype: name for name, dtype in _SCALARS}
SCALAR_NUMBERS = {dtype: i for i, (_, dtype) in enumerate(_SCALARS)}
NAMED_DTYPES = dict(_SCALARS)


class JitScalarType(enum.IntEnum):
    """An element type by TorchScript's number, as dtype arguments of symbolic functions come."""

    UINT8, INT8, INT16, INT, INT64, HALF, FLOAT, DOUBLE = range(8)
    COMPLEX32, COMPLEX64, COMPLEX128, BOOL, QINT8, QUINT8, QINT32, BFLOAT16 = range(8, 16)
    UNDEFINED = 16

    @classmethod
    def from_dtype(cls, dtype: torch.dtype | None) -> JitScalarType:
        """The member for a torch dtype."""
        return cls(SCALAR_NUMBERS.get(dtype, cls.UNDEFINED)) if dtype is not None else cls.UNDEFINED

    @classmethod
    def from_name(cls, name: str) -> JitScalarType:
        """The member for a name such as "Float"."""
        return cls.from_dtype(NAMED_DTYPES.get(name))

    @classmethod
    def from_value(cls, value: Any, default: JitScalarType | None = None) -> JitScalarType:
        """The member for a value's element type; `default` where it has none."""
        dtype = value.type().dtype() if isinstance(value, Value) else getattr(value, "dtype", None)
        if dtype is None:
            return cls.UNDEFINED if default is None else default
        return cls.from_dtype(dtype)

    def dtype(self) -> torch.dtype:
        """The torch dtype."""
        return _SCALARS[self][1]

    def scalar_name(self) -> str:
        """The name, such as "Float"."""
        return _SCALARS[self][0]

    def onnx_type(self) -> int:
        """ONNX's number of the element type."""
        return int(TO_ONNX[DTYPES[self.dtype()]])

    def onnx_compatible(self) -> bool:
        """True if ONNX has the element type."""
        return self.dtype() in DTYPES and DTYPES[self.dtype()] in TO_ONNX


class TensorType:
    """The type of a tensor: `sizes()` is None unless all are static, `varyingSizes()` has None for dynamic ones."""

    def __init__(self, dtype: DType, shape: Sequence[Any] | None) -> None:
        self._dtype = dtype
        self.shape = None if shape is None else tuple(shape)

    def varyingSizes(self) -> list[int | None] | None:
        """The sizes, None for dynamic ones; None if the rank is unknown."""
        return None if self.shape is None else [None if isinstance(s, Expr) else s for s in self.shape]

    def sizes(self) -> list[int] | None:
        """The sizes if all are static, else None."""
        sizes = self.varyingSizes()
        return None if sizes is None or None in sizes else sizes  # type: ignore[return-value]

    def dim(self) -> int | None:
        """The rank, None if unknown."""
        return None if self.shape is None else len(self.shape)

    def dtype(self) -> torch.dtype:
        """The torch dtype."""
        return TORCH_DTYPES[self._dtype]

    def scalarType(self) -> str:
        """The element type's name, such as "Float"."""
        return SCALAR_NAMES[self.dtype()]

    def kind(self) -> str:
        return "TensorType"

    def device(self) -> torch.device:
        return torch.device("cpu")

    def with_sizes(self, sizes: Sequence[Any] | None) -> TensorType:
        """The type with other sizes."""
        return TensorType(self._dtype, sizes)

    def with_dtype(self, dtype: torch.dtype) -> TensorType:
        """The type with another element type."""
        return TensorType(DTYPES[dtype], self.shape)

    def isSubtypeOf(self, other: Any) -> bool:
        """True if the other is a tensor type."""
        return isinstance(other, TensorType) or other.kind() == "TensorType"

    def __str__(self) -> str:
        sizes = "*" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.scalarType()}({sizes})"


class OtherType:
    """The type of what is no tensor: a number, a string, None, a list."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def kind(self) -> str:
        return self._kind

    def isSubtypeOf(self, other: Any) -> bool:
        """True if the other is of the same kind."""
        return bool(self._kind == other.kind())

    def sizes(self) -> None: ...

    def dim(self) -> None: ...

    def dtype(self) -> None: ...

    varyingSizes = scalarType = sizes

    def __str__(self) -> str:
        return self._kind


_KINDS = ((bool, "BoolType"), (int, "IntType"), (float, "FloatType"), (str, "StringType"), (type(None), "NoneType"),
          (list, "ListType"))  # fmt: skip


class Value:
    """One argument or result of a symbolic function."""

    def __init__(self, content: Any) -> None:
        self.content: Any = content  # an OnnxValue, a list of Values, or the constant itself

    @property
    def held(self) -> OnnxValue | None:
        """The tensor of the model, None for constants and lists."""
        return self.content if isinstance(self.content, OnnxValue) else None

    def constant(self) -> Any:
        """The content as plain Python or as a torch tensor.

        Raises:
            LookupError: it is computed when the model runs.
        """
        if isinstance(self.content, OnnxValue):
            if self.content.array is None:
                raise LookupError(self.debugName())
            return torch.from_numpy(self.content.array.copy())
        if isinstance(self.content, list):
            return [v.constant() for v in self.content]
        if isinstance(self.content, Expr):
            raise LookupError(str(self.content))
        return self.content

    def type(self) -> Any:
        """A TensorType, or the type of a constant or list."""
        if isinstance(self.content, OnnxValue):
            return TensorType(self.content.type.dtype, self.content.type.shape)
        if isinstance(self.content, torch.Tensor):
            return TensorType(DTYPES[self.content.dtype], self.content.shape)
        if isinstance(self.content, Expr):
            return OtherType("IntType" if self.content.kind == "int" else "FloatType")
        return OtherType(next(k for t, k in _KINDS if isinstance(self.content, t)))

    def setType(self, type: TensorType) -> Value:
        """Say the type of a result, where the op's schema does not."""
        if isinstance(self.content, OnnxValue):
            shape: Any = type.shape if type.shape is None or None not in type.shape else None
            self.content.type = IrType(type._dtype, shape)
        return self

    def isCompleteTensor(self) -> bool:
        """True for a tensor of static shape."""
        return self.type().sizes() is not None

    def debugName(self) -> str:
        """The value's name in the model."""
        return self.content.name if isinstance(self.content, OnnxValue) else repr(self.content)

    def node(self) -> Node:
        """What makes the value."""
        return Node(self)

    def requires_grad(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"{self.debugName()} : {self.type()}"


class Node:
    """What makes a value: `kind()` is "onnx::Add", "onnx::Constant", "prim::ListConstruct" or "prim::Param"."""

    def __init__(self, value: Value) -> None:
        self._value = value
        held = value.held
        self._made: onnx_ir.Node | None = held.value.producer() if held is not None else None

    def kind(self) -> str:
        """The op's name with its namespace."""
        content = self._value.content
        if content is None or isinstance(content, str):
            return "prim::Constant"
        if isinstance(content, list):  # of numbers alone it is what torch's constant propagation leaves of it
            plain = all(isinstance(v.content, (bool, int, float)) for v in content)
            return "onnx::Constant" if plain else "prim::ListConstruct"
        if isinstance(content, Expr):
            return "prim::Size"
        if not isinstance(content, OnnxValue) or content.array is not None:
            return "onnx::Constant"
        return "prim::Param" if self._made is None else f"{self._made.domain or 'onnx'}::{self._made.op_type}"

    def mustBeNone(self) -> bool:
        """True for an argument that was left out."""
        return self._value.content is None

    def inputs(self) -> Iterator[Value]:
        """The items of a list."""
        yield from self._value.content if isinstance(self._value.content, list) else ()

    def output(self) -> Value:
        return self._value

    def outputs(self) -> list[Value]:
        return [self._value]

    def outputsSize(self) -> int:
        """The number of results."""
        return 1 if self._made is None else len(self._made.outputs)

    def hasAttribute(self, name: str) -> bool:
        """True if the node has the attribute."""
        return name in self.attributeNames()

    def attributeNames(self) -> list[str]:
        """The names of the attributes; a constant's is "value"."""
        return ["value"] if self.kind().endswith("::Constant") else list(self._made.attributes) if self._made else []

    def kindOf(self, name: str) -> str:
        """TorchScript's letter for the type of an attribute."""
        found = self[name]
        if isinstance(found, torch.Tensor):
            return "t"
        first = found[0] if isinstance(found, list) and found else found
        return {str: "s", float: "f"}.get(type(first), "i") + ("s" if isinstance(found, list) else "")

    def __getitem__(self, name: str) -> Any:
        if name == "value" and self.kind().endswith("::Constant"):
            return self._value.constant()
        if self._made is None or name not in self._made.attributes:
            raise KeyError(f"{self.kind()} has no attribute {name!r}")
        value = self._made.attributes[name].value
        return list(value) if isinstance(value, tuple) else value

    i = f = s = ss = z = __getitem__

    def t(self, name: str) -> torch.Tensor:
        """An attribute as a tensor."""
        return torch.as_tensor(self[name])

    def __getattr__(self, name: str) -> Any:
        if name in ("is", "fs"):  # the first is a word of Python's, so it is asked for by getattr
            return self.__getitem__
        raise AttributeError(f"a node of a symbolic function has no {name!r} here")

    def __str__(self) -> str:
        return f"{self._value} = {self.kind()}"
