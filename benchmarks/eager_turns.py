"""One subject of the eager benchmark, in a process of its own: the contenders, and how they are measured.

`python -m benchmarks.eager_turns NAME FILE` writes the row to FILE as JSON. All contenders run in turns, on one thread,
in inference mode, and are timed by the processor's clock, which does not count what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests import zoo

THEIRS, COMPILED, ORT = "ep.module()", "torch.compile", "onnxruntime"
WITHOUT = "without {}"  # a contender: our program with this pass switched off


class Chain(nn.Module):
    """Forty small operators in a row: nothing but the cost of calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.add(x, y)
            x = torch.relu(x)
            x = self.linear(x)
            x = x.view(4, 64).view(16, 16)
            x = x * y
        return x


Call = Callable[[], Any]


@dataclass(frozen=True)
class Subject:
    """What one row is about."""

    name: str
    graph: ir.Graph
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def program(self) -> torch.export.ExportedProgram:
        found: torch.export.ExportedProgram = self.graph.context.program  # type: ignore[union-attr]
        return found


@dataclass
class Row:
    """One subject.

    Attributes:
        milliseconds: of a call by contender, ours "" among them.
        ratios: of each contender's time to ours.
        seconds: to load or make by contender.
        error: the largest difference to torch's results over the largest of these.
        failures: why a contender is missing.
    """

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: float = math.nan
    failures: dict[str, str] = field(default_factory=dict)


# -- contenders --------------------------------------------------------------------------------------------------------


def subject(name: str, small: bool) -> Subject:
    """A model captured with dynamic dimensions, as it would be served."""
    if name == "chain":
        args = torch.randn(16, 16), torch.randn(16, 16)
        return Subject(name, ir.capture(Chain().eval(), args), args, {})
    model = zoo.get(name, small=small)
    args, kwargs = model.inputs(model.sizes)
    return Subject(name, ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes), args, kwargs)


def compiled(s: Subject) -> Call:
    """torch.compile with weights frozen, for the very sizes that are measured; the first call compiles."""
    import torch._inductor.config as inductor

    inductor.freezing, inductor.force_disable_caches = True, True
    torch._dynamo.reset()
    fn = torch.compile(s.program.module(check_guards=False), dynamic=False)
    with torch.no_grad():  # freezing asks for it
        fn(*s.args, **s.kwargs)

    def call() -> Any:
        with torch.no_grad():
            return fn(*s.args, **s.kwargs)

    return call


def onnxruntime(s: Subject) -> Call:
    """The onnx backend's file in a session of one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.export(s.graph, target="onnx", path=path)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    structure: Any = s.graph.structure
    known = {i.name for i in session.get_inputs()}
    inputs = zip(structure.input_names, structure.flatten(s.args, s.kwargs), strict=True)
    feeds = {n: t.numpy() for n, t in inputs if n in known}
    return lambda: session.run(None, feeds)


def without(s: Subject, target: Eager, name: str) -> Call:
    """Our program with all of the target's passes but one."""
    program = ir.export(s.graph, target=Eager(optimize=[p for p in target.chosen if p != name]))
    return lambda: program(*s.args, **s.kwargs)


def timed(make: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    """The result and the seconds that it took."""
    start = clock()
    result = make()
    return result, clock() - start


def loading(s: Subject, target: Eager, repeats: int = 3) -> tuple[float, float]:
    """Seconds of our program out of a .pt2 file and of torch.export.load, the least of a few turns each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        torch.export.save(s.program, path)
        ours, theirs = [], []
        for _ in range(repeats):
            theirs.append(timed(lambda: torch.export.load(path))[1])
            ours.append(timed(lambda: ir.export(path, target=target))[1])
    return min(ours), min(theirs)


# -- measuring ---------------------------------------------------------------------------------------------------------


def compare(
    calls: Mapping[str, Call], seconds: float, clock: Callable[[], float] = time.process_time
) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each, and the medians of their ratios to the first in the same turn."""
    first = next(iter(calls))
    for call in calls.values():
        for _ in range(3):
            call()
    # of short programs several calls a turn
    repeats = {n: max(1, round(0.002 / max(timed(call, clock)[1], 1e-6))) for n, call in calls.items()}
    times: dict[str, list[float]] = {n: [] for n in calls}
    end = clock() + seconds * len(calls) / 2
    while clock() < end or len(times[first]) < 7:
        order = list(calls) if len(times[first]) % 2 else list(reversed(calls))
        for name in order:
            call, count = calls[name], repeats[name]
            start = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - start) / count)
    ratios = {
        n: statistics.median(t / o for t, o in zip(times[n], times[first], strict=True)) for n in calls if n != first
    }
    return {n: statistics.median(t) for n, t in times.items()}, ratios


def measure(
    name: str,
    target: Eager,
    *,
    small: bool = False,
    beside: Sequence[str] = (),
    off: Collection[str] = (),
    seconds: float = 4.0,
) -> Row:
    """One row: ours, ep.module(), the contenders `beside`, and our program without each of the passes `off`.

    ep.module() is measured without its guards on the inputs' sizes: with them it is slower.
    """
    torch.set_num_threads(1)
    s, row = subject(name, small), Row(name)
    row.seconds[""], row.seconds[THEIRS] = loading(s, target)
    # of the same weights as the others: a program with weights of its own finds them out of the cache in its turn
    program = ir.export(s.graph, target=target)
    module = s.program.module(check_guards=False)
    calls: dict[str, Call] = {"": lambda: program(*s.args, **s.kwargs), THEIRS: lambda: module(*s.args, **s.kwargs)}
    makers: dict[str, Callable[[Subject], Call]] = {COMPILED: compiled, ORT: onnxruntime}
    makers |= {WITHOUT.format(p): lambda s, p=p: without(s, target, p) for p in off}  # type: ignore[misc]
    for other in (*beside, *(WITHOUT.format(p) for p in off)):
        try:  # compilers work in processes of their own, which the processor's clock of this one does not see
            calls[other], row.seconds[other] = timed(lambda o=other: makers[o](s), time.perf_counter)  # type: ignore[misc]
        except Exception as error:
            row.failures[other] = (str(error).splitlines() or [type(error).__name__])[0]
    with torch.inference_mode():
        expected, actual = (pytree.tree_leaves(calls[n]()) for n in (THEIRS, ""))
        row.error = max(_error(a, e) for a, e in zip(actual, expected, strict=True))
        medians, row.ratios = compare(calls, seconds)
    row.milliseconds = {n: t * 1e3 for n, t in medians.items()}
    return row


def _error(actual: Any, expected: Any) -> float:
    """The largest difference over the largest value; integers must agree."""
    if not isinstance(expected, Tensor) or not expected.is_floating_point():
        return 0.0 if torch.equal(torch.as_tensor(actual), torch.as_tensor(expected)) else math.inf
    return float((actual - expected).abs().max() / expected.abs().max())


def arguments() -> argparse.ArgumentParser:
    """What says how a subject is measured; the same for one row as for the table."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--compile", action="store_true", help="torch.compile with freezing beside (minutes)")
    parser.add_argument("--alone", action="store_true", help="nothing beside but ep.module()")
    parser.add_argument("--passes", action="store_true", help="our program with each pass switched off in turn beside")
    parser.add_argument("--optimize", help="names of passes, separated by commas; empty for optimize=False")
    parser.add_argument("--autotune", action="store_true", help="our program with the passes that pay on this machine")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measurement a subject")
    return parser


def contenders(options: argparse.Namespace) -> tuple[str, ...]:
    """Those beside ours and ep.module()."""
    return () if options.alone or options.passes else (*([COMPILED] if options.compile else []), ORT)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, parents=[arguments()])
    parser.add_argument("name", help="chain, or a name of the zoo")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    wanted = True if options.optimize is None else [p for p in options.optimize.split(",") if p]
    target = Eager(optimize=wanted, autotune=options.autotune)
    row = measure(
        options.name,
        target,
        small=options.small,
        beside=contenders(options),
        off=target.chosen if options.passes else (),
        seconds=options.seconds,
    )
    options.file.write_text(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
