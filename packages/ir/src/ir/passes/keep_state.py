"""What the model writes to stays as it is at the export, though the model may run before the artifact is read."""

from __future__ import annotations

import dataclasses
from typing import Any

from ir.graph import Graph, Value, Weight


def keep_state(graph: Graph) -> Graph:
    """Copies of the buffers that `updates` name, and of all weights in the same memory; the others are referred to."""
    written = {_memory(w) for w in graph.weights.values() if w.name in graph.updates} - {None}
    if not written:
        return graph
    weights: dict[Value, Weight] = {v: _copied(w) if _memory(w) in written else w for v, w in graph.weights.items()}
    return graph.replace(weights=weights)


def _memory(weight: Weight) -> int | None:
    tensor = weight.tensor
    if tensor is None or weight.type.is_sparse or not tensor.numel():
        return None
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _copied(weight: Any) -> Weight:
    copied: Weight = dataclasses.replace(weight, tensor=weight.tensor.detach().clone())
    return copied
