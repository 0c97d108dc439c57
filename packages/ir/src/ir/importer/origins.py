"""Where torch's own nodes come from."""

from __future__ import annotations

from torch.fx import Node as FxNode

from ir.graph import Origin


def origin_of(node: FxNode, overload: str = "") -> Origin:
    """The node's place in the model, as torch noted it."""
    return Origin(overload, node.meta.get("stack_trace") or "", node.meta.get("nn_module_stack"))
