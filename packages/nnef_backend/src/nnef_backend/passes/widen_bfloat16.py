"""bfloat16, which tract has not, held in float32: every value of it is one of float32, so that nothing is lost.

torch computes an op on bfloat16 in float32 and rounds the result once. So does a graph in float32 whose every such
result is rounded to a value of bfloat16; without that it is quicker, and nearer to float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ir.errors import RefusedError
from ir.graph import ComputedWeight, Graph, Node, Value, Weight, map_arg
from ir.helper import numpy_dtype
from ir.ops import reads_numbers_in_float32
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, over_graphs
from ir.types import DType

NARROW, WIDE = DType.bfloat16, DType.float32
ROUND = "nnef::bfloat16"
_NUMBERS = ("self", "other", "exponent", "lambd")  # which torch's kernels round to the tensors' type
_SCALED = ("aten::add", "aten::sub", "aten::subtract", "aten::rsub")  # of these alpha too
_DIVISIONS = ("aten::div", "aten::divide", "aten::floor_divide")


@contract(requires=("functional",), ensures=("without bfloat16",), undoes=("of torch",))
def rounded_bfloat16(graph: Graph) -> Graph:
    """The graph with float32 wherever it has bfloat16, and what an op makes rounded to bfloat16.

    Raises:
        RefusedError: an op whose kernel rounds in between, or that reads the bits.
    """
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if (made := tuple(_rounding(node))) != (node,):
            edit.replace(node, *made)
    return bfloat16_as_float32(edit.graph())


def _rounding(node: Node) -> Iterator[Node]:
    """The node, and a node more for each result in bfloat16 that it computes."""
    narrow = [v for v in node.outputs if v.type.dtype is NARROW]
    if node.graphs:
        yield over_graphs(node, rounded_bfloat16)
        return
    if narrow and node.op in _LOGITS:
        yield from _logit(node, **node.args)
        return
    if narrow or any(v.type.dtype is NARROW for v in node.inputs):
        node = _like_kernels(node)
    if not narrow:
        yield node
        return
    exact = {v: Value(f"{v.name}_unrounded", v.type) for v in narrow}
    outputs = tuple(exact.get(v, v) for v in node.outputs)
    yield Node(node.op, node.args, outputs, node.origin, node.returns, node.defaults, node.packed)
    for v in narrow:
        yield Node(ROUND, {"self": exact[v]}, (v,), replace(node.origin, overload=""))


def _like_kernels(node: Node) -> Node:
    """The node with its numbers as torch's kernels of bfloat16 read them."""
    args = dict(node.args)
    mode = "floor" if node.op == "aten::floor_divide" else args.get("rounding_mode")
    if node.op in _DIVISIONS and mode is not None and isinstance(args["other"], Value):
        raise _refused(node, "torch rounds to bfloat16 in the middle of this division; divide in float32")
    if node.overload in ("aten::view.dtype", "aten::nextafter"):
        raise _refused(node, "it reads the bits of bfloat16, which tract has not; use float32")
    if not reads_numbers_in_float32(node.op):
        for name in (*_NUMBERS, *(("alpha",) if node.op in _SCALED else ())):
            if isinstance(args.get(name), float):
                args[name] = _narrow(args[name])
    if node.op == "aten::nan_to_num":
        most = math.ldexp(255, 120)
        args["posinf"] = most if args.get("posinf") is None else args["posinf"]
        args["neginf"] = -most if args.get("neginf") is None else args["neginf"]
    return node if args == node.args else replace(node, args=args)


_LOGITS = ("aten::logit", "aten::special_logit")


def _logit(node: Node, self: Any, eps: float | None = None, **out: Any) -> Iterator[Node]:
    """Its kernel rounds each step: 1 - eps is 1 where eps is below 2**-9, and the logit of 1 infinite."""
    steps: list[tuple[str, dict[str, Any]]] = []
    if eps is not None and eps >= 0:
        low, high = _narrow(eps), _narrow(1 - _narrow(eps))
        if low > high:
            raise _refused(node, f"the limits of eps={eps} cross; clamp the operand before")
        steps.append(("clamp", {"min": low, "max": high}))
    count = len(steps)
    x = Value(f"{node.name}_within", node.outputs[0].type) if count else self
    rest, odds = (Value(f"{node.name}_{name}", node.outputs[0].type) for name in ("rest", "odds"))
    steps += [("rsub", {"self": x, "other": 1.0}), ("div", {"self": x, "other": rest}), ("log", {"self": odds})]
    for (op, args), made in zip(steps, (*[x] * count, rest, odds, *node.outputs), strict=True):
        origin = replace(node.origin, overload="")
        yield from _rounding(Node(f"aten::{op}", {"self": self, **args}, (made,), origin))


def _narrow(number: float) -> float:
    """The number as bfloat16 holds it."""
    return float(np.asarray(number, np.float32).astype(numpy_dtype(NARROW)))


@contract(requires=("functional",), ensures=("without bfloat16",))
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


def _refused(node: Node, reason: str) -> RefusedError:
    return RefusedError(f"target 'nnef' refuses {node.overload} of bfloat16: {reason}")


def _weight(weight: Weight) -> Weight:
    if weight.type.dtype is not NARROW:
        return weight
    return ComputedWeight(weight.name, weight.type.with_dtype(WIDE), lambda: weight.numpy().astype("float32"))
