"""Loops that stay loops in what is exported, in place of their steps written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ir.importer.torch_api import scan_op, while_loop_op


def repeat(
    count: int, step: Callable[..., Sequence[Tensor]], state: Sequence[Tensor], *constants: Tensor
) -> list[Tensor]:
    """The state after `count` calls of `step(i, *state, *constants)`, which gives the next state.

    `i` is an int64 tensor of shape [] that counts from 0. Each state keeps its shape and dtype. `step` sees tensors
    from outside as `constants` alone.
    """
    n = len(state)

    def body(*operands: Tensor) -> list[Tensor]:
        carried, i, rest = operands[:n], operands[n], operands[n + 1 :]
        return [*by_rows(step(i.reshape(()), *carried, *rest)), i]

    if (isinstance(count, int) and count == 0) or all(_is_empty(s) for s in state):
        return list(state)
    state = _apart(state, constants)
    last: list[Tensor] = scan_op(body, list(state), [torch.arange(count)], tuple(constants))[:n]
    return last


def repeat_until(
    count: Tensor, step: Callable[..., Sequence[Tensor]], state: Sequence[Tensor], *constants: Tensor
) -> list[Tensor]:
    """As `repeat`, of as many calls as data says."""
    n = len(state)

    def going(*operands: Tensor) -> Tensor:
        return operands[n] < operands[-1]

    def body(*operands: Tensor) -> tuple[Tensor, ...]:
        carried, i, rest = operands[:n], operands[n], operands[n + 1 : -1]
        return *by_rows(step(i, *carried, *rest)), i + 1

    start = torch.zeros((), dtype=torch.int64)
    carried: Any = (*_apart(state, constants), start)
    return list(while_loop_op(going, body, carried, (*constants, count)))[:n]


def _apart(state: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """The state, a tensor that stands twice copied: a tracer takes the places of one tensor for one input."""
    seen = {id(c) for c in constants}
    state = by_rows(state)
    return [s.clone() if id(s) in seen or seen.add(id(s)) else s for s in state]  # type: ignore[func-returns-value]


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def by_rows(state: Sequence[Tensor]) -> list[Tensor]:
    """Row by row: torch takes no loop whose state changes its strides, be it those of axes of size 1."""
    return [s if _is_by_rows(s) else s.clone(memory_format=torch.contiguous_format) for s in state]


def _is_by_rows(x: Tensor) -> bool:
    below = [math.prod(x.shape[axis + 1 :]) for axis in range(x.dim())]
    return all(_is_empty(x) or stride == size for stride, size in zip(x.stride(), below, strict=True))
