"""Python numbers that a program reads while it runs: out of tensors, and those that are arguments of the model."""

from __future__ import annotations

from typing import Any

from ir import dims
from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Node, Origin, Value
from ir.passes.checks import check
from ir.types import DType, TensorType


def reading(name: str, source: Value, read: Any, known: Any, origin: Origin) -> list[Node]:
    """The nodes by which the symbol `read` is the number in a 0-d tensor.

    `known` is what torch put in the symbol's place, because the model checks that the two are equal.

    Raises:
        CaptureError: the number is an expression, from which its symbol cannot be told.
    """
    if not isinstance(read, Expr):
        return []
    nodes, symbol = [], read
    if read.as_symbol is None and source.type.dtype is DType.bool and len(read.symbols) == 1:
        symbol = dims.symbol(*read.symbols)  # torch reads a truth value as `u == 1`
        number = Value(f"{name}_number", source.type.with_dtype(DType.int64))
        nodes.append(Node("ir::cast", {"self": source, "dtype": DType.int64}, (number,)))
        source = number
    if symbol.as_symbol is None:
        raise CaptureError(f"{name} reads {read}, not a plain symbol\n  at {origin}")
    nodes.append(Node("ir::item", {"self": source, "symbol": symbol}, (), origin, "none"))
    return nodes if known == read else [*nodes, _must_equal(read, known, origin)]


def _must_equal(number: Expr, known: Any, origin: Origin) -> Node:
    if isinstance(known, bool):
        condition = number if known else dims.call("not", number)
    else:
        condition = dims.call("eq", number, known)
    return check(condition, f"by a check in the model {number} is {known}, and it is not", origin)


def scalar(number: Any, name: str) -> Node:
    """The node that makes a 0-d tensor of a number or a size expression.

    Raises:
        CaptureError: it is neither.
    """
    if isinstance(number, Expr):
        dtype = {"int": DType.int64, "float": DType.float64, "bool": DType.bool}[number.kind]
    elif isinstance(number, bool | int | float):
        dtype = {bool: DType.bool, int: DType.int64, float: DType.float64}[type(number)]
    else:
        raise CaptureError(f"an output of the graph is {number!r}, which is neither a tensor nor a number")
    return Node("ir::scalar", {"value": number, "dtype": dtype}, (Value(name, TensorType(dtype, ())),))
