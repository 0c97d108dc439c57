"""The registry of StableHLO handlers and its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import ir.registry
from ir.handlers.registry import add_shared
from ir.registry import HandlerFn, Registry

REGISTRY: Registry = ir.registry.registry("stablehlo")
register = REGISTRY.register


def rows(table: Mapping[str, HandlerFn]) -> None:
    """Register ops that need no more than a row: aten name -> a handler in a line."""
    for name, handler in table.items():
        REGISTRY.add(f"aten::{name}", handler)


@lru_cache(maxsize=1)
def load() -> Registry:
    """The registry with the builtin handlers in it."""
    ir.registry.load_handlers("stablehlo_backend.handlers")
    add_shared(REGISTRY)
    return REGISTRY
