"""What the fusing passes share: who reads what, and a producer that takes in the steps behind it.

A fused call stands where the last step that it takes in stood: by then every other operand exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from eager_backend.building.onednn import Activation, activation
from eager_backend.building.steps import Block, Slot, Step
from ir.importer.torch_api import VF


class Fused(Protocol):
    """A call that may take in an addition and an activation."""

    @property
    def out(self) -> Slot:
        """Its result so far."""

    def with_activation(self, act: Activation, out: Slot) -> Fused | None:
        """The call with this activation applied to its result; None if it cannot."""

    def with_sum(self, other: Slot, out: Slot) -> Fused | None:
        """The call with another tensor of the same shape added to its result; None if it cannot."""

    def step(self) -> Step:
        """The call as a step."""


def readers(block: Block) -> Counter[Slot]:
    """How often each tensor is read; being a result counts."""
    counts: Counter[Slot] = Counter(block.results)
    for step in block.steps:
        counts.update(v for v in step.reads() if isinstance(v, Slot))
    return counts


def summands(step: Step) -> list[tuple[Slot, Slot]]:
    """Both orders of a plain sum of two tensors of the result's type; none for any other step."""
    if step.fn is not VF.add or step.kwargs or len(step.args) != 2:
        return []
    a, b = step.args
    plain = isinstance(a, Slot) and isinstance(b, Slot) and a is not b and a.type == b.type == step.output.type
    return [(a, b), (b, a)] if plain else []


def fuse(block: Block, make: Callable[[Step], Fused | None]) -> None:
    """Replace each step that `make` answers to, and let the call take in what follows it."""
    counts = readers(block)
    steps: list[Step | Fused | None] = []
    open_: dict[Slot, int] = {}  # results that one step alone reads -> where their call stands

    def put(call: Fused) -> None:
        if counts[call.out] == 1:
            open_[call.out] = len(steps)
        steps.append(call)

    def taken(place: int, call: Fused) -> None:
        steps[place] = None
        put(call)

    for step in block.steps:
        call = make(step)
        if call is not None:
            put(call)
            continue
        for place, grown in _grown(step, steps, open_):
            taken(place, grown)
            break
        else:
            steps.append(step)
    block.steps = [s if isinstance(s, Step) else s.step() for s in steps if s is not None]


def _grown(step: Step, steps: list[Any], open_: dict[Slot, int]) -> list[tuple[int, Fused]]:
    """The ways in which an earlier call takes in this step, the best first."""
    out = step.outputs[0] if len(step.outputs) == 1 else None
    if not isinstance(out, Slot):
        return []
    act = activation(step)
    if act is not None:
        place = open_.get(step.args[0])
        grown = None if place is None else steps[place].with_activation(act, out)
        return [] if grown is None else [(place, grown)]  # type: ignore[list-item]
    found = [(open_[x], steps[open_[x]].with_sum(y, out)) for x, y in summands(step) if x in open_]
    return sorted(((p, g) for p, g in found if g is not None), key=lambda f: -f[0])
