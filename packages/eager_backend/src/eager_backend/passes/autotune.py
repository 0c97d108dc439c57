"""Passes chosen by measurement: each is kept unless the program is faster without it, on the example inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from eager_backend.building import devices
from eager_backend.building.contracts import CompiledProgram
from ir.errors import ExportError
from ir.graph import Graph

Build = Callable[[Sequence[str]], Any]
_GAIN = 0.02  # a pass goes if the program gains more than this share without it: less is noise
_ROUNDS, _SECONDS = 7, 0.5  # at least so many turns of each; no more once they took so long


def choose(graph: Graph, passes: Sequence[str], build: Build) -> tuple[str, ...]:
    """Those of `passes` that pay, tried one by one from the last to the first.

    Args:
        build: the program with the passes of these names.

    Raises:
        ExportError: the captured program carries no example inputs.
    """
    inputs = example(graph)
    if inputs is None:
        raise ExportError("autotune runs the program, and this one carries no example inputs: capture it with args")
    kept = list(passes)
    best = build(kept)
    with devices.same_random_numbers(best.device):
        for name in reversed(passes):
            fewer = [p for p in kept if p != name]
            other = build(fewer)
            if other.source != best.source and _ratio(best, other, inputs) > 1 + _GAIN:
                kept, best = fewer, other
    return tuple(kept)


def example(graph: Graph) -> list[torch.Tensor] | None:
    """The inputs that the model was captured with, None for a program saved without them."""
    try:
        args, kwargs = graph.context.example()
    except (AttributeError, ExportError):
        return None
    tensors: list[torch.Tensor] = graph.structure.flatten(args, kwargs)
    return tensors


def _ratio(first: CompiledProgram, second: CompiledProgram, inputs: Sequence[torch.Tensor]) -> float:
    """How many times as long a call of the first takes: the median over neighbouring runs."""

    def seconds(program: CompiledProgram) -> float:
        given = [t.clone() for t in inputs]  # a program may write to its inputs
        devices.settled(program.device)
        start = time.perf_counter()
        program(*given)
        devices.settled(program.device)
        return time.perf_counter() - start

    seconds(first), seconds(second)
    ratios: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(ratios) < _ROUNDS or (time.perf_counter() < end and len(ratios) < 200):
        a, b = (seconds(p) for p in (first, second)) if len(ratios) % 2 else reversed([seconds(second), seconds(first)])
        ratios.append(a / b)
    return statistics.median(ratios)
