"""What passes that take nodes out share: readers read other values, nodes that nothing reads any more go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ir.graph import Graph, Node, Value, map_arg


def reading(node: Node, same: Mapping[Value, Value]) -> Node:
    """The node with other values for some that it reads; itself if it reads none of them."""
    if not any(v in same for v in node.inputs):
        return node
    args = {k: map_arg(a, lambda x: same.get(x, x) if isinstance(x, Value) else x) for k, a in node.args.items()}
    return replace(node, args=args)


def rewired(
    graph: Graph, same: Mapping[Value, Value], changed: Mapping[Node, Node], may_go: Callable[[Node], bool]
) -> Graph:
    """The graph with `same` read for its keys, `changed` nodes for theirs, and without unread nodes that may go."""
    if not same and not changed:
        return graph
    read = set(graph.results.values())
    kept = []
    for node in reversed(graph.nodes):
        node = reading(changed.get(node, node), same)
        if any(v in read for v in node.outputs) or not may_go(node):
            kept.append(node)
            read.update(node.inputs)
    return graph.replace(nodes=tuple(reversed(kept)))
