"""Elements that torch's own kernel leaves as memory was: nothing stands there to compare with."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ir.debug.values import Values
from ir.graph import Node, Value

Pair = tuple[Tensor, Tensor]
_OTHER_RUNS, _BLOCKS = 20, 64
_LARGE = 1 << 17  # bytes; such memory comes from the system, which clears it
_ALONE = threading.Lock()  # what fills memory is a setting of the process


def without_unwritten(run: Values, node: Node, made: Mapping[Value, Tensor]) -> dict[Value, Pair]:
    """What a target made of a node beside torch's results, both 0 where torch writes nothing.

    `run` holds torch's operands of the node and its results. The kernel runs again in memory that torch fills before:
    what it fills with is found where nothing was written. A kernel that computes nan itself does so in any memory:
    it runs a few times more where other values lay.
    """
    pairs = {v: (t, run.of[v]) for v, t in made.items()}
    try:
        with _ALONE, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ops that are not the same at every run
            with _filled_memory():
                filled = dict(zip(node.outputs, run.results(node), strict=True))
            if not any(v in filled and _is_filling(filled[v]).any() for v in pairs):
                return pairs
            others: list[dict[Value, Tensor]] = []  # all are kept: each run has memory of its own
            while _may_be_unwritten([filled, run.of, *others], pairs):
                _leave_ones(filled.values())
                others.append(dict(zip(node.outputs, run.results(node), strict=True)))
    except Exception:  # an op that torch does not run in this mode: as it is
        return pairs
    return {v: _written(*pair, filled[v], [o[v] for o in others]) if v in filled else pair for v, pair in pairs.items()}


def _written(made: Tensor, expected: Tensor, filled: Tensor, others: list[Tensor]) -> Pair:
    tensors = made, expected, filled, *others
    if len({t.shape for t in tensors}) > 1 or any(t.layout is not torch.strided for t in tensors):
        return made, expected
    unwritten = _is_filling(filled)
    if unwritten.any():
        unwritten &= ~torch.stack([_is_filling(t) for t in (expected, *others)]).all(0)
    if not unwritten.any():
        return made, expected
    return made.masked_fill(unwritten.to(made.device), 0), expected.masked_fill(unwritten, 0)


def _may_be_unwritten(runs: Sequence[Mapping[Value, Tensor]], of: Iterable[Value]) -> bool:
    """Whether one more run could tell memory from results: some element is still nan in every one of them."""
    kept = [[run[v] for run in runs if v in run] for v in of]
    most = 3 if any(ts[0].nbytes > _LARGE for ts in kept) else _OTHER_RUNS
    return len(runs) < most + 2 and any(torch.stack([_is_filling(t) for t in ts]).all(0).any() for ts in kept)


def _leave_ones(like: Iterable[Tensor]) -> None:
    """The allocator hands out first what was given back last: blocks of these sizes hold ones from here on."""
    ones = [torch.ones_like(t) for t in like for _ in range(8 if t.nbytes > _LARGE else _BLOCKS)]
    del ones


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
