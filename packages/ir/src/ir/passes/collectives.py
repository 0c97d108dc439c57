"""Collectives: operators in which the processes of torch.distributed wait for one another."""

from __future__ import annotations

from collections.abc import Callable

from ir.errors import RefusedError
from ir.graph import Graph, Node
from ir.helper import refusal_text

_NAMESPACES = (
    "_c10d_functional::", "_c10d_functional_autograd::", "c10d::", "c10d_functional::", "_dtensor::", "symm_mem::",
)  # fmt: skip


def refuse_collectives(graph: Graph, target: str, has_handler: Callable[[Node], bool]) -> None:
    """Raise for the first collective that has no handler: a file of this target runs in one process.

    Raises:
        RefusedError: there is one.
    """
    for node in graph.nodes:
        if node.op.startswith(_NAMESPACES) and not has_handler(node):
            way = (
                f"{node.op} waits for other processes, and a file of this target runs in one: split the unsharded "
                "model into stages by ir.split, or export each process's part to the eager target"
            )
            raise RefusedError(refusal_text(target, node, way))
        for inner in node.graphs:
            refuse_collectives(inner, target, has_handler)
