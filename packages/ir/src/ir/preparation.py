"""A graph made ready for a target: without what the target has not, and through its passes."""

from __future__ import annotations

from ir.errors import RefusedError
from ir.graph import Context, Graph, Node, Value
from ir.helper import refusal_text
from ir.passes.checks import drop_checks
from ir.passes.collectives import refuse_collectives
from ir.passes.split_complex import split_complex
from ir.registry import Registry
from ir.target import Target


def prepared(graph: Graph, target: Target, registry: Registry, context: Context | None) -> Graph:
    """The graph without complex tensors and checks where the target has none, and through the target's passes.

    Raises:
        RefusedError: it has sparse tensors or collectives, and the target has none.
    """
    if not target.has_sparse:
        refuse_sparse(graph, target.name)
    if not target.has_collectives:
        refuse_collectives(graph, target.name, lambda n: registry.lookup(n.op, n.overload, target.version) is not None)
    if not target.has_checks:
        graph = drop_checks(graph)
    if not target.has_complex:
        graph = split_complex(graph, context, lambda node: takes_packed(node, target, registry))
    for rewrite in target.passes:
        graph = rewrite(graph)
    return graph


def refuse_sparse(graph: Graph, target: str) -> None:
    """Raise for the first node that reads or makes a sparse tensor, and for results that are sparse inputs.

    Raises:
        RefusedError: of a target that has none; its handlers would take them for dense ones.
    """
    for node in graph.nodes:
        for value in (*node.inputs, *node.outputs):
            if value.type.is_sparse:
                raise RefusedError(refusal_text(target, node, _sparse(value)))
        for inner in node.graphs:
            refuse_sparse(inner, target)
    for value in graph.results.values():
        if value.type.is_sparse:
            raise RefusedError(f"target {target!r} refuses this model: {_sparse(value)}")


def _sparse(value: Value) -> str:
    what = f"%{value.name} is a tensor of layout {value.type.layout}"
    return f"{what}; make it dense in the model with .to_dense(), or export to the eager target, which takes it"


def takes_packed(node: Node, target: Target, registry: Registry) -> bool:
    """True if the handler gets complex operands with a trailing dimension of 2: of a custom op, or if it says so."""
    found = registry.lookup(node.op, node.overload, target.version)
    own = node.op.startswith(("aten::", "prims::", "ir::", "higher_order::"))
    return found is not None and (not own or getattr(found.fn, "takes_packed", False))
