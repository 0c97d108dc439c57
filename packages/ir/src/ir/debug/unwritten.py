"""Elements that torch's own kernel leaves as memory was: nothing stands there to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ir.debug.values import Values
from ir.graph import Node, Value

Pair = tuple[Tensor, Tensor]


def without_unwritten(run: Values, node: Node, made: Mapping[Value, Tensor]) -> dict[Value, Pair]:
    """What a target made of a node beside torch's results, both 0 where torch writes nothing.

    `run` holds torch's operands of the node and its results. The kernel runs again in memory that torch fills before:
    what it fills with is found where nothing was written.
    """
    pairs = {v: (t, run.of[v]) for v, t in made.items()}
    try:
        with torch.no_grad(), warnings.catch_warnings(), _filled_memory():
            warnings.simplefilter("ignore")  # of ops that are not the same at every run
            again = dict(zip(node.outputs, run.results(node), strict=True))
    except Exception:  # an op that torch does not run in this mode: as it is
        return pairs
    return {v: _written(*pair, again[v]) if v in again else pair for v, pair in pairs.items()}


def _written(made: Tensor, expected: Tensor, again: Tensor) -> Pair:
    shaped = made.shape == expected.shape == again.shape
    if not shaped or any(t.layout is not torch.strided for t in (made, expected, again)):
        return made, expected
    unwritten = _is_filling(again) & ~_is_filling(expected)
    if not unwritten.any():
        return made, expected
    return made.masked_fill(unwritten.to(made.device), 0), expected.masked_fill(unwritten, 0)


def _is_filling(t: Tensor) -> Tensor:
    if t.dtype.is_floating_point or t.dtype.is_complex:
        return t.isnan()
    return torch.zeros_like(t) if t.dtype == torch.bool else t == torch.iinfo(t.dtype).max


@contextmanager
def _filled_memory() -> Iterator[None]:
    """New memory is filled with nan, or the largest integer."""
    fills: Any = torch.utils.deterministic  # its property is one of a class of modules
    before = torch.get_deterministic_debug_mode(), fills.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    fills.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        fills.fill_uninitialized_memory = before[1]
