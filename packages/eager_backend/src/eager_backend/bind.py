"""A node's arguments for torch: in the schema's order, in torch's terms, without what is a default anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from ir.graph import Node
from ir.importer.schema import overload_of
from ir.importer.torch_api import pytree, schema_of

# The IR says these as text; a schema tells them from text that is text.
_TEXT = {"Device", "Layout", "MemoryFormat"}


@cache
def _parameters(overload: Any) -> tuple[tuple[str, bool, str], ...]:
    """Name, keyword-only, and the kind of what came as text, for each argument of an overload."""
    kinds = ((a, str(a.real_type).removeprefix("Optional[").removesuffix("]")) for a in schema_of(overload).arguments)
    return tuple((a.name, a.kwarg_only, kind if kind in _TEXT else "") for a, kind in kinds)


def arguments_of(node: Node, given: Mapping[str, Any], device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a call in the schema's own order."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None:
        return [], dict(given)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    needed = 0  # how many positional arguments are more than defaults
    for name, keyword, kind in _parameters(overload):
        value = given.get(name)
        default = _is_default(node, name)
        if kind:
            value, default = _from_text(kind, value, node, device)
        elif name == "pin_memory" and not value:
            default = True
        if not keyword:
            args.append(value)
            needed = needed if default else len(args)
        elif not default:
            kwargs[name] = value
    return args[:needed], kwargs


def _is_default(node: Node, name: str) -> bool:
    if name not in node.defaults or name not in node.args or name == "reduction":
        return False  # the plain bindings of losses take "none" for a reduction left out, the schema says "mean"
    value, default = node.args[name], node.defaults[name]
    return type(value) is type(default) and value == default


def _from_text(kind: str, value: Any, node: Node, device: torch.device) -> tuple[Any, bool]:
    """torch's object for a device, layout or memory format, and whether leaving it out means the same."""
    if kind == "Device":
        # every tensor of a program lies on its device; without one to follow, a factory must be told
        made_from_nothing = not node.inputs and device.type != "cpu"
        return device, value is None and not made_from_nothing
    if not isinstance(value, str):
        return None, True  # None, or the schema's own default, which is an enumerator's number
    return getattr(torch, value), value == "strided"


def returns_tensors(node: Node) -> bool:
    """True if the call gives exactly the node's outputs: a tensor, a list of them, or a tuple without gaps."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None:
        return True
    kinds = [str(r.type) for r in schema_of(overload).returns]
    return kinds in (["Tensor"], ["List[Tensor]"]) or (
        all(k == "Tensor" for k in kinds) and len(kinds) == len(node.outputs)
    )


def flat(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with nothing but the tensors of its result, in order."""

    def tensors(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        return [t for t in pytree.tree_leaves(fn(*args, **kwargs)) if isinstance(t, torch.Tensor)]

    return tensors
