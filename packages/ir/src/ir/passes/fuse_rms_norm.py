"""`x * rsqrt(mean(x * x) + eps)`, as language models write it out, -> one `aten::rms_norm`, with the weight if any.

Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4. Runtimes know it as one op or fuse its own form.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ir.graph import Graph, Node, Value
from ir.types import DType


def fuse_rms_norm(graph: Graph) -> Graph:
    """Each such product over the last axis becomes one node; what else reads a part of it keeps it apart."""
    kept = set(graph.results.values())
    replaced: dict[Node, Node | None] = {}
    for node in graph.nodes:
        found = _normalised(graph, node, kept)
        if found is None:
            continue
        x, eps, inner = found
        replaced |= dict.fromkeys(inner)
        last, weight = _scaled(graph, node, kept)
        replaced[node] = None
        args = {"input": x, "normalized_shape": (x.type.shape[-1],), "weight": weight, "eps": eps}
        replaced[last] = Node("aten::rms_norm", args, last.outputs, dataclasses.replace(last.origin, overload=""))
    if not replaced:
        return graph
    nodes = (replaced.get(n, n) for n in graph.nodes)
    return graph.replace(nodes=tuple(n for n in nodes if n is not None))


def _normalised(graph: Graph, node: Node, kept: set[Value]) -> tuple[Value, float, list[Node]] | None:
    """What a product normalises, epsilon, and the nodes between; None for any other node."""
    for x, root in _operands(node):
        rsqrt = _only(graph, root, "aten::rsqrt", kept)
        add = _only(graph, rsqrt and rsqrt.args["self"], "aten::add", kept)
        mean = _only(graph, add and add.args["self"], "aten::mean", kept)
        square = _only(graph, mean and mean.args["self"], ("aten::pow", "aten::mul", "aten::square"), kept)
        if not (isinstance(x, Value) and rsqrt and add and mean and square) or not _is_square(square, x):
            continue
        eps, dims = add.args["other"], mean.args.get("dim")
        last = dims in ((-1,), (x.type.rank - 1,)) and mean.args.get("keepdim") and isinstance(x.type.shape[-1], int)
        plain = isinstance(eps, float) and add.args["alpha"] == 1 and mean.args.get("dtype") in (None, x.type.dtype)
        if last and plain and x.type.dtype in (DType.float32, DType.float64):
            return x, eps, [rsqrt, add, mean, square]
    return None


def _scaled(graph: Graph, node: Node, kept: set[Value]) -> tuple[Node, Value | None]:
    """The product with a weight that follows, and the weight; else the node itself."""
    users = graph.uses.get(node.outputs[0], ())
    if len(users) == 1 and node.outputs[0] not in kept:
        for y, weight in _operands(users[0]):
            width = node.outputs[0].type.shape[-1:]
            if y is node.outputs[0] and weight in graph.weights and weight.type.shape == width:
                return (users[0], weight) if weight.type.dtype is y.type.dtype else (node, None)
    return node, None


def _operands(node: Node) -> list[tuple[Any, Any]]:
    if node.op != "aten::mul":
        return []
    a, b = node.args["self"], node.args["other"]
    return [(a, b), (b, a)]


def _only(graph: Graph, value: Any, ops: str | tuple[str, ...], kept: set[Value]) -> Node | None:
    """The node that makes a value which one node alone reads, if it is of these ops."""
    node = graph.producer.get(value) if isinstance(value, Value) else None
    alone = node is not None and value not in kept and len(graph.uses[value]) == 1
    return node if node is not None and alone and node.op in (ops if isinstance(ops, tuple) else (ops,)) else None


def _is_square(node: Node, x: Value) -> bool:
    other = {"aten::pow": node.args.get("exponent") == 2, "aten::mul": node.args.get("other") is x}
    return node.args["self"] is x and other.get(node.op, True)
