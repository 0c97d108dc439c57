"""What is said where a condition of the capture does not hold: in the names of the graph, and what these stand for."""

from __future__ import annotations

import re
from dataclasses import replace

from ir.conditions import TEXTS
from ir.dims import Expr, symbol
from ir.graph import Graph, Node, Value

_TORCHS = re.compile(r"Runtime assertion failed for expression .* on node '\w+'", re.DOTALL)
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
    names = [s for s in sorted(condition.symbols) if _NUMBERED.fullmatch(s) and re.search(rf"\b{s}\b", message)]
    places = [place for name in names if (place := _place(name, graph, makers))]
    message = f"{message}; here {' and '.join(places)}" if places else message
    return replace(node, args={**node.args, said: message})


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
