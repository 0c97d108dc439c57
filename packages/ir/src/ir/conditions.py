"""What a graph demands of the sizes of its inputs (`ir::require`), looked at before a program runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir.dims import evaluate
from ir.errors import RefusedError
from ir.graph import Graph, Node


class Conditions:
    """Those conditions that follow from the shapes of the inputs; the others are the runtime's to look at."""

    def __init__(self, graph: Graph) -> None:
        places = {v: i for i, v in enumerate(graph.inputs)}
        carried = {n: s for n, s in graph.sources.items() if s.value in places and s.axis is not None}
        nodes = [n for n in graph.nodes if n.op == "ir::require"]
        self._nodes: list[Node] = [n for n in nodes if n.args["condition"].symbols <= carried.keys()]
        names = sorted({s for n in self._nodes for s in n.args["condition"].symbols})
        self._sources = [(n, places[carried[n].value], carried[n]) for n in names]

    def check(self, inputs: Sequence[Any]) -> None:
        """Look at tensors that a program is given.

        Raises:
            RefusedError: a condition does not hold.
        """
        if not self._nodes:
            return
        sizes = {n: (inputs[i].shape[s.axis] - s.offset) // s.scale for n, i, s in self._sources}
        for node in self._nodes:
            if not evaluate(node.args["condition"], sizes):
                at = ", ".join(f"{n}={sizes[n]}" for n in sorted(node.args["condition"].symbols))
                raise RefusedError(f"the program was not captured for {at}: {node.args['message']}\n  at {node.origin}")
