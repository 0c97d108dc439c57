"""bfloat16, which tract has not, held in float32: every value of it is one of float32, so that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ir.graph import ComputedWeight, Graph, Node, Value, Weight, map_arg
from ir.types import DType

NARROW, WIDE = DType.bfloat16, DType.float32


def bfloat16_as_float32(graph: Graph) -> Graph:
    """The graph with float32 wherever it has bfloat16; results are rounded less often than torch rounds them."""
    made: dict[Value, Value] = {}

    def change(x: Any) -> Any:
        if isinstance(x, Value):
            if x.type.dtype is NARROW and x not in made:
                made[x] = Value(x.name, x.type.with_dtype(WIDE))
            return made.get(x, x)
        if isinstance(x, Graph):
            return bfloat16_as_float32(x)
        return WIDE if x is NARROW else x

    nodes = [_node(n, change) for n in graph.nodes]
    inputs = tuple(change(v) for v in graph.inputs)
    weights = {change(v): _weight(w) for v, w in graph.weights.items()}
    outputs = tuple(change(v) for v in graph.outputs)
    updates = {name: change(v) for name, v in graph.updates.items()}
    if not made and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return graph.replace(inputs=inputs, nodes=tuple(nodes), outputs=outputs, weights=weights, updates=updates)


def _node(node: Node, change: Callable[[Any], Any]) -> Node:
    args = {k: map_arg(a, change) for k, a in node.args.items()}
    outputs = tuple(change(v) for v in node.outputs)
    same = outputs == node.outputs and all(args[k] is a or args[k] == a for k, a in node.args.items())
    return node if same else Node(node.op, args, outputs, node.origin, node.returns, node.defaults)


def _weight(weight: Weight) -> Weight:
    if weight.type.dtype is not NARROW:
        return weight
    return ComputedWeight(weight.name, weight.type.with_dtype(WIDE), lambda: weight.numpy().astype("float32"))
