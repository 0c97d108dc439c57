"""Chains of casts: of two, one is left where the first loses nothing, and none where the second takes it back."""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.ops import CASTS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import DType

_SIGNIFICANT = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}  # bits of the fraction
_EXPONENT = {DType.float16: 5, DType.bfloat16: 8, DType.float32: 8, DType.float64: 11}


@contract(requires=("functional", "flat"))
def collapse_casts(graph: Graph) -> Graph:
    """Every cast reads the value before all casts that lose nothing; what is then read by nobody is left out."""
    edit = GraphEditor(graph)
    source: dict[Value, Value] = {}  # casts that lose nothing -> what they cast
    for node in graph.nodes:
        if node.op not in CASTS:
            continue
        edit.release(node)
        (result,), given = node.outputs, edit.current(node.inputs[0])
        origin = source.get(given, given)
        if origin.type == result.type and edit.forward(result, origin):
            continue
        if origin is not given:
            args = {"self": origin, "dtype": result.type.dtype}
            edit.replace(node, Node("ir::cast", args, node.outputs, replace(node.origin, overload="")))
        if lossless(origin.type.dtype, result.type.dtype):
            source[result] = origin
    return edit.graph()


def lossless(a: DType, b: DType) -> bool:
    """True if every value of `a` is a value of `b`."""
    if a is b or a is DType.bool:
        return not b.is_complex
    if a.is_float and b.is_float and a in _SIGNIFICANT and b in _SIGNIFICANT:
        return _SIGNIFICANT[a] <= _SIGNIFICANT[b] and _EXPONENT[a] <= _EXPONENT[b]
    if a.is_integer and b.is_integer and b is not DType.bool:
        return a.bits < b.bits if a.kind == "uint" or b.kind == "int" else False
    if a.is_integer and b in _SIGNIFICANT and b is not DType.float16:
        return a.bits <= _SIGNIFICANT[b]
    return False
