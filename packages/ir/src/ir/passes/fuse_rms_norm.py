"""`x * rsqrt(mean(x * x) + eps)`, as language models write it out, -> one `aten::rms_norm`, with the weight if any.

Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4. Runtimes know it as one op or fuse its own form.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ir.graph import Graph, Node, Value
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import DType


@contract(requires=("functional", "flat"), settles="with fused norms")
def fuse_rms_norm(graph: Graph) -> Graph:
    """Each such product over the last axis becomes one node; what else reads a part of it keeps it apart."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        found = _normalised(edit, node)
        if found is None:
            continue
        x, eps, inner = found
        last, weight = _scaled(edit, node)
        edit.release(*inner, node)
        args = {"input": x, "normalized_shape": (x.type.shape[-1],), "weight": weight, "eps": eps}
        edit.replace(last, Node("aten::rms_norm", args, last.outputs, dataclasses.replace(last.origin, overload="")))
    return edit.graph()


def _normalised(edit: GraphEditor, node: Node) -> tuple[Value, float, list[Node]] | None:
    """What a product normalises, epsilon, and the nodes between; None for any other node."""
    for x, root in _operands(node):
        rsqrt = edit.producer(root, "aten::rsqrt", alone=True)
        add = edit.producer(rsqrt and rsqrt.args["self"], "aten::add", alone=True)
        mean = edit.producer(add and add.args["self"], "aten::mean", alone=True)
        square = edit.producer(mean and mean.args["self"], "aten::pow", "aten::mul", "aten::square", alone=True)
        if not (isinstance(x, Value) and rsqrt and add and mean and square) or not _is_square(square, x):
            continue
        eps, dims = add.args["other"], mean.args.get("dim")
        last = dims in ((-1,), (x.type.rank - 1,)) and mean.args.get("keepdim") and isinstance(x.type.shape[-1], int)
        plain = isinstance(eps, float) and add.args["alpha"] == 1 and mean.args.get("dtype") in (None, x.type.dtype)
        if last and plain and x.type.dtype in (DType.float32, DType.float64):
            return x, eps, [rsqrt, add, mean, square]
    return None


def _scaled(edit: GraphEditor, node: Node) -> tuple[Node, Value | None]:
    """The product with a weight that follows, and the weight; else the node itself."""
    users = edit.source.uses.get(node.outputs[0], ())
    if edit.is_read_once(node.outputs[0]):
        for y, weight in _operands(users[0]):
            width = node.outputs[0].type.shape[-1:]
            if y is node.outputs[0] and weight in edit.weights and weight.type.shape == width:
                return (users[0], weight) if weight.type.dtype is y.type.dtype else (node, None)
    return node, None


def _operands(node: Node) -> list[tuple[Any, Any]]:
    if node.op != "aten::mul":
        return []
    a, b = node.args["self"], node.args["other"]
    return [(a, b), (b, a)]


def _is_square(node: Node, x: Value) -> bool:
    other = {"aten::pow": node.args.get("exponent") == 2, "aten::mul": node.args.get("other") is x}
    return node.args["self"] is x and other.get(node.op, True)
