"""Explicit type promotion: operands are cast so that every element-wise op sees one element type.

torch's rules (torch.result_type): tensors with dimensions decide before 0-d tensors, those before Python numbers, and
a lower class decides only where its category (bool < integer < float < complex) is higher. torch has worked out the
result's dtype already, so most ops need no rule at all: their operands become what the result is. Where no rule is
written, torch's decomposition of the op has the casts (`mixes`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ir.dims import Expr
from ir.graph import Context, Graph, Node, Origin, Value, leaves, map_arg
from ir.ops import is_pointwise
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import DType

_BOTH = ("self", "other")
_SELF = ("self",)

# op -> the operands that take the element type of the result; those of element-wise ops as torch's tags tell do anyway
TO_RESULT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("floor_divide", "divide", "multiply", "subtract", "arctan2", "where", "float_power"),
        _BOTH,
    ),
    "huber_loss": ("self", "target"),
    "cat": ("tensors",),
    "stack": ("tensors",),
    "masked_fill": ("self", "value"),
    "copy": ("src",),
    **dict.fromkeys(
        ("special_expit", "special_ndtr", "sum", "prod", "cumsum", "cumprod", "mean", "nansum", "softmax", "_softmax",
         "log_softmax", "_log_softmax", "std", "logsumexp", "nanmean"),
        _SELF,
    ),
}  # fmt: skip
# op -> operands that must agree with each other, whatever the result is
TOGETHER: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("eq", "ne", "lt", "le", "gt", "ge", "equal", "isclose", "greater", "greater_equal", "less", "less_equal",
     "not_equal"),
    _BOTH,
)  # fmt: skip
TO_BOOL: Mapping[str, tuple[str, ...]] = {
    "logical_and": _BOTH, "logical_or": _BOTH, "logical_xor": _BOTH, "logical_not": _SELF,
}  # fmt: skip
# ops of halves in which torch takes Python numbers in float32: what float16 rounds to nothing counts there
IN_SINGLE = ("mul", "div", "addcmul", "addcdiv", "leaky_relu", "softplus", "addmm", "addbmm", "baddbmm", "add", "sub",
             "rsub", "multiply", "divide", "true_divide", "subtract")  # fmt: skip
_COMPLEX = {DType.float16: DType.complex32, DType.float64: DType.complex128}
_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


@contract(requires=("functional", "real"), settles="promoted")
def promote(graph: Graph) -> Graph:
    """Cast operands as torch does implicitly; nodes that need nothing stay the same objects."""
    casts: dict[tuple[Value, DType], Value] = {}
    edit = GraphEditor(graph)

    def cast(arg: Any, dtype: DType, made: list[Node], origin: Origin) -> Any:
        if not isinstance(arg, Value) or arg.type.dtype is dtype:
            return arg
        if (arg, dtype) not in casts:
            casts[arg, dtype] = edit.value(f"{arg.name}_{dtype.short}", arg.type.with_dtype(dtype))
            made.append(Node("ir::cast", {"self": arg, "dtype": dtype}, (casts[arg, dtype],), origin))
        return casts[arg, dtype]

    for node in graph.nodes:
        results, origin = node.outputs, replace(node.origin, overload="")
        operands, dtype = _rule(node)
        if _beyond_halves(node):
            operands = tuple(k for k, a in node.args.items() if isinstance(a, Value))
            dtype, results = DType.float32, _in_type(results, (DType.float32,), edit)
        if not operands and graph.context is not None:
            dtype, results = _widened(node, graph.context, edit)
            operands = tuple(k for k, a in node.args.items() if any(_is_number(v) for v in leaves(a)))
        before: list[Node] = []
        args = {k: promote(a) if isinstance(a, Graph) else a for k, a in node.args.items()}
        if dtype is not None:
            to_common = partial(cast, dtype=dtype, made=before, origin=origin)
            args |= {o: map_arg(args[o], to_common) for o in operands if o in args}
        pairs = [(wide, v) for wide, v in zip(results, node.outputs, strict=True) if wide is not v]
        after = [Node("ir::cast", {"self": wide, "dtype": v.type.dtype}, (v,), origin) for wide, v in pairs]
        if any(a is not node.args[k] for k, a in args.items()):
            made = Node(node.op, args, results, node.origin, node.returns, node.defaults)
            edit.replace(node, *before, made, *after)
    return edit.graph()


def _is_number(arg: Any) -> bool:
    return isinstance(arg, Value) and arg.type.dtype is not DType.bool


def _rule(node: Node) -> tuple[tuple[str, ...], DType | None]:
    if not node.op.startswith("aten::") or not node.outputs:
        return (), None
    name = node.op.removeprefix("aten::")
    name = name if name in TO_RESULT else name.removeprefix("special_")  # most of torch.special is there twice
    if name == "ldexp" and node.args["self"].type.dtype.is_float:  # integers go through torch.pow(2.0, other)
        return _ldexp(node)
    if name in TO_RESULT:
        return TO_RESULT[name], node.outputs[0].type.dtype
    if name in TOGETHER:
        return TOGETHER[name], result_type([node.args[o] for o in TOGETHER[name] if o in node.args])
    if name in TO_BOOL:
        return TO_BOOL[name], DType.bool
    result = node.outputs[0].type.dtype
    if result is DType.bool or len(node.outputs) > 1 or not is_pointwise(node):  # what tells of numbers is no number
        return (), None
    operands = tuple(k for k, a in node.args.items() if isinstance(a, Value))
    parts = not result.is_complex and any(node.args[k].type.dtype.is_complex for k in operands)  # abs, angle
    return ((), None) if parts else (operands, result)


def _ldexp(node: Node) -> tuple[tuple[str, ...], DType | None]:
    """The power is in the exponent's type; that of one number is in the operand's too, where that is not float32."""
    operand, exponent, result = node.args["self"].type, node.args["other"].type, node.outputs[0].type.dtype
    alone = exponent.dtype.is_float and not exponent.rank and operand.dtype is not DType.float32
    both = alone and promote_types(operand.dtype, exponent.dtype) is result
    return _BOTH if both else _SELF, result


def mixes(node: Node, context: Context) -> bool:
    """True if the op computes with operands of several element types: torch gives the same of operands cast before."""
    common, results = _common(node, context)
    return common is not None and all(r is v.type.dtype for r, v in zip(results, node.outputs, strict=True))


def _common(node: Node, context: Context) -> tuple[DType | None, tuple[DType, ...]]:
    """The type that a mixed op's operands can be cast to, and what it gives then; (None, ()) where there is none.

    Masks and indices are told from numbers: torch refuses the first as floats, the second as anything but integers,
    though not on fake tensors (index_fill), so what is called so never becomes a float.
    """
    operands = [v for v in node.inputs if not v.type.dtype.is_complex]
    indices = [v for name in ("index", "indices") for v in leaves(node.args.get(name))]
    if any(v.type.dtype.is_float for v in operands):
        operands = [v for v in operands if not any(v is i for i in indices)]
    if not node.op.startswith("aten::") or len({v.type.dtype for v in operands}) < 2:
        return None, ()
    if any(v.type.dtype is DType.bool for v in operands) and not context.result_types(
        node, {DType.bool: DType.float32}
    ):
        operands = [v for v in operands if v.type.dtype is not DType.bool]
    types, common = {v.type.dtype for v in operands}, result_type(operands)
    if common is not None and common.is_float:  # not narrower than a 0-d operand, whose digits would be lost
        common = functools.reduce(promote_types, types, common)
    results = context.result_types(node, dict.fromkeys(types, common)) if common and len(types) > 1 else None
    return (None, ()) if results is None else (common, results)


def _widened(node: Node, context: Context, edit: GraphEditor) -> tuple[DType | None, tuple[Value, ...]]:
    """For an op that computes in a wider floating type than it gives (a norm of halves with float32 weights): that type
    and the results in it, which are to be cast back.
    """
    common, results = _common(node, context)
    pairs = list(zip(node.outputs, results, strict=True)) if common is not None else []
    floats = all(v.type.dtype.is_float and r.is_float for v, r in pairs)
    if not floats or all(v.type.dtype is r for v, r in pairs):
        return None, node.outputs
    return common, _in_type(node.outputs, results, edit)


def _in_type(results: tuple[Value, ...], dtypes: Iterable[DType], edit: GraphEditor) -> tuple[Value, ...]:
    return tuple(
        edit.value(f"{v.name}_{d.short}", v.type.with_dtype(d)) if d is not v.type.dtype else v
        for v, d in zip(results, dtypes, strict=True)
    )


def _beyond_halves(node: Node) -> bool:
    """True of an op of `IN_SINGLE` with a number that float16 has not, or few digits of, or with a factor inside."""
    if node.op.removeprefix("aten::") not in IN_SINGLE or node.outputs[0].type.dtype is not DType.float16:
        return False
    numbers = [v for a in node.args.values() for v in leaves(a) if type(v) in (int, float)]
    if type(alpha := node.args.get("alpha", 1)) in (int, float) and abs(alpha) > 1:
        return True  # `x - 3 * x` is finite where `3 * x` is not
    return any(v and math.isfinite(v) and not 2**-14 <= abs(v) <= 65504 for v in numbers)


def result_type(args: Iterable[Any]) -> DType | None:
    """torch.result_type of values and Python numbers.

    Source: the documentation of torch.result_type and torch.promote_types.
    """
    classes: list[DType | None] = [None, None, None]
    for a in args:
        if isinstance(a, Value):
            at, dtype = (0 if a.type.rank else 1), a.type.dtype
        else:
            at, dtype = 2, _of_number(a)
        known = classes[at]
        classes[at] = dtype if known is None else promote_types(known, dtype)
    result: DType | None = None
    for c in classes:
        if c is None:
            continue
        if result is None:
            result = c
        elif result.is_float and c.is_complex:
            result = _COMPLEX.get(result, DType.complex64)
        elif _CATEGORY[c.kind] > _CATEGORY[result.kind]:
            result = c
    return result


def _of_number(x: Any) -> DType:
    if isinstance(x, Expr):
        return {"int": DType.int64, "float": DType.float32, "bool": DType.bool}[x.kind]
    if isinstance(x, bool):
        return DType.bool
    if isinstance(x, complex):
        return DType.complex64
    return DType.float32 if isinstance(x, float) else DType.int64


def promote_types(a: DType, b: DType) -> DType:
    """torch.promote_types."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: (_CATEGORY[d.kind], d.bits))
    if _CATEGORY[low.kind] != _CATEGORY[high.kind]:
        if high.kind == "complex" and low is DType.float64:
            return DType.complex128
        return high
    if low.kind == high.kind:
        return DType.float32 if {a, b} == {DType.float16, DType.bfloat16} else high
    signed, unsigned = (low, high) if low.kind == "int" else (high, low)
    if signed.bits > unsigned.bits:
        return signed
    return next((d for d in (DType.int16, DType.int32, DType.int64) if d.bits > unsigned.bits), DType.int64)
