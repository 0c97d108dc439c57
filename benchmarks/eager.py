"""Run time of the eager target beside torch and others: `python -m benchmarks.eager [names...] [--compile] [--write]`.

One CPU thread, inference mode. All contenders run in turns, so that what else the machine does strikes each of them; a
ratio is the median of the ratios of neighbouring runs, above 1 where the eager program is faster. Loading is measured
from a .pt2 file, against torch.export.load of the same file.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests import zoo

# those of the issue on NNEF, by their names in the zoo
MODELS = (
    "resnet50", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16", "swin_t", "convnext_tiny", "densenet121",
    "squeezenet1_1", "shufflenet_v2_x1_0", "deeplabv3_mobilenet_v3_large", "bert", "distilbert", "gpt2", "llama",
    "t5_encoder", "whisper_encoder", "clip_vision", "wav2vec2", "mobilevit_s", "maxvit_nano_rw_256", "lstm",
)  # fmt: skip
PAGE = Path(__file__).parent / "eager.md"
THEIRS, COMPILED, ORT = "ep.module()", "torch.compile", "onnxruntime"


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


@dataclass(frozen=True)
class Row:
    """One subject: milliseconds a call and seconds to make by contender, ours "" among them; ratios to ours."""

    name: str
    milliseconds: Mapping[str, float]
    ratios: Mapping[str, float]
    seconds: Mapping[str, float]
    error: float


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


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds that it took."""
    start = time.perf_counter()
    result = make()
    return result, time.perf_counter() - start


def loading(s: Subject, target: Eager, repeats: int = 2) -> tuple[Any, float, float]:
    """Our program out of a .pt2 file, its seconds and those of torch.export.load, the least of a few turns each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        torch.export.save(s.program, path)
        ours, theirs = [], []
        for _ in range(repeats):
            theirs.append(timed(lambda: torch.export.load(path))[1])
            program, took = timed(lambda: ir.export(path, target=target))
            ours.append(took)
    return program, min(ours), min(theirs)


# -- measuring ---------------------------------------------------------------------------------------------------------


def compare(calls: Mapping[str, Call], seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each, and the medians of their ratios to the first."""
    first = next(iter(calls))
    for call in calls.values():
        for _ in range(3):
            call()
    # of short programs several calls a turn
    repeats = {n: max(1, round(0.002 / timed(call)[1])) for n, call in calls.items()}
    times: dict[str, list[float]] = {n: [] for n in calls}
    end = time.perf_counter() + seconds * len(calls) / 2
    while time.perf_counter() < end or len(times[first]) < 7:
        order = list(calls) if len(times[first]) % 2 else list(reversed(calls))
        for name in order:
            call, count = calls[name], repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - start) / count)
    ratios = {
        n: statistics.median(t / o for t, o in zip(times[n], times[first], strict=True)) for n in calls if n != first
    }
    return {n: statistics.median(t) for n, t in times.items()}, ratios


def rows(
    names: list[str], target: Eager, *, small: bool = False, beside: tuple[str, ...] = (), seconds: float = 4.0
) -> Iterator[Row]:
    """Measure subjects one by one, on one thread."""
    torch.set_num_threads(1)
    makers = {COMPILED: compiled, ORT: onnxruntime}
    for name in names:
        s = subject(name, small)
        program, load, torchs = loading(s, target)
        module = s.program.module(check_guards=False)
        took = {"": load, THEIRS: torchs}
        calls: dict[str, Call] = {
            "": lambda p=program, s=s: p(*s.args, **s.kwargs),  # type: ignore[misc]
            THEIRS: lambda m=module, s=s: m(*s.args, **s.kwargs),  # type: ignore[misc]
        }
        for other in beside:
            try:
                calls[other], took[other] = timed(lambda o=other, s=s: makers[o](s))  # type: ignore[misc]
            except Exception as error:
                print(f"{name}: {other} does not take it: {str(error).splitlines()[0]}")
        with torch.inference_mode():
            expected, actual = (pytree.tree_leaves(calls[n]()) for n in (THEIRS, ""))
            error_ = max(_error(a, e) for a, e in zip(actual, expected, strict=True))
            medians, ratios = compare(calls, seconds)
        yield Row(name, {n: t * 1e3 for n, t in medians.items()}, ratios, took, error_)


def _error(actual: Any, expected: Any) -> float:
    """The largest difference over the largest value; integers must agree."""
    if not isinstance(expected, Tensor) or not expected.is_floating_point():
        return 0.0 if torch.equal(torch.as_tensor(actual), torch.as_tensor(expected)) else math.inf
    return float((actual - expected).abs().max() / expected.abs().max())


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


# -- tables ------------------------------------------------------------------------------------------------------------


def table(
    names: list[str] | None = None, *, beside: tuple[str, ...] = (ORT,), seconds: float = 4.0, small: bool = False
) -> str:
    """The chain and the models at full size, as Markdown."""
    threads = torch.get_num_threads()
    measured = []
    for row in rows(names or ["chain", *MODELS], Eager(), small=small, beside=beside, seconds=seconds):
        measured.append(row)
        print(row, file=sys.stderr, flush=True)  # a long run shows how far it is
    torch.set_num_threads(threads)
    others = (THEIRS, *beside)
    head = ["subject", "ours ms", *(f"{o} ms | ratio" for o in others)]
    head += ["load s", "torch.export.load s", *(f"{o} s to make" for o in beside), "largest difference / scale"]
    lines = [f"| {' | '.join(head)} |", "|---" * " | ".join(head).count("|") + "|---|"]
    for r in measured:
        cells = [r.name, f"{r.milliseconds['']:.3f}"]
        cells += [f"{r.milliseconds[o]:.3f} | **{r.ratios[o]:.2f}**" if o in r.ratios else "- | -" for o in others]
        cells += [f"{r.seconds['']:.2f}", f"{r.seconds[THEIRS]:.2f}"]
        cells += [f"{r.seconds[o]:.1f}" if o in r.seconds else "-" for o in beside]
        lines.append(f"| {' | '.join([*cells, f'{r.error:.1g}'])} |")
    means = [f"| **{geometric_mean([r.ratios[o] for r in measured if o in r.ratios]):.2f}**" for o in others]
    lines.append(f"| geometric mean | | {' | '.join(means)} " + "| " * (4 + len(beside)))
    return "\n".join(lines)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="chain and names of the zoo; by default those of the table")
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--compile", action="store_true", help="torch.compile with freezing beside (minutes)")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--passes", help="names of passes, separated by commas; none for optimize=False")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measurement a subject")
    options = parser.parse_args()
    names = options.names or ["chain", *MODELS]
    if options.write:
        beside = (*((COMPILED,) if options.compile else ()), ORT)
        text = table(names, beside=beside, seconds=options.seconds, small=options.small)
        PAGE.write_text(f"# The eager program\n\n{__doc__.partition(chr(10) * 2)[2]}\n{text}\n")
        print(text)
        return
    wanted = True if options.passes is None else [p for p in options.passes.split(",") if p]
    beside = (COMPILED, ORT) if options.compile else ()
    print(f"{'subject':24}{'ours ms':>10}{'module ms':>11}{'ratio':>8}{'load s':>8}{'torch s':>8}{'error':>10}")
    ratios = []
    for r in rows(names, Eager(optimize=wanted), small=options.small, beside=beside, seconds=options.seconds):
        ms, ratio = r.milliseconds, r.ratios[THEIRS]
        ratios.append(ratio)
        load, others = r.seconds, "  ".join(f"{o} {r.ratios[o]:.2f}" for o in beside if o in r.ratios)
        print(f"{r.name:24}{ms['']:10.3f}{ms[THEIRS]:11.3f}{ratio:8.3f}{load['']:8.2f}{load[THEIRS]:8.2f}"
              f"{r.error:10.2g}  {others}", flush=True)  # fmt: skip
    print(f"{'geometric mean':24}{'':21}{geometric_mean(ratios):8.3f}")


if __name__ == "__main__":
    main()
