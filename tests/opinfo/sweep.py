"""One sweep over the database: which sample, how it is exported, how it ends. Each case runs in a child process."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import ir
from ir.dims import Expr
from ir.importer import calling_convention as st
from tests.opinfo import samples as s
from tests.opinfo.compare import difference, in_wider_type, results_of
from tests.pool import pool

SECONDS = 60
WORST = ("wrong", "failed", "refused", "one size", "fixed", "pass", "excluded")  # of several samples, the entry's
BY_WIDER = "by the wider type"  # the detail of a pass whose result equals torch's in the next wider type alone


@dataclass(frozen=True)
class Sweep:
    """What a sweep takes of each entry; dtype None: float32, else the first that the entry takes."""

    target: str = "onnx"
    dtype: str | None = None
    samples: str = "first"  # largest or all of the first few
    dynamic: bool = False

    @property
    def title(self) -> str:
        parts = [
            self.dtype or "float32 (else the first dtype)",
            f"{self.samples} sample{'s' * (self.samples == 'all')}",
        ]
        return ", ".join([*parts, *(["first dimension dynamic"] if self.dynamic else [])])


def outcome(name: str, op: Any, sweep: Sweep) -> tuple[str, str]:
    """(status, detail).

    pass, BY_WIDER where that decided it; wrong; failed; refused, with the reason; excluded: nothing to compare with.
    In dynamic sweeps also fixed: torch.export lets no first dimension vary, and one size: no other size that torch
    takes was found; right as traced.
    """
    dtype = getattr(torch, sweep.dtype) if sweep.dtype else s.first_dtype(op)
    if dtype is None or dtype not in op.supported_dtypes("cpu"):
        return "excluded", f"no {sweep.dtype or 'dtype'} on the CPU"
    try:
        varying = sweep.dynamic and sweep.samples == "first"
        found = s.samples_of(op, dtype, "varying" if varying else sweep.samples)
    except Exception as error:
        return "excluded", f"its samples: {type(error).__name__}"
    ends = [_sample_outcome(name, sample, sweep) for sample in found]
    return min(ends, key=lambda end: (WORST.index(end[0]), not end[1]), default=("excluded", "no sample"))


def _sample_outcome(name: str, sample: s.Sample, sweep: Sweep) -> tuple[str, str]:
    try:
        results_of(sample, sample.inputs())
    except Exception as error:
        return "excluded", f"eager: {type(error).__name__}"
    try:
        return _export_and_compare(name, sample, sweep)
    except (ir.UnsupportedOpsError, ir.RefusedError, ir.CaptureError) as error:
        return "refused", _reason(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


def _export_and_compare(name: str, sample: s.Sample, sweep: Sweep) -> tuple[str, str]:
    traced = sample.inputs()
    shapes = s.dynamic_shapes(traced) if sweep.dynamic else None
    torch.manual_seed(0)
    graph = ir.capture(sample, traced, dynamic_shapes=shapes)
    if sweep.dynamic and not any(isinstance(d, Expr) for v in graph.inputs for d in v.type.shape):
        return "fixed", ""
    program = ir.export(graph, target=sweep.target)
    status, detail = _compared(name, program, sample, traced)
    if status == "wrong" or not sweep.dynamic:
        return status, detail
    other = next(s.other_sizes(graph, sample), None)
    if other is None:
        return "one size", ""
    status, again = _compared(name, program, sample, other)
    return (status, f"at {[list(t.shape) for t in other]}: {again}") if status == "wrong" else (status, detail or again)


def _compared(name: str, program: ir.Exported, sample: s.Sample, inputs: Sequence[torch.Tensor]) -> tuple[str, str]:
    """Run the artifact and the operator: wrong and what differs, or pass and by what."""
    graph, structure = program.graph, program.graph.structure
    runner = getattr(program.runner, "stateless", program.runner)
    actual = runner(*(t.clone() for t in inputs))

    def flat(results: Sequence[Any], after: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The operator's results in the order of the graph's, new contents of mutated inputs at the end."""
        kept = [r for r, kind in zip(results, structure.outputs, strict=True) if not isinstance(kind, st.Fixed)]
        mutated = dict(zip(structure.input_names, after, strict=True))
        values = [*kept, *(mutated[n] for n in graph.updates)]
        return [v if isinstance(v, torch.Tensor) else _tensor(v) for v in values]

    expected = flat(*results_of(sample, inputs))
    values = not graph.random and "empty" not in name  # an empty tensor holds whatever the memory held
    names = list(graph.results)
    wrong = difference(name, sample, inputs, names, actual, expected, None, values)
    wide = in_wider_type(sample, inputs) if wrong else None
    if wide is None:
        return ("wrong", wrong) if wrong else ("pass", "")
    wrong = difference(name, sample, inputs, names, actual, expected, flat(*wide), values)
    return ("wrong", wrong) if wrong else ("pass", BY_WIDER)


def _tensor(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _reason(error: ir.ExportError) -> str:
    """The error without the places in files, which are the sweep's own."""
    if isinstance(error, ir.UnsupportedOpsError):
        ops = ", ".join(m.op for m in error.missing)
        why = "; ".join(" ".join(m.why.split()) for m in error.missing if m.why)
        return f"neither handler nor body; register one: {ops}{f' ({why})' if why else ''}"[:300]
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("at "))[:300]


# -- child processes ---------------------------------------------------------------------------------------------------


def run(sweep: Sweep, names: Iterable[str], ray: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(name, status, detail) of each entry; what hangs or kills its process is recorded, and the rest goes on."""
    for name, (status, detail) in pool(partial(Worker, sweep), names, ray=ray):
        yield name, status, detail


class Worker:
    """A process that runs cases one by one, and another one after it has ended."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.process: Any = None

    def ask(self, name: str) -> tuple[str, str]:
        """(status, detail)."""
        if self.process is None or not self.process.is_alive():
            self._start()
        self.pipe.send(name)
        try:
            if self.pipe.poll(SECONDS):
                return self.pipe.recv()
        except EOFError:
            self.process.join()
            return "failed", f"the process ended with {self.process.exitcode}"
        self.close()
        return "failed", f"more than {SECONDS} s"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.sweep), daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()  # the database is loaded

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()


def _serve(pipe: Any, sweep: Sweep) -> None:
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime's log; what it says stands in its exceptions too
    database = {s.name_of(op): op for op in s.database()}
    pipe.send("ready")
    while True:
        name = pipe.recv()
        pipe.send(outcome(name, database[name], sweep))
