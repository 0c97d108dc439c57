"""The conditions on sizes that a .pt2 file holds, as checks.

torch writes them as Python over `L['name'].size()[axis]`, and its own module runs them. A file of torch's does not tell
what the model's code branched on from what torch's kernels asked for: all of them are checked, as there. The files that
the eager target writes do tell (`ir.importer.pt2.recorded_conditions`).
"""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir import dims
from ir.bounds import Range, bounds
from ir.dims import Dim, Expr
from ir.errors import CaptureError
from ir.graph import Node, Value
from ir.importer.calling_convention import keys_of
from ir.importer.pt2.expressions import bounded
from ir.importer.torch_api import guards_code
from ir.passes.checks import check

_COMPARES = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_ARITHMETIC = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
}  # fmt: skip
_LONGEST, _LONGEST_NAME, _MOST_TERMS, _HIGHEST = 10_000, 200, 500, 64
_PARTS = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Tuple, ast.Load, ast.boolop,
    ast.operator, ast.unaryop, ast.cmpop, ast.keyword, ast.Call, ast.IfExp, ast.Subscript,
)  # fmt: skip
_NAMES = {"L", "torch", "math", "int", "float", "bool", "len", "max", "min", "abs"}
_ATTRIBUTES = {
    "_base", "size", "stride", "storage_offset", "shape", "dtype", "device", "ndim", "dim", "numel", "item", "floor",
    "ceil", "sqrt", "trunc", "sym_max", "sym_min", "sym_not", "sym_float", "sym_ite",
}  # fmt: skip
# of the difference of the two sides, whose least and greatest values are given
_HOLDS = {
    "ge": lambda low, high: low >= 0, "gt": lambda low, high: low > 0, "le": lambda low, high: high <= 0,
    "lt": lambda low, high: high < 0, "ne": lambda low, high: low > 0 or high < 0,
    "eq": lambda low, high: low == high == 0,
}  # fmt: skip
_NOTED = (
    ", as torch.export noted; the file does not say whether the model's code asked for that or torch's shape rules. "
    'Capture the model itself for other inputs: the file that ir.export(model, args, target="eager", path=...) writes '
    "holds to what the code asked for alone"
)

Leaf = Value | Dim | None  # of the arguments: a tensor, a number, something else


def checks(program: Any, names: Sequence[str], leaves: Sequence[Leaf], ranges: Mapping[str, Range]) -> list[Node]:
    """One node for each condition that has a form in the IR and does not follow from the ranges of the sizes.

    `names` are those of the positional arguments, `leaves` the flat arguments.
    """
    found = _by_source(program, names, leaves)
    nodes = []
    for text in guards_code(program) or ():
        try:
            condition = _expression(_parsed(text), found, ranges)
        except _Unknown:
            continue
        if isinstance(condition, Expr):
            nodes.append(check(condition, f"the graph holds only where {condition}{_NOTED}"))
    return nodes


def plain_condition(text: str) -> str:
    """The condition, written anew: torch makes code of it, which has no comments and lines of the file's then.

    Raises:
        CaptureError: it is no condition on sizes.
    """
    return ast.unparse(_parsed(text))


def _parsed(text: str) -> ast.expr:
    """The tree of a condition.

    Raises:
        CaptureError: it is more than arithmetic on sizes, which torch's own module would run as code; or too long.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval") if len(text) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    parts = list(ast.walk(tree)) if tree is not None else [None]
    called = {id(p.func) for p in parts if isinstance(p, ast.Call)}
    held = {id(h) for p in parts for h in _beside(p)}
    for part in parts:
        fine = (
            part.attr in _ATTRIBUTES or (id(part) not in called and _is_field(part))
            if isinstance(part, ast.Attribute)
            else part.id in _NAMES
            if isinstance(part, ast.Name)
            else isinstance(part, _PARTS) and not (isinstance(part, ast.Constant) and _odd(part.value))
        )
        fine = fine and (id(part) in held or not _is_sequence(part)) and _is_bounded(part)
        if not fine:
            raise CaptureError(f"a guard is {text!r:.200}, which is no condition on sizes")
    assert tree is not None
    return tree.body


def _beside(part: Any) -> Sequence[ast.AST]:
    """Where texts and tuples may stand: what they are compared with, keys, the name of a device."""
    match part:
        case ast.Compare():
            return [part.left, *part.comparators]
        case ast.Subscript():
            return [part.value, part.slice]
        case ast.Call(func=ast.Attribute(attr="device")):
            return part.args
        case ast.Call(func=ast.Name(id="len")):
            return part.args
        case ast.Call():
            return [part.func]
    return ()


def _is_sequence(part: Any) -> bool:
    """True for a text, a tuple and a tensor's shape, which a product would repeat."""
    match part:
        case ast.Constant(value=value):
            return isinstance(value, (str, bytes))
        case ast.Tuple() | ast.Attribute(attr="shape"):
            return True
        case ast.Call(func=ast.Attribute(attr="size" | "stride"), args=[]):
            return True
    return False


def _is_bounded(part: Any) -> bool:
    """False for a power or a shift by what is no small number, and for one of another: Python computes any."""
    if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Pow | ast.LShift):
        return True
    exponent = part.right.operand if isinstance(part.right, ast.UnaryOp) else part.right
    number = exponent.value if isinstance(exponent, ast.Constant) else None
    return (
        isinstance(number, int | float)
        and number <= _HIGHEST
        and not any(isinstance(p, ast.Pow | ast.LShift) for p in ast.walk(part.left))
    )


def _is_field(part: ast.Attribute) -> bool:
    """True for a field of an argument, which is only read: `L['pair'].first`."""
    inner: ast.AST = part
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    return isinstance(inner, ast.Name) and inner.id == "L" and not part.attr.startswith("_")


def _odd(constant: Any) -> bool:
    """True for a text that could end the one that it is put into, and for what is longer than a name or a number."""
    return len(repr(constant)) > _LONGEST_NAME or (isinstance(constant, str) and bool(set(constant) & set("'\"\\\n")))


class _Unknown(Exception):
    """A condition on something else than sizes and numbers."""


@dataclass(frozen=True)
class _Leaves:
    """The flat arguments by torch's name for each.

    A class that the process does not know is a dict of its fields here, or where it is a named tuple a tuple: `places`
    has the numbers of those fields.
    """

    named: Mapping[str, Leaf]
    places: Mapping[str, int] = field(default_factory=dict)

    def get(self, source: ast.AST) -> Leaf:
        """The argument that a guard names; None if there is none."""
        name = ast.unparse(source)
        return self.named[name] if name in self.named else self.named.get(ast.unparse(self._by_key(source)))

    def _by_key(self, source: ast.AST) -> ast.AST:
        match source:
            case ast.Attribute(value=inner, attr=name):
                key = ast.Constant(self.places.get(name, name))
                return ast.Subscript(self._by_key(inner), key)  # type: ignore[arg-type]
            case ast.Subscript(value=inner, slice=key):
                return ast.Subscript(self._by_key(inner), key)  # type: ignore[arg-type]
        return source


def _by_source(program: Any, names: Sequence[str], leaves: Sequence[Leaf]) -> _Leaves:
    """The flat arguments by torch's name for each: `L['x']`, `L['pair'][0]`."""
    spec = program.call_spec.in_spec
    if spec is None or spec.num_leaves != len(leaves):
        return _Leaves({})
    named = {source: leaf for source, leaf in zip(sources(spec, names), leaves, strict=True) if source}
    return _Leaves(named, getattr(program.call_spec, "places", {}))


def sources(spec: Any, names: Sequence[str]) -> list[str]:
    """torch's name for each of the flat arguments; empty where it is not known."""
    positional, keywords = spec.children()
    children = positional.children()
    known = [*names, *[""] * len(children)][: len(children)]
    places = [p if name else "" for name, c in zip(known, children, strict=True) for p in _places(c, f"[{name!r}]")]
    places += _places(keywords, "")
    return [ast.unparse(ast.parse(f"L{p}", mode="eval")) if p else "" for p in places]


def _places(spec: Any, prefix: str) -> list[str]:
    """The path to each leaf, as pytree writes it: of a class, its keys."""
    if spec.is_leaf():
        return [prefix]
    fields = hasattr(spec.context, "_fields")  # a named tuple, whose context is its class
    keys = spec.context if spec.type in (dict, collections.OrderedDict) else keys_of(spec)
    found: list[str] = []
    for key, child in zip(keys, spec.children(), strict=True):
        found += _places(child, f"{prefix}.{key}" if fields else f"{prefix}[{key!r}]")
    return found


def _expression(node: ast.AST, found: _Leaves, ranges: Mapping[str, Range]) -> Any:
    """A condition, or a part of one; True for what always holds."""
    inner = functools.partial(_expression, found=found, ranges=ranges)
    match node:
        case ast.Constant(value=bool() | int()):
            return node.value
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
            return _compared(_COMPARES[type(op)], inner(left), inner(right), ranges)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _computed(_ARITHMETIC[type(op)], inner(left), inner(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)  # the value of a part that decides the whole
            parts = [p for p in map(inner, values) if p is not (not decisive)]
            if not parts or any(p is decisive for p in parts):
                return decisive == bool(parts)
            return functools.reduce(lambda a, b: dims.call(type(op).__name__.lower(), a, b), parts)
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[]), slice=ast.Constant(value=int(axis))
        ):
            value = found.get(tensor)
            if isinstance(value, Value) and axis < value.type.rank:
                return value.type.shape[axis]
        case ast.Subscript():
            number = found.get(node)
            if isinstance(number, int | Expr):
                return number
    raise _Unknown


def _computed(fn: Any, a: Any, b: Any) -> Any:
    terms = [len(x.terms) if isinstance(x, Expr) else 1 for x in (a, b)]
    if terms[0] * terms[1] > _MOST_TERMS:
        raise _Unknown
    try:
        return bounded(fn(a, b))
    except ArithmeticError as error:
        raise CaptureError(f"a guard of the file cannot be computed ({error})") from error


def _compared(fn: str, a: Any, b: Any, ranges: Mapping[str, Range]) -> Any:
    difference = a - b
    if _HOLDS[fn](*bounds(difference, ranges)):
        return True
    return dims.call(fn, a, b) if isinstance(difference, Expr) else False
