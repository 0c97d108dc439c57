"""The eager registry: rows of plain bindings, and torch.ops for everything that has none."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from eager_backend.bind import arguments_of
from ir.importer.bodies import KERNELS, given_body
from ir.importer.checked import checked_view
from ir.importer.evaluate import on_copies
from ir.importer.schema import op_schema, overload_of
from ir.importer.torch_api import has_kernel, plain_call
from ir.registry import HandlerFn, Registry, load_handlers, registry

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
    """torch's own kernel of any op that torch.library knows; None for a custom op with a body, which is a closure.

    An op whose Python kernel can be traced is a closure as well. A body that somebody gave to another's op is for the
    targets that have no kernel of it; here it serves where the op has none at all.
    """
    op, _, overload = name.partition(".")
    if op.startswith(("ir::", "higher_order::")):
        return None
    target = overload_of(op, overload)
    if given_body(op, name) is not None and (op in KERNELS or not _has_kernel(target)):
        return None
    # OpOverload.__call__ only forwards to `_op`; calling that saves a Python frame
    kernel: BuiltinFunctionType | None = plain_call(target and checked_view(target))
    if kernel is None:
        return None
    schema = op_schema(target)
    if schema.fresh or schema.in_place:
        return _closure_or(_writer(Kernel(name, on_copies(target))))
    own = plain(Kernel(name, kernel))
    return _closure_or(lambda h, arguments: own(h, **arguments)) if op in KERNELS else own


def _has_kernel(target: Any) -> bool:
    """True if torch can run the op on some device."""
    keys = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    return target is not None and any(has_kernel(target.name(), k) for k in keys)


def _closure_or(kernel: Callable[[Any, dict[str, Any]], Any]) -> HandlerFn:
    """The op's body as a closure where it has one, else the kernel."""

    def handler(h: Any, /, **arguments: Any) -> Any:
        body = h.driver.body(h.node)
        return list(h.call(body, h.driver.resolve(h.node.inputs))) if body else kernel(h, arguments)

    return handler


def _writer(kernel: Kernel) -> Callable[[Any, dict[str, Any]], Any]:
    def emit(h: Any, arguments: dict[str, Any]) -> Any:
        args, kwargs = arguments_of(h.node, arguments, h.target.device)
        return h.emit(kernel, *args, type=h.results, **kwargs)

    return emit


class Kernel:
    """A kernel of torch.ops that has no plain binding, under its own name; programs call what is in it."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name = self.__name__ = name
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def load() -> Registry:
    """The registry with the builtin handlers in it; they are imported on first use."""
    load_handlers("eager_backend.handlers")
    REGISTRY.fallback = fallback
    return REGISTRY
