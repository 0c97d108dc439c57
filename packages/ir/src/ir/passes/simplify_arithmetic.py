"""Drops arithmetic with a neutral number: `x - 0`, `x * 1`, `x / 1`, of integers `n // 1`, and `x + 0` where no sign of
a zero is lost.

-0.0 + 0 is +0.0, so `x + 0` changes a float that may be -0.0. If x is a sum of products, the sign of its zero is
the kernel's: a sum may start at +0.0 or at the first product, and torch chooses kernels by size and thread. There the
addition is dropped as well. Integers have no negative zero.
"""

from __future__ import annotations

import math
from typing import Any

from ir.graph import Graph, Node, Value
from ir.ops import FILLS, SUMS_OF_PRODUCTS
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor

_SUBTRACT = ("aten::sub", "aten::subtract")
_NEUTRAL = {"aten::add": 0, **dict.fromkeys(_SUBTRACT, 0)}
_NEUTRAL |= dict.fromkeys(("aten::mul", "aten::multiply", "aten::div", "aten::divide", "aten::true_divide"), 1)
_NEUTRAL |= {"aten::floor_divide": 1}


@contract(requires=("functional", "flat"), settles="without neutral numbers")
def simplify_arithmetic(graph: Graph) -> Graph:
    """Readers of such a node read its operand; a result of the graph keeps its node, and with it its name."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op in _NEUTRAL and _is_neutral(node, graph):
            edit.forward(node.outputs[0], node.args["self"])
    return edit.graph()


def _is_neutral(node: Node, graph: Graph) -> bool:
    given, other = node.args["self"], node.args["other"]
    kept = isinstance(given, Value) and given.type == node.outputs[0].type and not given.type.dtype.is_complex
    rounds = node.op == "aten::floor_divide" or node.args.get("rounding_mode") is not None
    if not kept or (rounds and given.type.dtype.is_float):
        return False
    other, alpha = _number(other, graph), node.args.get("alpha", 1)
    if other is None or not math.isfinite(alpha) or other * alpha != _NEUTRAL[node.op]:
        return False
    other *= float(alpha)  # as floats are: 0 * -1.0 is -0.0
    return other != 0 or not given.type.dtype.is_float or _keeps_zeros(node.op, other) or _is_sum(given, graph)


def _number(other: Any, graph: Graph) -> bool | int | float | None:
    """The number that stands in each element, None where it is not known."""
    producer = graph.producer.get(other) if isinstance(other, Value) else None
    if producer is not None and producer.op in FILLS:
        other = producer.args["fill_value"] if FILLS[producer.op] is None else FILLS[producer.op]
    return other if isinstance(other, bool | int | float) else None


def _keeps_zeros(op: str, zero: Any) -> bool:
    """True if adding or subtracting this zero leaves -0.0 alone: x - 0.0 and x + -0.0 do."""
    return (op in _SUBTRACT) == (math.copysign(1, zero) > 0)


def _is_sum(value: Value, graph: Graph) -> bool:
    producer = graph.producer.get(value)
    return producer is not None and producer.op in SUMS_OF_PRODUCTS
