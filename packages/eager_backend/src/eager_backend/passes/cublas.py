"""Linear layers by cuBLAS with the activation inside: ReLU, and GELU in its tanh form, which is what cuBLAS computes.

`torch._addmm_activation` is what torch's own transformer layers call. On one GPU it gained (benchmarks/eager_cuda.md);
on others nothing was measured, so it runs by name or where autotune finds it to pay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.onednn import Activation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.fusion import Fused, fuse
from eager_backend.passes.linear import operands
from ir.importer.torch_api import addmm_activation


@dataclass(frozen=True)
class Linear:
    """A linear layer, and the activation that it has taken in."""

    plain: Step
    x: Slot
    weight: Slot  # (in, out)
    bias: Slot
    out: Slot
    gelu: bool | None = None

    def with_activation(self, act: Activation, out: Slot) -> Fused | None:
        if self.gelu is not None or (act.name, act.algorithm) not in (("relu", None), ("gelu", "tanh")):
            return None
        return replace(self, gelu=act.name == "gelu", out=out)

    def with_sum(self, other: Slot, out: Slot) -> Fused | None:
        return None

    def step(self) -> Step:
        if self.gelu is None:
            return self.plain
        fn = addmm_activation if self.x.type.rank == 2 else activated
        args = self.bias, self.x, self.weight
        return Step(fn, args, {"use_gelu": self.gelu}, (self.out,), True, self.plain.node)


def fuse_linears(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps; CUDA programs only."""
    if h.target.device.type == "cuda":
        fuse_activations(h, block)


def fuse_activations(h: Compilation, block: Block) -> None:
    """linear and the activation behind it as one call, where nothing else reads what lies between."""
    fuse(block, lambda step: _linear(h, step))


def _linear(h: Compilation, step: Step) -> Linear | None:
    x, weight, bias, transposed = operands(step)
    if x is None or bias is None or not h.constants.is_frozen(weight):
        return None
    if not transposed:
        weight = h.constants.derive(Tensor.t, weight, wish=f"{weight.name}_t")
    return Linear(step, x, weight, bias, step.output)


def activated(bias: Tensor, x: Tensor, weight: Tensor, use_gelu: bool) -> Tensor:
    """The same for a tensor of any rank."""
    rows = addmm_activation(bias, x.flatten(0, -2), weight, use_gelu=use_gelu)
    made: Tensor = rows.view(*x.shape[:-1], weight.shape[1])
    return made
