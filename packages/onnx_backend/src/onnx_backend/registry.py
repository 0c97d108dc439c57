"""The registry of ONNX handlers and its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import ir.registry
from ir.handlers.registry import add_shared
from ir.importer.autograd_functions import FUNCTIONS
from ir.registry import HandlerFn, Registry

REGISTRY: Registry = ir.registry.registry("onnx")
register = REGISTRY.register


def rows(table: Mapping[str, str], *, since_version: int = 0) -> None:
    """Register one-to-one ops of one tensor: aten name -> ONNX op."""
    for name, op in table.items():
        REGISTRY.add(f"aten::{name}", _row(op), since_version=since_version)


def pairs(table: Mapping[str, str], *, since_version: int = 0) -> None:
    """Register one-to-one ops of two operands, either of which may be a number."""
    for name, op in table.items():
        REGISTRY.add(f"aten::{name}", _pair(op), since_version=since_version)


def _row(op: str) -> HandlerFn:
    def handler(h, self):  # type: ignore[no-untyped-def]
        return h.emit(op, self)

    return handler


def _pair(op: str) -> HandlerFn:
    def handler(h, self, other):  # type: ignore[no-untyped-def]
        return h.emit(op, self, other)

    return handler


@lru_cache(maxsize=1)
def load() -> Registry:
    """The registry with the builtin handlers in it."""
    ir.registry.load_handlers("onnx_backend.handlers")
    add_shared(REGISTRY)
    REGISTRY.fallback = _symbolic
    REGISTRY.adapt = _adapted
    return REGISTRY


def _adapted(fn: HandlerFn) -> HandlerFn:
    """A function of onnxscript as a handler."""
    if not type(fn).__module__.startswith("onnxscript"):
        return fn
    from onnx_backend.compat.torchlib import adapted

    return adapted(fn)


def _symbolic(name: str) -> HandlerFn | None:
    """The static `symbolic` of an autograd.Function's op."""
    if name.partition(".")[0] not in FUNCTIONS:
        return None
    from onnx_backend.compat.legacy import (
        of_function,  # speaks TorchScript's words; only models with such a class need it
    )

    return of_function(name)
