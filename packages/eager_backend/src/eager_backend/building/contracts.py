"""What passes ask of a compilation, and what looks inside of a program asks of it: nothing else is used of either."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from eager_backend.building.constants import Constants
from eager_backend.building.plan import Plan
from eager_backend.building.steps import Block, Names, Slot
from ir.dims import Dim
from ir.graph import Graph, Value, Weight
from ir.types import TensorType


class Options(Protocol):
    """The options of the target that a compilation reads."""

    device: torch.device
    dtype: torch.dtype | None
    autotune: bool
    chosen: tuple[str, ...]
    sizes: Mapping[str, int]

    def tuned(self, graph: Graph, registry: Any) -> Any:
        """The program with those of the passes that pay on this machine."""


class Compilation(Protocol):
    """One graph on its way to a program: its steps so far, its constants, its names."""

    graph: Graph
    block: Block
    constants: Constants
    names: Names

    @property
    def target(self) -> Any:
        """The `Options`."""

    def weight(self, value: Value, weight: Weight) -> Slot:
        """A parameter or buffer as a constant of the program."""

    def local(self, wish: str, type: TensorType) -> Slot:
        """A new tensor of the current block."""

    def hint(self, dim: Dim) -> int | None:
        """The size that passes choose for: the target's or the example's; None for one that no input carries."""


class CompiledProgram(Protocol):
    """A program as profiles, traces and captures see it."""

    plan: Plan
    graph: Graph
    device: torch.device
    run: FunctionType
    source: str
    constants: Constants

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The model's own tensors by their names in the source."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results."""

    def clone(self) -> Any:
        """Another program over the same code and weights, with buffers of its own."""
