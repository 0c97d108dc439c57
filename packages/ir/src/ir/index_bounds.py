"""Indices among the inputs: torch's kernels refuse those out of bounds, runtimes count from the end of the axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ir import geometry
from ir.conditions import sizes_of
from ir.dims import Dim, Expr, evaluate, product
from ir.errors import RefusedError
from ir.graph import Graph, Node, Value
from ir.ops import CASTS, COPIES, is_view


def _rows(args: Mapping[str, Any]) -> Dim:
    rows: Dim = args["weight"].type.shape[0]
    return rows


def _axis(args: Mapping[str, Any]) -> Dim:
    shape = args["self"].type.shape
    size: Dim = shape[geometry.axis(args["dim"], len(shape))] if shape else 1
    return size


# The argument that holds the indices, and the size of the axis. In `x[i]`, `take` and `index_fill` negative ones count
# from the end in torch as well.
INDEXED: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Dim]]] = {
    **dict.fromkeys(
        ("aten::embedding", "aten::embedding_bag", "aten::_embedding_bag_forward_only"), ("indices", _rows)
    ),
    **dict.fromkeys(
        [f"aten::{n}" for n in ("gather", "scatter", "scatter_add", "scatter_reduce")]
        + [f"aten::{n}" for n in ("index_select", "index_add", "index_copy", "index_reduce")],
        ("index", _axis),
    ),
    "aten::one_hot": ("self", lambda args: args["num_classes"]),
}


class IndexBounds:
    """The inputs of a graph that an op takes as indices, handed to it as they are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        makers = {v: n for n in graph.nodes for v in n.outputs}
        inputs = {v: i for i, v in enumerate(graph.inputs)}
        found: dict[tuple[int, Dim], Node] = {}
        for node in graph.nodes:
            if node.op in INDEXED:
                name, count = INDEXED[node.op]
                source, size = _source(node.args[name], makers), count(node.args)
                if source in inputs and (isinstance(size, Expr) or size > 0):
                    found.setdefault((inputs[source], size), node)
        self._found = [(node, place, size) for (place, size), node in found.items()]

    def check(self, inputs: Sequence[Any]) -> None:
        """Look at the numbers that a program is given; those on another device than the CPU are not waited for.

        Raises:
            RefusedError: one is negative, or not below the size of its axis.
        """
        for node, size, low, high, name in self._beyond(inputs):
            least = f"has numbers from {low} to {high}" if low != high else f"is {low}"
            raise RefusedError(
                f"{node.op[6:]} takes the input {name} as indices from 0 to {size - 1}, and it {least}; torch refuses "
                f"that too\n  at {node.origin}"
            )

    def _beyond(self, inputs: Sequence[Any]) -> Iterator[tuple[Node, int, int, int, str]]:
        if not self._found:
            return
        sizes = sizes_of(self._graph, inputs)
        for node, place, size in self._found:
            x = inputs[place]
            if x.device.type != "cpu" or not x.numel() or (isinstance(size, Expr) and not size.symbols <= sizes.keys()):
                continue
            low, high = (int(n) for n in x.aminmax())
            count = evaluate(size, sizes)
            if low < 0 or high >= count:
                yield node, count, low, high, self._graph.inputs[place].name


def _source(value: Value, makers: Mapping[Value, Node]) -> Value:
    """What the indices are taken from as they are: views and copies of all elements, in another integer type or not."""
    while (node := makers.get(value)) is not None and (is_view(node) or node.op in CASTS or node.op in COPIES):
        before = next((v for v in node.inputs), None)
        if before is None or product(before.type.shape) != product(value.type.shape) or before.type.dtype.is_float:
            break
        value = before
    return value
