"""A .pt2 file as an eager program, by its own signature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from eager_backend.runtime.program import Program
from ir.importer.plain import run_in_torch
from ir.opened import Place, Port, Timed, places_in
from ir.runtime.binding import Binding


class EagerFile:
    """The program: tensors in and out, one for each input and result of its graph."""

    def __init__(self, program: Program, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.program = program
        self.inputs = [Port.of(v) for v in program.graph.inputs]
        self.outputs = [Port.of(v, name) for name, v in program.graph.results.items()]
        self._bound = Binding(self.inputs, any_layout=True)

    @property
    def threads(self) -> int:
        """torch's, which the process has once."""
        return torch.get_num_threads()

    @property
    def operators(self) -> Mapping[str, int]:
        """torch's overloads."""
        return Counter(n.overload for n in self.program.graph.nodes)

    @property
    def places(self) -> Mapping[str, Place]:
        """torch keeps each node's module and stack in the file."""
        return places_in(self.program.graph)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results in the graph's order."""
        results: Sequence[Any] = run_in_torch(self.program, self.program.graph.inputs, self._bound(inputs))
        return results

    def timed(self, inputs: Sequence[Any], runs: int) -> list[Timed]:
        """The time of each step in one call, the median over `runs`."""
        return self.program.timed(self._bound(inputs), runs)
