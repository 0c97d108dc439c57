"""The conditions on sizes that a .pt2 file holds, as checks.

torch writes them as Python over `L['name'].size()[axis]`, and its own module runs them. A file does not tell what the
model's code branched on from what torch's kernels asked for: all of them are checked, as there.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from ir import dims
from ir.bounds import bounds
from ir.dims import Dim, Expr
from ir.graph import Node, Range, Value
from ir.passes.checks import check

_COMPARES = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_ARITHMETIC = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
}  # fmt: skip
# of the difference of the two sides, whose least and greatest values are given
_HOLDS = {
    "ge": lambda low, high: low >= 0, "gt": lambda low, high: low > 0, "le": lambda low, high: high <= 0,
    "lt": lambda low, high: high < 0, "ne": lambda low, high: low > 0 or high < 0,
    "eq": lambda low, high: low == high == 0,
}  # fmt: skip

Leaf = Value | Dim | None  # of the arguments: a tensor, a number, something else


def checks(
    program: ExportedProgram, names: Sequence[str], leaves: Sequence[Leaf], ranges: Mapping[str, Range]
) -> list[Node]:
    """One node for each condition that has a form in the IR and does not follow from the ranges of the sizes.

    `names` are those of the positional arguments, `leaves` the flat arguments.
    """
    found = _by_source(program, names, leaves)
    nodes = []
    for text in getattr(program, "_guards_code", None) or ():
        try:
            condition = _expression(ast.parse(text.strip(), mode="eval").body, found, ranges)
        except _Unknown:
            continue
        if isinstance(condition, Expr):
            nodes.append(check(condition, f"the graph holds only where {condition}, as torch.export noted"))
    return nodes


class _Unknown(Exception):
    """A condition on something else than sizes and numbers."""


def _by_source(program: ExportedProgram, names: Sequence[str], leaves: Sequence[Leaf]) -> dict[str, Leaf]:
    """The flat arguments by torch's name for each: `L['x']`, `L['pair'][0]`."""
    spec = program.call_spec.in_spec
    if spec is None or spec.num_leaves != len(leaves):
        return {}
    args, kwargs = pytree.tree_unflatten(list(range(len(leaves))), spec)
    given = dict(zip(names, args, strict=False)) | kwargs
    places = pytree.tree_leaves_with_path(given)
    return {ast.unparse(ast.parse(f"L{pytree.keystr(path)}", mode="eval")): leaves[i] for path, i in places}


def _expression(node: ast.AST, found: Mapping[str, Leaf], ranges: Mapping[str, Range]) -> Any:
    """A condition, or a part of one; True for what always holds."""
    inner = functools.partial(_expression, found=found, ranges=ranges)
    match node:
        case ast.Constant(value=bool() | int()):
            return node.value
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
            return _compared(_COMPARES[type(op)], inner(left), inner(right), ranges)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](inner(left), inner(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.BoolOp(op=op, values=values):
            parts = [p for p in map(inner, values) if p is not True or isinstance(op, ast.Or)]
            return functools.reduce(lambda a, b: dims.call(type(op).__name__.lower(), a, b), parts) if parts else True
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[]), slice=ast.Constant(value=int(axis))
        ):
            value = found.get(ast.unparse(tensor))
            if isinstance(value, Value) and axis < value.type.rank:
                return value.type.shape[axis]
        case ast.Subscript():
            number = found.get(ast.unparse(node))
            if isinstance(number, int | Expr):
                return number
    raise _Unknown


def _compared(fn: str, a: Any, b: Any, ranges: Mapping[str, Range]) -> Any:
    difference = a - b
    if _HOLDS[fn](*bounds(difference, ranges)):
        return True
    return dims.call(fn, a, b) if isinstance(difference, Expr) else False
