"""Python numbers that a program reads while it runs: out of tensors, and those that are arguments of the model."""

from __future__ import annotations

from typing import Any

from ir import dims
from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Node, Origin, Value
from ir.importer.symbols import Symbols
from ir.passes.checks import check
from ir.types import DType, TensorType


def number(name: str, source: Value, value: Any, symbols: Symbols) -> Any:
    """What the node of this name reads out of a 0-d tensor.

    A file has there what the model's checks say that the number is: 3, or the size of an input. What is read may be
    another, so that it is a symbol of its own, which is held to that.
    """
    read = symbols.read(value)
    is_truth = source.type.dtype is DType.bool
    if isinstance(read, Expr) and (read.as_symbol or is_truth) and symbols.are_from_data(read.symbols):
        return read
    fresh = symbols.fresh(name, "float" if source.type.dtype.is_float else "int")
    return dims.call("eq", fresh, 1) if is_truth else fresh


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
