"""Random numbers that nothing reads, as of weights that a model makes anew in its forward and then replaces.

Where a runtime has a generator of its own they have no effect; torch's own would be left in another state.
"""

from __future__ import annotations

from dataclasses import replace

from ir.graph import Graph, Node
from ir.ops import UNINITIALIZED, is_pure, is_random
from ir.passes.contract import contract
from ir.passes.graph_editor import without_unread


@contract(requires=("functional",), settles="without unread draws")
def drop_unread_draws(graph: Graph) -> Graph:
    """The graph without draws that nothing reads, and what was made for them alone."""
    if not graph.random:
        return graph
    carriers = {source.value for source in graph.sources.values()}
    may_go = {n for n in graph.nodes if _without_effect(n) and not carriers.intersection(n.outputs)}
    kept = without_unread(graph.nodes, {*graph.outputs, *graph.updates.values()}, may_go)
    gone = set(graph.nodes).difference(kept)
    if not any(is_random(n) for n in gone):
        return graph
    return replace(graph, nodes=kept, random=any(is_random(n) for n in kept))


def _without_effect(node: Node) -> bool:
    if not node.op.startswith("aten::") or node.graphs or not node.outputs:
        return False
    return is_random(node) or is_pure(node) or node.op in UNINITIALIZED
