"""What ONNX has of linear algebra, and helpers of what rests on it."""

from __future__ import annotations

from ir.types import DType
from onnx_backend.registry import register as op

F64 = DType.float64


def swapped(h, x):
    """The matrices transposed."""
    rank = x.type.rank
    return h.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def mul(h, a, b):
    return h.emit("Mul", a, b)


def sub(h, a, b):
    return h.emit("Sub", a, b)


def column_sum(h, x):
    return h.reduce("ReduceSum", x, [x.type.rank - 2], True)


def counted(h, size):
    """0, 1, ... as a row and as a column."""
    row = h.range(0, size, size=size)
    return row, h.unsqueeze(row, [1])


def identity(h, size):
    row, column = counted(h, size)
    return h.cast(h.emit("Equal", row, column), F64)


def triangle(h, x, upper, strict=False):
    """The matrices with zeros beyond a triangle."""
    rows, columns = x.type.shape[-2:]
    row, column = counted(h, columns)[0], counted(h, rows)[1]
    kept = h.emit(("Greater" if upper else "Less") + ("" if strict else "OrEqual"), row, column)
    return h.emit("Where", kept, x, h.const(0, x))


def at(h, x, i, axis):
    """The i-th row (axis -2) or column (axis -1) with its axis kept."""
    return h.emit("Gather", x, h.reshape(i, [1]), axis=x.type.rank + axis)


@op("aten::linalg_det", "aten::_linalg_det", "aten::det")
def linalg_det(h, self=None, A=None):
    x = A if self is None else self
    return [h.emit("Det", x, shape=h.out.shape), None, None][: len(h.results)]
