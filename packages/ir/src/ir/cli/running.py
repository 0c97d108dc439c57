"""Running files and timing them: `ir run` and `ir bench`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ir.cli import arrays
from ir.cli.options import chosen_target
from ir.cli.wrong import told
from ir.opened import Opened, symbols_of
from ir.opening import target_of

_TURN = 0.1  # seconds of calls of one artifact before it is the next one's turn


@dataclass(frozen=True)
class Result:
    """One output: what it is, and for numbers their least, mean and largest."""

    name: str
    type: str
    shape: tuple[int, ...]
    min: float | None = None
    mean: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Result:
        """What there is to say of a tensor."""
        what = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        if tensor.numel() == 0 or tensor.is_complex():
            return cls(name, what, shape)
        wide = tensor.double()
        return cls(name, what, shape, wide.min().item(), wide.mean().item(), wide.max().item())


def run_file(
    path: Path,
    inputs: Sequence[str],
    sizes: Sequence[str],
    target: str | None,
    threads: int | None,
    seed: int,
    output: Path | None,
    options: Mapping[str, Any] | None = None,
) -> tuple[list[Result], dict[str, int]]:
    """Run a file once; its results and the sizes that were chosen for it."""
    if output is not None:
        arrays.check_output(output, [path, *arrays.files(inputs)])
    program = _opened(path, target, threads, options)
    tensors, known = arrays.fitting(program, arrays.given(inputs), arrays.sizes(sizes), seed)
    results = dict(zip([p.name for p in program.outputs], program(*tensors), strict=True))
    if output is not None:
        arrays.save(output, results)
    return [Result.of(name, t) for name, t in results.items()], known


def _opened(path: Path, target: str | None, threads: int | None, options: Mapping[str, Any] | None) -> Opened:
    """A file in its runtime, with options of its target, such as kernels of custom ops."""
    with told():
        found = target_of(path, target)
    return (chosen_target(found.name, dict(options)) if options else found).open(path, threads)


@dataclass(frozen=True)
class Timing:
    """Latencies of one file, in milliseconds."""

    file: str
    p50: float
    p90: float
    p99: float
    mean: float
    calls: int
    load: float
    threads: int | None
    sizes: dict[str, int]

    def data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


class _Candidate:
    """A file that is timed, with what it is run on."""

    def __init__(self, path: Path, target: str | None, threads: int | None, options: Mapping[str, Any] | None) -> None:
        start = time.perf_counter()
        self.path = path
        self.program: Opened = _opened(path, target, threads, options)
        self.load = time.perf_counter() - start
        self.tensors: list[torch.Tensor] = []
        self.sizes: dict[str, int] = {}
        self.seconds: list[float] = []

    def call(self) -> float:
        """One call, timed."""
        start = time.perf_counter()
        self.program(*self.tensors)
        return time.perf_counter() - start

    def turn(self, runs: int) -> None:
        """Calls for a tenth of a second, one at least, `runs` in all at most."""
        end = time.perf_counter() + _TURN
        while len(self.seconds) < runs:
            self.seconds.append(self.call())
            if time.perf_counter() >= end:
                return

    def timing(self) -> Timing:
        """What came out."""
        found = (*np.percentile(self.seconds, [50, 90, 99]), np.mean(self.seconds), self.load)
        p50, p90, p99, mean, load = (round(float(t) * 1e3, 4) for t in found)
        return Timing(str(self.path), p50, p90, p99, mean, len(self.seconds), load, self.program.threads, self.sizes)


def bench(
    paths: Sequence[Path],
    inputs: Sequence[str],
    sizes: Sequence[str],
    target: str | None,
    threads: int | None,
    seed: int,
    warm_up: int,
    runs: int,
    options: Mapping[str, Any] | None = None,
) -> list[Timing]:
    """Time files in turns, so that what else the machine does falls on all of them alike."""
    candidates = [_Candidate(path, target, threads, options) for path in paths]
    _fit(candidates, arrays.given(inputs), arrays.sizes(sizes), seed)
    for c in candidates:
        for _ in range(warm_up):
            c.call()
    while any(len(c.seconds) < runs for c in candidates):
        for c in candidates:
            c.turn(runs)
    return [c.timing() for c in candidates]


def _fit(candidates: Sequence[_Candidate], values: Mapping[str, Any], chosen: Mapping[str, int], seed: int) -> None:
    """The same tensors for all: those of the first file that knows the chosen sizes by name; not every .pt2 does."""
    knowing = (c for c in candidates if chosen.keys() <= {*symbols_of(c.program.inputs)})
    lead = next(knowing, candidates[0])
    lead.tensors, lead.sizes = arrays.fitting(lead.program, values, chosen, seed)
    made = dict(zip([p.name for p in lead.program.inputs], lead.tensors, strict=True))
    for c in candidates:
        if c is not lead:
            same = {p.name for p in c.program.inputs} == made.keys()
            c.tensors, c.sizes = arrays.fitting(c.program, made if same else values, {} if same else chosen, seed)
