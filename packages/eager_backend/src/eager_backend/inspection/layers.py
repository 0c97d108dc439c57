"""Every intermediate value of a program, and torch's own beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import devices
from eager_backend.building.contracts import CompiledProgram
from eager_backend.building.steps import Slot
from eager_backend.inspection import watch
from ir.errors import ExportError
from ir.graph import Node, Value
from ir.importer.tensor_meta import Tensors
from ir.importer.weights import TorchWeight
from ir.verify import Row, compare

Found = Callable[[Value, Tensor], None]


@dataclass(frozen=True)
class Difference:
    """A value of the program beside torch's: the node that makes it, and how far they lie apart."""

    node: Node
    row: Row

    @property
    def ok(self) -> bool:
        return self.row.ok

    def __str__(self) -> str:
        row = self.row
        sizes = f"{row.dtype}{list(row.shape)} error {row.error:.3g} (scale {row.scale:.3g})"
        text = f"{row.name} = {self.node.overload}: {sizes}"
        return text if self.ok else f"{text}: {row.reason}\n  at {self.node.origin}"


@dataclass(frozen=True)
class Check:
    """Every value that was compared, in the order of the program; `skipped` of the graph's values were not.

    Passes leave some values out, random draws into uninitialised memory have none to compare.
    """

    rows: tuple[Difference, ...]
    skipped: int

    @property
    def first(self) -> Difference | None:
        """The first that differs, None if all agree."""
        return next((r for r in self.rows if not r.ok), None)

    @property
    def ok(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        wrong = sum(not r.ok for r in self.rows)
        head = f"{len(self.rows)} values compared, {self.skipped} without a counterpart"
        return f"{head}: all agree" if self.first is None else f"{head}: {wrong} differ, the first is\n{self.first}"


def trace(program: CompiledProgram, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """See `Program.trace`."""
    found: dict[str, Tensor] = {}

    def keep(value: Value, tensor: Tensor) -> None:
        found[value.name] = tensor.clone()  # a later step may write over it

    _run(program, inputs, keep)
    return found


def check(program: CompiledProgram, inputs: Sequence[Tensor], rtol: float | None, atol: float | None) -> Check:
    """See `Program.check`."""
    inputs = watch.private(program, inputs)
    reference = _Reference(program)
    together = reference.device == program.device.type  # kernels and random numbers of another device are others
    if program.plan.exact and rtol is atol is None and together:
        rtol = atol = 0.0
    values = together or not program.graph.random
    with devices.same_random_numbers(program.device), torch.no_grad():
        torch.manual_seed(0)
        expected = reference.values(inputs)
        torch.manual_seed(0)
        rows: list[Difference] = []
        producer = program.graph.producer

        def beside(value: Value, actual: Tensor) -> None:
            node = producer[value]
            theirs = expected.get(_place(node, value))
            if theirs is not None and theirs[0] == node.origin.stack and "empty" not in node.op:
                rows.append(_difference(node, value, actual, theirs[1], rtol, atol, values))

        _run(program, inputs, beside)
    return Check(tuple(rows), len(producer) - len(rows))


def _run(program: CompiledProgram, inputs: Sequence[Tensor], found: Found) -> None:
    steps, values = program.plan.block.steps, program.plan.values

    def hook(place: int, made: tuple[Any, ...]) -> None:
        for slot, tensor in zip(steps[place].outputs, made, strict=True):
            if isinstance(slot, Slot) and slot in values:
                found(values[slot], tensor)

    watch.watched(program, hook)(*watch.private(program, inputs))


def _difference(
    node: Node,
    value: Value,
    actual: Tensor,
    expected: Tensor,
    rtol: float | None,
    atol: float | None,
    values: bool,
) -> Difference:
    if actual.is_floating_point() and expected.is_floating_point():
        expected = expected.to(actual.dtype)  # of a program with a dtype of its own
    arrays = (TorchWeight("", actual).numpy(), TorchWeight("", expected).numpy())
    (row,) = compare([value.name], *([a] for a in arrays), rtol=rtol, atol=atol, values=values).rows
    return Difference(node, replace(row, shape=tuple(row.shape)))


Place = tuple[str, str]  # of torch's node, and of the result among its results


def _place(node: Node, value: Value) -> Place:
    if node.returns == "one":
        return value.name, ""
    first = node.outputs[0].name.rpartition("_0")[0]
    return first, value.name.removeprefix(first)


class _Reference(torch.fx.Interpreter):
    """torch's own run of the captured program; notes what each node makes, with the stack that it came from."""

    def __init__(self, program: CompiledProgram) -> None:
        self.captured: Any = getattr(program.graph.context, "program", None)
        if self.captured is None:
            raise ExportError("this graph was not captured from a model: there is no run of torch to compare with")
        super().__init__(self.captured.graph_module, garbage_collect_values=True)
        self.program = program
        self.found: dict[Place, tuple[str, Tensor]] = {}

    @property
    def device(self) -> str:
        """The kind of device that the model was captured on, where it runs here."""
        fakes = (n.meta.get("val") for n in self.captured.graph.nodes)
        return next((f.device.type for f in fakes if isinstance(f, Tensors)), "cpu")

    def values(self, inputs: Sequence[Tensor]) -> dict[Place, tuple[str, Tensor]]:
        self.run(*self._arguments(inputs))
        return self.found

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self._note(n, result, "")
        return result

    def _note(self, n: torch.fx.Node, result: Any, suffix: str) -> None:
        if isinstance(result, Tensor):
            self.found[n.name, suffix] = n.meta.get("stack_trace") or "", result.clone()
        elif isinstance(result, (tuple, list)):
            for i, r in enumerate(result):
                self._note(n, r, f"{suffix}_{i}")

    def _arguments(self, inputs: Sequence[Tensor]) -> list[Any]:
        """What the captured graph's placeholders take: the program's own weights as they are now, and the inputs."""
        ep, given = self.captured, iter(inputs)
        fakes = [n.meta.get("val") for n in ep.graph.nodes if n.op == "placeholder"]
        arguments: list[Any] = []
        for spec, fake in zip(ep.graph_signature.input_specs, fakes, strict=True):
            if spec.target is not None:
                arguments.append(self._weight(spec.target))
            elif isinstance(fake, Tensors):
                arguments.append(next(given).detach().to(fake.device, copy=True))
            else:
                arguments.append(getattr(spec.arg, "value", None))
        return arguments

    def _weight(self, name: str) -> Any:
        ep, constants = self.captured, self.program.constants
        captured = ep.constants[name] if name in ep.constants else ep.state_dict[name]
        place = constants.model_names.get(name)
        if place is None:
            return captured
        own = constants.weights[place].detach()
        moved = own.to(captured.device, captured.dtype, copy=name in self.program.graph.updates)
        return moved.requires_grad_(captured.requires_grad)
