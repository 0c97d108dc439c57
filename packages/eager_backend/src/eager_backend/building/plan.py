"""What a program was compiled from: shared by its clones, and what looks inside of it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

import torch

from eager_backend.building.source import Source
from eager_backend.building.steps import Block, Slot
from ir.graph import Graph, Value
from ir.registry import Registry
from ir.target import Target


@dataclass(frozen=True, eq=False)
class Plan:
    """One compilation.

    Attributes:
        block: the steps of the main function.
        values: the graph's value that a slot of this block holds; passes leave some values without a slot.
        exact: every kernel is the captured program's own.
        as_captured: device and element types are.
        target: what it was compiled for.
        registry: the handlers that it was compiled with.
    """

    graph: Graph
    source: Source
    block: Block
    values: Mapping[Slot, Value]
    device: torch.device
    exact: bool
    as_captured: bool
    target: Target
    registry: Registry

    @cached_property
    def watched(self) -> CodeType:
        """The main function with a hook behind each step, compiled when it is first asked for."""
        return self.source.watched(self.block)
