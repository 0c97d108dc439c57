"""Linear layers by oneDNN: weights packed at load, activations and residual sums inside.

Measured on one thread (AMD EPYC with AVX512, torch built with MKL): 1.2 to 2.4 times as fast as torch's linear from
2**20 multiplications and two rows on, slower below, where the call itself costs 7 us more. Of one row the layer is as
fast as its weight is read. On one thread, with the weight column after column, it is 1.2 to 2 times as fast as with
rows where it gives at least as many features as it takes, 0.8 to 0.9 times where it gives fewer. On two threads oneDNN
is 1.3 to 2.1 times as fast as rows from 2**17 multiplications on: torch's own product of one row stays on one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import onednn
from eager_backend.building.contracts import Compilation
from eager_backend.building.onednn import Activation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.fusion import Fused, fuse
from eager_backend.passes.permuted import sum_before_permutations
from ir.dims import product
from ir.importer.torch_api import NN, VF

_SMALLEST = 2**20  # multiplications
_SMALLEST_OF_ONE = 2**19  # multiplications, on one thread
_SMALLEST_SHARED = 2**17  # multiplications of one row, on more threads


@dataclass(frozen=True)
class Linear:
    """One call of oneDNN's fused linear layer."""

    x: Slot
    weight: Slot
    bias: Slot | None
    out: Slot
    node: Any
    other: Slot | None = None
    act: Activation | None = None

    def with_activation(self, act: Activation, out: Slot) -> Fused | None:
        taken = self.act or self.other or act.name in onednn.DROPS_NAN
        return None if taken else replace(self, act=act, out=out)

    def with_sum(self, other: Slot, out: Slot) -> Fused | None:
        return None if self.act or self.other else replace(self, other=other, out=out)

    def step(self) -> Step:
        if self.other is not None:
            args: tuple[Any, ...] = (self.x, self.other, self.weight, self.bias, "add")
            return Step(onednn.LINEAR_ADD, args, {}, (self.out,), True, self.node)
        act = self.act or Activation("none")
        args = (self.x, self.weight, self.bias, act.name, act.scalars, act.algorithm)
        return Step(onednn.LINEAR, args, {}, (self.out,), True, self.node)


def pack_linears(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps."""
    if h.target.device.type == "cpu" and onednn.available():
        sum_before_permutations(h, block, lambda step: _rows(h, step) is not None)
        fuse(block, lambda step: _linear(h, step))
        block.steps = [_by_columns(h, step) for step in block.steps]


def _linear(h: Compilation, step: Step) -> Linear | None:
    rows = _rows(h, step)
    if rows is None:
        return None
    x, weight, bias, transposed = operands(step)
    packed = h.constants.derive(packed_weight, weight, transposed, rows, wish=f"{weight.name}_packed")
    return Linear(x, packed, bias, step.output, step.node)


def _rows(h: Compilation, step: Step) -> int | None:
    """The rows that a linear layer worth packing is for; None for any other step."""
    rows, size = _extent(h, step)
    if rows == 1:
        return 1 if size >= _SMALLEST_SHARED and torch.get_num_threads() > 1 else None
    return rows if rows * size >= _SMALLEST else None


def _extent(h: Compilation, step: Step) -> tuple[int, int]:
    """Rows and elements of the weight of a linear layer whose weight can take another layout, else zeros."""
    x, weight, _, _ = operands(step)
    if x is None or not h.constants.is_frozen(weight) or not onednn.takes(h.constants.tensor(weight)):
        return 0, 0
    return h.hint(product(x.type.shape[:-1])) or 0, h.constants.tensor(weight).numel()


def _by_columns(h: Compilation, step: Step) -> Step:
    """A linear layer of one row that widens, with its weight stored column after column; any other step as it is."""
    rows, size = _extent(h, step)
    _, weight, _, transposed = operands(step)
    if rows != 1 or size < _SMALLEST_OF_ONE or transposed:
        return step
    made, taken = h.constants.tensor(weight).shape
    if made < taken:
        return step
    stored = h.constants.derive(columns, weight, wish=f"{weight.name}_columns")
    return replace(step, args=(step.args[0], stored, *step.args[2:]))


def columns(weight: Tensor) -> Tensor:
    """The same matrix, stored column after column."""
    return weight.detach().t().contiguous().t()


def operands(step: Step) -> tuple[Any, Any, Any, bool]:
    """Input, weight, bias, and whether the weight stands as (in, out), of a step that is a linear layer; else None."""
    nothing = None, None, None, False
    if step.kwargs:
        return nothing
    if step.fn is NN.linear:
        x, weight, bias, transposed = (*(*step.args, None)[:3], False)
    elif step.fn in (VF.mm, VF.matmul):
        x, weight, bias, transposed = (*step.args, None, True)
    elif step.fn is VF.addmm and len(step.args) == 3:
        bias, x, weight, transposed = (*step.args, True)
    else:
        return nothing
    if (
        not isinstance(x, Slot)
        or not isinstance(weight, Slot)
        or x.type.is_sparse
        or weight.type.is_sparse
        or x.type.dtype is not weight.type.dtype
        or x.type.rank < 2
        or weight.type.rank != 2
    ):
        return nothing
    width = weight.type.shape[1 if transposed else 0]
    return (x, weight, bias, transposed) if bias is None or bias.type.shape == (width,) else nothing


def packed_weight(weight: Tensor, transposed: bool, rows: int) -> Tensor:
    """A weight in the layout that oneDNN wants for about this many rows."""
    plain = (weight.t() if transposed else weight).detach().contiguous()
    result: Tensor = onednn.PACK_LINEAR(plain, rows)  # type: ignore[misc]
    return result
