"""The registry of NNEF handlers and its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import ir.registry
from ir.handlers.registry import add_shared
from ir.registry import HandlerFn, Registry

REGISTRY: Registry = ir.registry.registry("nnef")
register = REGISTRY.register


def rows(table: Mapping[str, str | HandlerFn]) -> None:
    """Register ops that need no more than a row: aten name -> NNEF operation of one tensor, or a handler in a line."""
    for name, op in table.items():
        REGISTRY.add(f"aten::{name}", _row(op) if isinstance(op, str) else op)


def _row(op: str) -> HandlerFn:
    def handler(h, self):  # type: ignore[no-untyped-def]
        return h.emit(op, self)

    return handler


@lru_cache(maxsize=1)
def load() -> Registry:
    """The registry with the builtin handlers in it."""
    ir.registry.load_handlers("nnef_backend.handlers")
    add_shared(REGISTRY)
    return REGISTRY
