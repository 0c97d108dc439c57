"""Tensors made "like" another: of a known shape they need nothing of it, and can be folded as constants are."""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.ops import FILLS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor


@contract(settles="with plain factories")
def canonicalize_factories(graph: Graph) -> Graph:
    """new_zeros(x, ..), ones_like(x) and their kin of static shape become full(shape, number, dtype)."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op not in FILLS or not isinstance(node.args.get("self"), Value):
            continue
        (result,), fill = node.outputs, FILLS[node.op]
        number = node.args["fill_value"] if fill is None else fill
        if result.type.is_static and isinstance(number, bool | int | float):
            args = {"size": result.type.shape, "fill_value": number, "dtype": result.type.dtype}
            edit.replace(node, Node("aten::full", args, node.outputs, replace(node.origin, overload="")))
    return edit.graph()
