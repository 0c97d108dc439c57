"""What the importer needs to know of a tensor in torch's graph, where no fake tensor stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False, slots=True)
class Described:
    """A tensor's type and how it lies in memory; sizes are numbers, or whatever the graph's symbols can convert."""

    dtype: torch.dtype
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    layout: torch.layout
    device: torch.device
    requires_grad: bool = False

    def stride(self) -> tuple[Any, ...]:
        return self.strides


Tensors = (torch.Tensor, Described)  # what may stand in a node's meta["val"]


def graphs_of(module: torch.nn.Module) -> list[torch.fx.Graph]:
    """The graph of a program's module, and those of its sub-graphs."""
    found = (getattr(m, "graph", None) for m in module.modules())
    return [g for g in found if isinstance(g, torch.fx.Graph)]


def holds_tensor(fake: Any) -> bool:
    """True of a tensor, and of lists with one at any depth."""
    if isinstance(fake, (list, tuple)):
        return any(map(holds_tensor, fake))
    return isinstance(fake, Tensors)
