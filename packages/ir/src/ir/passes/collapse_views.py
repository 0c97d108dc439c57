"""Chains of reshapes, and of permutations: one is left, or none where it comes back to where it began.

A reshape keeps the elements in their order, whatever torch calls it, so two in a row are the one to the last shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.ops import PERMUTATIONS, RESHAPES
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor


@contract(requires=("functional", "flat"))
def collapse_views(graph: Graph) -> Graph:
    """Collapse chains whose inner values nothing else reads; a chain that does nothing goes in any case."""
    edit = GraphEditor(graph)
    made: dict[Value, Node] = {}  # the nodes as they are by now
    for node in graph.nodes:
        if not _is_view(node):
            continue
        edit.release(node)
        result, given = node.outputs[0], edit.current(node.inputs[0])
        before = made.get(given)
        made[result] = node
        nothing = given.type == result.type if node.op in RESHAPES else _sorted(permutation(node))
        if nothing and edit.forward(result, given):
            continue
        if before is not None and (node.op in RESHAPES) == (before.op in RESHAPES):
            origin = edit.current(before.inputs[0])
            perm = None if node.op in RESHAPES else [permutation(before)[p] for p in permutation(node)]
            nothing = origin.type == result.type if perm is None else _sorted(perm)
            if not (nothing and edit.forward(result, origin)) and edit.is_read_once(given):
                made[result] = _direct(node, origin, perm)
                edit.replace(node, made[result])
    return edit.graph()


def _is_view(node: Node) -> bool:
    return node.op in PERMUTATIONS or (node.op in RESHAPES and "dtype" not in node.args)  # view.dtype is another thing


def permutation(node: Node) -> list[int]:
    """For each axis of the result, the axis that it was."""
    rank = node.outputs[0].type.rank
    axes = list(range(rank))
    if node.op == "aten::permute":
        return [d % rank for d in node.args["dims"]] if rank else []
    if node.op in ("aten::t", "aten::numpy_T"):
        return axes[::-1]
    given = list(node.args.values())[1:3] if node.op != "aten::mT" else [-2, -1]
    if rank:
        a, b = (d % rank for d in given)
        axes[a], axes[b] = axes[b], axes[a]
    return axes


def _sorted(perm: Sequence[int]) -> bool:
    return list(perm) == sorted(perm)


def _direct(node: Node, origin: Value, perm: Sequence[int] | None) -> Node:
    place = replace(node.origin, overload="")
    if perm is not None:
        return Node("aten::permute", {"self": origin, "dims": tuple(perm)}, node.outputs, place)
    return Node("aten::reshape", {"self": origin, "shape": node.outputs[0].type.shape}, node.outputs, place)
