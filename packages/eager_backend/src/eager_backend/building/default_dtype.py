"""A node that torch computes in its default dtype is told the element type that the graph says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from ir.dims import Expr
from ir.graph import Node, Value, map_arg
from ir.importer.default_dtype import SIZE, Kind, arguments_in_default
from ir.importer.schema import DTYPES, TORCH_DTYPES, overload_of
from ir.types import DType


class Converting(Protocol):
    """What is asked of the helper."""

    node: Node

    def in_type(self, x: Any, dtype: DType) -> Any:
        """A tensor or a number as a tensor of this type."""


def told(h: Converting, arguments: dict[str, Any]) -> tuple[Node, dict[str, Any]]:
    """The node and its arguments for a call that no default dtype decides; as they are where none does."""
    node = h.node
    follows = "self" in node.args and any(v.type.dtype.is_float for v in node.inputs)  # most nodes
    overload = None if follows or not node.op.startswith("aten::") else overload_of(node.op, node.origin.overload)
    if overload is None or any(v.type.is_sparse for v in node.inputs):
        return node, arguments
    given = {name: map_arg(arg, _plain) for name, arg in node.args.items()}
    wanted, names = arguments_in_default(overload, given, [TORCH_DTYPES[v.type.dtype] for v in node.outputs])
    if wanted is None:
        return node, arguments
    dtype = DTYPES[wanted]
    if names == ["dtype"]:
        return replace(node, args={**node.args, "dtype": dtype}), arguments | {"dtype": dtype}
    return node, arguments | {n: _converted(h, arguments[n], dtype) for n in names}


def _plain(arg: Any) -> Any:
    if isinstance(arg, Value):
        return Kind(TORCH_DTYPES[arg.type.dtype], arg.type.rank)
    if isinstance(arg, Expr):
        return float(SIZE) if arg.kind == "float" else SIZE
    return TORCH_DTYPES[arg] if isinstance(arg, DType) else arg


def _converted(h: Converting, arg: Any, dtype: DType) -> Any:
    return [_converted(h, a, dtype) for a in arg] if isinstance(arg, list) else h.in_type(arg, dtype)
