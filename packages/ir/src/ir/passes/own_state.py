"""What the model writes to stays as it is at the export, though the model may run before the artifact is read."""

from __future__ import annotations

from typing import Any

from ir.graph import Graph, Weight
from ir.importer.torch_api import storage_key

_NAMED = 3  # buffers that a message names


def with_own_state(graph: Graph) -> Graph:
    """The graph over copies of the buffers that it updates, and of all weights in their memory: the model goes on
    writing to its own."""
    written = {_memory(w) for w in graph.weights.values() if w.name in graph.updates} - {None}
    copies: dict[int, Any] = {}
    weights = dict(graph.weights)
    for value, weight in graph.weights.items():
        if _memory(weight) in written:
            if id(weight.tensor) not in copies:  # one tensor under two names stays one
                copies[id(weight.tensor)] = weight.tensor.detach().clone()
            weights[value] = weight.over(copies[id(weight.tensor)])
    return graph.replace(weights=weights) if written else graph


def not_kept(graph: Graph) -> str:
    """What to say of buffers that the graph updates where a target does not keep them; empty without any."""
    written = [w.name for w in graph.weights.values() if w.name in graph.updates]
    if not written:
        return ""
    outputs = dict(zip(graph.updates, list(graph.results)[len(graph.outputs) :], strict=True))
    more = f" and {len(written) - _NAMED} more" if len(written) > _NAMED else ""
    return (
        f"the model writes to {', '.join(written[:_NAMED])}{more}, and this target keeps no state: each call starts "
        f"with the contents that were exported. program.run(...) gives the new ones beside the result, the file as "
        f"outputs (`{outputs[written[0]]}`); to go on with them, make the buffer an argument "
        f"of forward and feed them back"
    )


def _memory(weight: Weight) -> int | None:
    """What names the memory that the tensor lies in; None where it shows none (sparse, a subclass, computed)."""
    try:
        return storage_key(weight.tensor)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
