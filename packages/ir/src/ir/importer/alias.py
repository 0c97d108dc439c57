"""Which writes of a torch graph can become functional by renaming, and which need torch's functionalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node as FxNode
from torch.multiprocessing.reductions import StorageWeakRef

from ir.importer.schema import OpSchema, op_schema

_TRAINING_NORMS = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}


def needs_functionalisation(graph: torch.fx.Graph) -> bool:
    """True if the graph writes through a view, to an input or a buffer, or where an alias is read afterwards.

    What stays are in-place ops on fresh tensors, of which nothing but the written name is read later: there the
    functional twin's result simply takes the name over.
    """
    writers = [n for n in graph.nodes if n.op == "call_function" and _writes(n)]
    if not writers:
        return False
    roots = _roots(graph)
    order = {n: i for i, n in enumerate(graph.nodes)}
    last = {n: max((order[u] for u in n.users), default=-1) for n in graph.nodes}
    aliases: dict[Any, list[FxNode]] = {}
    for n, root in roots.items():
        aliases.setdefault(root, []).append(n)
    for writer in writers:
        schema = op_schema(writer.target)
        if schema.functional is None or len(schema.writes) != 1:
            return True
        written = writer.args[schema.names.index(schema.writes[0])]
        if not isinstance(written, FxNode) or roots[written].op != "call_function":
            return True
        for other in aliases[roots[written]]:
            if other is not written and order[other] < order[writer] < last[other]:
                return True
    return False


def _writes(node: FxNode) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = op_schema(node.target)
    return schema.mutates or _updates_statistics(schema, node)


def _updates_statistics(schema: OpSchema, node: FxNode) -> bool:
    """Norms in training mode write to their running statistics although their schema does not say so."""
    flag = _TRAINING_NORMS.get(schema.op)
    if flag is None:
        return False
    bound = schema.bind(node.args, node.kwargs)
    return bool(bound[flag]) and bound["running_mean"] is not None


def _roots(graph: torch.fx.Graph) -> dict[FxNode, FxNode]:
    """The node that made the memory behind each node, by schema and, where known, by the fake tensors' storage."""
    roots: dict[FxNode, FxNode] = {}
    by_storage: dict[Any, FxNode] = {}
    for node in graph.nodes:
        root = node
        for source in _sources(node):
            root = roots[source]
            break
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            key = StorageWeakRef(value.untyped_storage())
            root = by_storage.setdefault(key, root)
        roots[node] = root
    return roots


def _sources(node: FxNode) -> list[FxNode]:
    """The inputs whose memory the node's result shares by its schema."""
    if node.op != "call_function":
        return []
    if not isinstance(node.target, torch._ops.OpOverload):
        return [a for a in node.all_input_nodes[:1] if "getitem" in str(node.target)]
    schema = op_schema(node.target)
    named = dict(zip(schema.names, node.args, strict=False)) | dict(node.kwargs)
    shared = [named.get(n) for n in (*schema.writes, *schema.views)]
    flat = [x for a in shared for x in (a if isinstance(a, (list, tuple)) else [a])]
    return [a for a in flat if isinstance(a, FxNode)]
