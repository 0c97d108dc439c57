"""Tensors made "like" another, or of no elements: of a known shape they need no operand, and fold as constants do."""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.ops import FILLS, is_pure
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor


@contract(settles="with plain factories")
def canonicalize_factories(graph: Graph) -> Graph:
    """new_zeros(x, ..), ones_like(x) and their kin of static shape become full(shape, number, dtype).

    So does what has no element, of which there is nothing to compute: runtimes fail on some products and windows of it.
    """
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op in FILLS and isinstance(node.args.get("self"), Value):
            fill = FILLS[node.op]
            number = node.args["fill_value"] if fill is None else fill
            if node.outputs[0].type.is_static and isinstance(number, bool | int | float):
                edit.replace(node, _full(node, node.outputs[0], number))
        elif _has_no_elements(node):
            edit.replace(node, *(_full(node, result, 0) for result in node.outputs))
    return edit.graph()


def _has_no_elements(node: Node) -> bool:
    empty = all(v.type.is_static and 0 in v.type.shape for v in node.outputs)
    return empty and node.op.startswith("aten::") and bool(node.outputs and node.inputs) and is_pure(node)


def _full(node: Node, result: Value, number: bool | int | float) -> Node:
    args = {"size": result.type.shape, "fill_value": number, "dtype": result.type.dtype}
    return Node("aten::full", args, (result,), replace(node.origin, overload=""))
