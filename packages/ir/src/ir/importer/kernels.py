"""The Python function that computes an op: torch's decomposition of it, or the kernel that torch.library was given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ir.graph import Node
from ir.importer.schema import overload_of
from ir.importer.torch_api import (
    OPDEFS,
    DispatchKey,
    OpOverload,
    decompositions,
    defined_by,
    disable_torch_function,
    has_kernel,
    run_kernel,
)
from ir.ops import OF_TORCH


def decomposition(node: Node) -> Callable[..., Any] | None:
    """torch's own decomposition: the composite kernel, or the decomposition table's function."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None or not isinstance(overload, OpOverload):
        return None
    table = decompositions()
    if has_kernel(overload.name(), "CompositeImplicitAutograd"):
        return _kernel(overload, DispatchKey.CompositeImplicitAutograd)
    fn = table.get(overload)
    if fn is not None:
        return fn
    if node.op.startswith(OF_TORCH) and has_kernel(overload.name(), "CompositeExplicitAutograd"):
        return _kernel(overload, DispatchKey.CompositeExplicitAutograd)
    return None


def python_kernel(node: Node) -> Callable[..., Any] | None:
    """What torch.library was given for all devices: the function of custom_op or triton_op, a composite kernel."""
    if node.op.startswith(OF_TORCH):  # prims are such definitions, over aten
        return None
    definition = OPDEFS.get(node.op)
    if definition is not None:
        return defined_by(definition)
    overload = overload_of(node.op, node.origin.overload)
    composite = DispatchKey.CompositeExplicitAutograd
    if not isinstance(overload, OpOverload):
        return None
    found = has_kernel(overload.name(), str(composite).partition(".")[2])
    return _kernel(overload, composite) if found else None


def _kernel(overload: Any, key: Any) -> Callable[..., Any]:
    """The composite kernel itself: make_fx's torch function mode would call the operator again in its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with disable_torch_function():
            return (overload.py_kernels.get(key) or partial(run_kernel, overload, key))(*args, **kwargs)

    return call
