"""Chains of casts: of two, one is left where the first loses nothing, and none where the second takes it back."""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.passes.replace_uses import rewired
from ir.types import DType

CASTS = ("ir::cast", "aten::to", "aten::_to_copy", "prims::convert_element_type")
_SIGNIFICANT = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}  # bits of the fraction
_EXPONENT = {DType.float16: 5, DType.bfloat16: 8, DType.float32: 8, DType.float64: 11}


def collapse_casts(graph: Graph) -> Graph:
    """Every cast reads the value before all casts that lose nothing; what is then read by nobody is left out."""
    same: dict[Value, Value] = {}  # casts that do nothing -> what they cast
    source: dict[Value, Value] = {}  # casts that lose nothing -> what they cast
    results = set(graph.results.values())
    changed: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op not in CASTS:
            continue
        (result,), given = node.outputs, node.inputs[0]
        given = same.get(given, given)
        origin = source.get(given, given)
        if origin.type == result.type and result not in results:
            same[result] = origin
            continue
        if origin is not given:
            args = {"self": origin, "dtype": result.type.dtype}
            changed[node] = Node("ir::cast", args, node.outputs, replace(node.origin, overload=""))
        if lossless(origin.type.dtype, result.type.dtype):
            source[result] = origin
    return rewired(graph, same, changed, lambda n: n.op in CASTS)


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
