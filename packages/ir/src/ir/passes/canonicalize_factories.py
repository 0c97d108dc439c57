"""Tensors made "like" another: of a known shape they need nothing of it, and can be folded as constants are."""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node

# What fills the result; None is the argument `fill_value`.
_FILL = {
    "aten::new_zeros": 0, "aten::zeros_like": 0, "aten::new_ones": 1, "aten::ones_like": 1, "aten::new_full": None,
    "aten::full_like": None,
}  # fmt: skip


def canonicalize_factories(graph: Graph) -> Graph:
    """new_zeros(x, ..), ones_like(x) and their kin of static shape become full(shape, number, dtype)."""
    nodes = tuple(_free(n) for n in graph.nodes)
    return graph if nodes == graph.nodes else graph.replace(nodes=nodes)


def _free(node: Node) -> Node:
    if node.op not in _FILL:
        return node
    (result,), fill = node.outputs, _FILL[node.op]
    number = node.args["fill_value"] if fill is None else fill
    if not result.type.is_static or not isinstance(number, bool | int | float):
        return node
    args = {"size": result.type.shape, "fill_value": number, "dtype": result.type.dtype}
    return Node("aten::full", args, node.outputs, replace(node.origin, overload=""))
