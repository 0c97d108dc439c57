"""Linear layers by oneDNN: weights packed at load, activations and residual sums inside.

Measured on one thread (AMD EPYC with AVX512, torch built with MKL): 1.2 to 2.4 times as fast as torch's linear from
2**20 multiplications and two rows on, slower below, where the call itself costs 7 us more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
_FEWEST = 2  # rows


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
        return None if self.act or self.other else replace(self, act=act, out=out)

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


def _linear(h: Compilation, step: Step) -> Linear | None:
    rows = _rows(h, step)
    if rows is None:
        return None
    x, weight, bias, transposed = operands(step)
    packed = h.constants.derive(packed_weight, weight, transposed, rows, wish=f"{weight.name}_packed")
    return Linear(x, packed, bias, step.output, step.node)


def _rows(h: Compilation, step: Step) -> int | None:
    """The rows that a linear layer worth packing is for; None for any other step."""
    x, weight, _, _ = operands(step)
    if x is None or not h.constants.is_frozen(weight) or not onednn.takes(h.constants.tensor(weight)):
        return None
    rows = h.hint(product(x.type.shape[:-1]))
    if rows is None or rows < _FEWEST or rows * h.constants.tensor(weight).numel() < _SMALLEST:
        return None
    return rows


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
