"""Where a program's time goes, step by step and by kind of op."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import devices
from eager_backend.building.contracts import CompiledProgram
from eager_backend.building.steps import Slot, Step
from eager_backend.inspection import watch

_SHOWN = 30  # nodes in the table for people; JSON has them all


@dataclass(frozen=True)
class Row:
    """One step, or all of one kind.

    Attributes:
        name: the graph's value that it makes, or the local of the source; of a kind the op.
        op: the node's op, of the first where a pass made one call of several; empty for sizes and the border.
        call: what the program calls.
        place: the model's source line and module.
        count: calls in one run of the program.
        seconds: of one run, the median over the runs.
        share: of all steps' seconds.
        bytes: of the tensors read and made in one run; a view reads and makes none, a sparse tensor counts as dense.
    """

    name: str
    op: str
    call: str
    place: str
    count: int
    seconds: float
    share: float
    bytes: int


@dataclass(frozen=True)
class Profile:
    """The rows in the order of the program, and `kinds`, the slowest first.

    `seconds` is the sum over the steps, `call_seconds` what one ordinary call takes, without the hooks between them.
    """

    device: str
    runs: int
    seconds: float
    call_seconds: float
    nodes: tuple[Row, ...]
    kinds: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python; seconds, bytes and counts of one run."""
        return asdict(self)

    def json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        slowest = sorted(self.nodes, key=lambda r: -r.seconds)
        more = len(slowest) - _SHOWN
        parts = [
            f"{len(self.nodes)} steps on {self.device}, {self.runs} runs: {_ms(self.seconds)} ms in steps, "
            f"{_ms(self.call_seconds)} ms a call",
            "",
            *_table("op", self.kinds, lambda r: r.call),
            "",
            *_table("node", slowest[:_SHOWN], lambda r: f"{r.op} {r.call} {r.place.rpartition('/')[2]}".strip()),
            *([f"and {more} more"] if more > 0 else []),
        ]
        return "\n".join(parts)


def _table(title: str, rows: Iterable[Row], last: Any) -> list[str]:
    rows = list(rows)
    width = max([len(title), *(len(r.name) for r in rows)])
    head = f"{title:{width}}  count        ms  share       bytes"
    return [
        head,
        *(f"{r.name:{width}}  {r.count:5}  {_ms(r.seconds)}  {r.share:5.1%}  {r.bytes:10}  {last(r)}" for r in rows),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:8.3f}"


class _Clock:
    """Marks in time and the seconds between two; on a GPU they are events of the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = devices.runtime.event(timing=True)
        event.record(devices.runtime.current_stream(self.device))
        return event

    def wait(self) -> None:
        devices.settled(self.device)

    def between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self.on_gpu else end - start)


def profile(program: CompiledProgram, inputs: Sequence[Tensor], runs: int) -> Profile:
    """See `Program.profile`."""
    if runs < 1:
        raise ValueError(f"runs={runs}: at least one")
    inputs = watch.private(program, inputs)
    steps, clock = program.plan.block.steps, _Clock(program.device)
    traffic = _traffic(program, inputs)
    marks: list[Any] = []

    def hook(place: int, made: tuple[Any, ...]) -> None:
        marks.append(clock.mark())
        marks.append(clock.mark())  # where the next step begins

    timed, ordinary = watch.watched(program, hook), program.clone()
    taken: list[list[float]] = []
    calls: list[float] = []
    for _ in range(runs):
        marks.clear()
        given = watch.private(program, inputs)
        marks.append(clock.mark())
        timed(*given)
        clock.wait()
        taken.append([clock.between(*marks[i : i + 2]) for i in range(0, 2 * len(steps), 2)])
        given = watch.private(program, inputs)
        start = clock.mark()
        ordinary(*given)
        end = clock.mark()
        clock.wait()
        calls.append(clock.between(start, end))
    seconds = [statistics.median(times) for times in zip(*taken, strict=True)]
    total = sum(seconds)
    nodes = [_row(program, s, t, t / total, b) for s, t, b in zip(steps, seconds, traffic, strict=True)]
    return Profile(str(program.device), runs, total, statistics.median(calls), tuple(nodes), _kinds(nodes))


def _row(program: CompiledProgram, step: Step, seconds: float, share: float, traffic: int) -> Row:
    plan, node = program.plan, step.node
    names = [plan.values[o].name if o in plan.values else o.name for o in step.outputs]  # type: ignore[index]
    place = f"{node.origin.file}:{node.origin.line} {node.origin.module}" if node and node.origin.line else ""
    op = node.op if node else ""
    return Row(", ".join(names), op, plan.source.called(step), place.strip(), 1, seconds, share, traffic)


def _kinds(nodes: Sequence[Row]) -> tuple[Row, ...]:
    found: dict[str, list[Row]] = {}
    for row in nodes:
        found.setdefault(row.op or "(sizes, border)", []).append(row)
    kinds = [
        Row(op, op, ", ".join(sorted({r.call for r in rows})), "", len(rows), sum(r.seconds for r in rows),
            sum(r.share for r in rows), sum(r.bytes for r in rows))
        for op, rows in found.items()
    ]  # fmt: skip
    return tuple(sorted(kinds, key=lambda r: -r.seconds))


def _traffic(program: CompiledProgram, inputs: Sequence[Tensor]) -> list[int]:
    """The bytes that each step reads and makes, from one call."""
    block, source = program.plan.block, program.plan.source
    extents = {s: _extent(t) for s, t in zip(block.inputs, inputs, strict=True)}
    found: list[int] = []

    def of(slot: Slot) -> tuple[int, int]:
        return _extent(program.constants.globals[slot.name]) if slot.home is None else extents[slot]

    def hook(place: int, made: tuple[Any, ...]) -> None:
        step = block.steps[place]
        results = {o: _extent(t) for o, t in zip(step.outputs, made, strict=True) if isinstance(o, Slot)}
        read = [of(s) for s in step.reads() if isinstance(s, Slot)]
        is_view = {memory for memory, _ in results.values()} <= {memory for memory, _ in read}
        if is_view and not source.called(step).endswith("_"):  # or a size
            found.append(0)
        else:
            found.append(sum(size for _, size in (*read, *results.values())))
        extents.update(results)

    watch.watched(program, hook)(*watch.private(program, inputs))
    return found


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Which memory, and how many bytes of it; packed weights have no memory that torch shows."""
    memory = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
    return memory, tensor.numel() * tensor.element_size()
