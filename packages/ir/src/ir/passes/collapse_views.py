"""Chains of reshapes, and of permutations: one is left, or none where it comes back to where it began.

A reshape keeps the elements in their order, whatever torch calls it, so two in a row are the one to the last shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.graph import Graph, Node, Value
from ir.passes.replace_uses import rewired

RESHAPES = frozenset({
    "aten::view", "aten::reshape", "aten::_unsafe_view", "aten::flatten", "aten::unflatten", "aten::ravel",
    "aten::view_as", "aten::reshape_as", "aten::squeeze", "aten::unsqueeze", "aten::_reshape_alias",
})  # fmt: skip
PERMUTATIONS = frozenset({"aten::permute", "aten::transpose", "aten::t", "aten::mT", "aten::swapaxes", "aten::numpy_T"})


def collapse_views(graph: Graph) -> Graph:
    """Collapse chains whose inner values nothing else reads; a chain that does nothing goes in any case."""
    same: dict[Value, Value] = {}
    changed: dict[Node, Node] = {}
    made: dict[Value, Node] = {}  # the nodes as they are by now
    results = set(graph.results.values())
    for node in graph.nodes:
        if not _is_view(node):
            continue
        result, given = node.outputs[0], node.inputs[0]
        given = same.get(given, given)
        before = made.get(given)
        made[result] = node
        nothing = given.type == result.type if node.op in RESHAPES else _sorted(permutation(node))
        if nothing and result not in results:
            same[result] = given
        elif before is not None and (node.op in RESHAPES) == (before.op in RESHAPES):
            origin = before.inputs[0]
            origin = same.get(origin, origin)
            perm = None if node.op in RESHAPES else [permutation(before)[p] for p in permutation(node)]
            alone = len(graph.uses[given]) == 1 and given not in results
            nothing = origin.type == result.type if perm is None else _sorted(perm)
            if nothing and result not in results:
                same[result] = origin
            elif alone:
                made[result] = changed[node] = _direct(node, origin, perm)
    return rewired(graph, same, changed, _is_view)


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
