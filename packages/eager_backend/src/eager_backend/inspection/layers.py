"""Every intermediate value of a program, and the debugger's table of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eager_backend.building import devices
from eager_backend.building.contracts import CompiledProgram
from eager_backend.building.steps import Slot
from eager_backend.inspection import watch
from ir.debug import Table
from ir.debug.nodes import table_of
from ir.graph import Graph
from ir.importer.weights import TorchWeight


def trace(program: CompiledProgram, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """See `Program.trace`."""
    steps, values = program.plan.block.steps, program.plan.values
    found: dict[str, Tensor] = {}

    def hook(place: int, made: tuple[Any, ...]) -> None:
        for slot, tensor in zip(steps[place].outputs, made, strict=True):
            if isinstance(slot, Slot) and slot in values:
                found[values[slot].name] = tensor.clone()  # a later step may write over it

    watch.watched(program, hook)(*watch.private(program, inputs))
    return found


def check(program: CompiledProgram, inputs: Sequence[Tensor], max_error: float | None) -> Table:
    """See `Program.check`."""
    inputs, plan = watch.private(program, inputs), program.plan
    exact = plan.exact and max_error is None and program.device.type == "cpu"
    with devices.same_random_numbers(program.device):
        return table_of(
            _as_it_is(program), plan.target, plan.registry, inputs,
            max_error=max_error, whole_error=0.0 if exact else None, traced=lambda given: trace(program, given),
        )  # fmt: skip


def _as_it_is(program: CompiledProgram) -> Graph:
    """The graph with the program's own weights and buffers as they are now, in the element types of the graph."""
    graph, constants = program.graph, program.constants
    weights = dict(graph.weights)
    for value, weight in graph.weights.items():
        place = constants.model_names.get(weight.name)
        if place is not None and weight.tensor is not None:
            now = constants.weights[place].detach().to(weight.tensor.device, weight.tensor.dtype)
            weights[value] = TorchWeight(weight.name, now)
    return graph.replace(weights=weights)
