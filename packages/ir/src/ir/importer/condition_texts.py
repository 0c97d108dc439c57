"""What is said where a condition of the capture does not hold: in the names of the graph, and what these stand for."""

from __future__ import annotations

import re
from dataclasses import replace

from ir.conditions import TEXTS
from ir.dims import Expr, evaluate, symbol
from ir.graph import Graph, Node, Value
from ir.types import DType

_TORCHS = re.compile(r"Runtime assertion failed for expression .* on node '\w+'", re.DOTALL)
_OF_TRUTH = "by a check in the model "  # as ir.importer.scalar_inputs has it
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_DEEPEST = 3  # operators of a computation that are written in one another
_NUMBERED = re.compile(r"[su]\d+")  # what nobody gave a name


def worded(graph: Graph) -> Graph:
    """The graph, whose conditions on sizes and numbers say where the user finds these; what the model says stays."""
    if not any(n.op in TEXTS for n in graph.nodes):
        return graph
    makers = {v: n for n in graph.nodes for v in n.outputs}
    return graph.replace(nodes=tuple(_worded(n, graph, makers) if n.op in TEXTS else n for n in graph.nodes))


def _worded(node: Node, graph: Graph, makers: dict[Value, Node]) -> Node:
    at, said = TEXTS[node.op]
    condition, message = node.args[at], node.args[said]
    if not isinstance(condition, Expr) or not isinstance(message, str):
        return node
    if _TORCHS.fullmatch(message):
        message = f"the graph holds only where {condition}; capture the model anew for other inputs"
    if message.startswith(_OF_TRUTH) and (checked := _truth(condition, graph, makers)):
        message = f"the model checks that {checked}"
    names = [s for s in sorted(condition.symbols) if _NUMBERED.fullmatch(s) and re.search(rf"\b{s}\b", message)]
    places = [place for name in names if (place := _place(name, graph, makers))]
    message = f"{message}; here {' and '.join(places)}" if places else message
    return replace(node, args={**node.args, said: message})


def _truth(condition: Expr, graph: Graph, makers: dict[Value, Node]) -> str:
    """`sum(x) < 100`: what the truth value is that was read as a number; empty where it is none."""
    source = graph.sources.get(next(iter(condition.symbols), "")) if len(condition.symbols) == 1 else None
    cast = makers.get(source.value) if source is not None and source.axis is None else None
    if cast is None or cast.op != "ir::cast" or cast.args["self"].type.dtype is not DType.bool:
        return ""
    wanted = evaluate(condition, dict.fromkeys(condition.symbols, 1))
    return _computed(cast.args["self"], makers) + ("" if wanted else " is False")


def _computed(arg: object, makers: dict[Value, Node], depth: int = 0) -> str:
    """An operand as a formula of the inputs and weights, as far down as one can read it."""
    node = makers.get(arg) if isinstance(arg, Value) else None
    if node is None or depth == _DEEPEST or len(node.outputs) != 1:
        return arg.name if isinstance(arg, Value) else str(arg)
    name = node.op.partition("::")[2]
    given = [a for key, a in node.args.items() if key not in node.defaults or node.defaults[key] != a]
    if name == "ne" and given[0].type.dtype is DType.bool and given[1] in (0, False):  # an `assert` of torch's
        return _computed(given[0], makers, depth)
    texts = [_computed(a, makers, depth + 1) for a in given]
    return (
        f"{texts[0]} {_SIGNS[name]} {texts[1]}" if name in _SIGNS and len(texts) == 2 else f"{name}({', '.join(texts)})"
    )


def _place(name: str, graph: Graph, makers: dict[Value, Node]) -> str:
    """`s0 is axis 0 of x`; of what data decides, the op that it comes from and its line; empty where nothing tells."""
    source = graph.sources.get(name)
    if source is None:
        return ""
    value, maker = source.value, makers.get(source.value)
    what = f"the input {value.name}" if maker is None else f"the result of {maker.op}"
    line = f" at {maker.origin.source}" if maker is not None and maker.origin.source else ""
    if source.axis is None:
        return f"{name} is {what}{line}"
    size = value.type.shape[source.axis]
    if size == symbol(name):
        return f"{name} is axis {source.axis} of {what}{line}"
    return f"axis {source.axis} of {what}{line} is {size}"
