"""Handlers that several targets share: what the shape verbs say in full, lowered without a decomposition in between.

A target adds them to its registry for the ops that it has no handler of its own for.
"""

from __future__ import annotations

from collections.abc import Callable

from ir.registry import HandlerFn, Registry, load_handlers, loading

_SHARED: dict[str, HandlerFn] = {}  # op name or overload -> handler


def shared(*ops: str) -> Callable[[HandlerFn], HandlerFn]:
    """Register a handler for ops or overloads, named as in a registry: `"aten::permute"`."""

    def register(fn: HandlerFn) -> HandlerFn:
        for op in ops:
            if op in _SHARED:
                raise ValueError(f"{op} has two shared handlers")
            _SHARED[op] = fn
        return fn

    return register


def add_shared(registry: Registry) -> None:
    """Add the shared handlers to a registry that holds a target's own, which come first."""
    load_handlers("ir.handlers")
    with loading("builtin"):
        for op, fn in _SHARED.items():
            if op not in registry.entries:
                registry.add(op, fn)
