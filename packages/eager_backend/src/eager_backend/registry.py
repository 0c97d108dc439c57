"""The eager registry: rows of plain bindings, and torch.ops for everything that has none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from ir.importer.bodies import BODIES
from ir.importer.schema import overload_of
from ir.registry import HandlerFn, Registry, loading, registry

FAMILIES = (
    "elementwise", "reduce", "matmul", "conv", "pool", "norm", "attention", "shape", "index", "create", "recurrent",
    "control",
)  # fmt: skip

REGISTRY: Registry = registry("eager")
register = REGISTRY.register


def plain(fn: Callable[..., Any]) -> HandlerFn:
    """The handler of an op that is one call of `fn` with the schema's own arguments."""

    def handler(h: Any, /, **arguments: Any) -> Any:
        return h.native(fn, arguments)

    handler.__name__ = handler.__qualname__ = getattr(fn, "__name__", "handler")
    return handler


def named(namespace: Any, names: str) -> dict[str, Any]:
    """The functions of these names in a namespace of torch."""
    return {name: getattr(namespace, name) for name in names.split()}


def rows(namespace: Any, names: str) -> None:
    """Register `aten::name -> namespace.name` for each name: torch's plain binding of the same op."""
    for name, fn in named(namespace, names).items():
        REGISTRY.add(f"aten::{name}", plain(fn))


def fallback(name: str) -> HandlerFn | None:
    """torch's own kernel of any op that torch.library knows; None for a custom op with a body, which is a closure."""
    op, _, overload = name.partition(".")
    if name in BODIES or op in BODIES or op.startswith(("ir::", "higher_order::")):
        return None
    target = overload_of(op, overload)
    # OpOverload.__call__ only forwards to `_op`; calling that saves a Python frame
    kernel: BuiltinFunctionType | None = getattr(target, "_op", None)
    return None if kernel is None else plain(Kernel(name, kernel))


class Kernel:
    """A kernel of torch.ops that has no plain binding, under its own name; programs call what is in it."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name = self.__name__ = name
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def load() -> Registry:
    """The registry with the builtin handlers in it; they are imported on first use."""
    with loading("builtin"):
        for family in FAMILIES:
            importlib.import_module(f"eager_backend.handlers.{family}")
    REGISTRY.fallback = fallback
    return REGISTRY
