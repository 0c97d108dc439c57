"""Decompositions that every target shares: what no runtime has natively, as functions of torch.

A function takes the op's arguments by schema order and gives its results. It is traced for a node's own types and
sizes, and lowered like a model. A target's own handler comes before it, torch's own decomposition after it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_FOUND: dict[str, Callable[..., Any]] = {}  # op name or overload -> function


class LeftToTorch(NotImplementedError):
    """The arguments are none for which torch's own decomposition is wrong."""


def decomposition(*ops: str) -> Callable[[F], F]:
    """Register a function for ops or overloads, named as in ATen: `"lgamma"`, `"ldexp.Tensor"`.

    The function raises NotImplementedError, with the reason, for arguments that it has no form for, and LeftToTorch for
    those that torch's own decomposition serves.
    """

    def register(fn: F) -> F:
        for op in ops:
            name = op if "::" in op else f"aten::{op}"
            if name in _FOUND:
                raise ValueError(f"{name} has two decompositions")
            _FOUND[name] = fn
        return fn

    return register


def decomposition_of(op: str, overload: str) -> Callable[..., Any] | None:
    """The shared decomposition of an overload, or of its op."""
    _load()
    return _FOUND.get(overload) or _FOUND.get(op)


@functools.cache
def _load() -> None:
    """Import the modules of this package, whose functions register themselves."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")
