"""The eager program on a GPU: `python -m benchmarks.eager_cuda --write` writes eager_cuda.md.

ExTorch's own list of models, batch 1, one call after the other with the GPU awaited behind each. Ratios are to
`ExportedProgram.module()` on the same device, above 1 where the other is faster; beside it torch.compile in its mode
reduce-overhead, which records CUDA graphs as `Program.capture` does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

import ir
from benchmarks.eager import geometric_mean
from benchmarks.eager_turns import compare, timed
from eager_backend import Eager
from tests import zoo

MODELS = (
    "clip_vision", "distilbert", "mobilenet_v3_small", "efficientnet_b0", "resnet50", "vit_b_16",
    "deeplabv3_mobilenet_v3_large", "whisper_encoder",
)  # fmt: skip
PAGE = Path(__file__).parent / "eager_cuda.md"
THEIRS, OURS, GRAPH, COMPILED = "ep.module()", "ours", "ours as CUDA graph", "torch.compile reduce-overhead"


@dataclass(frozen=True)
class Row:
    """One model: milliseconds a call by contender, how much faster than torch's module, seconds to make."""

    name: str
    milliseconds: dict[str, float]
    ratios: dict[str, float]
    seconds: dict[str, float]
    error: float


def rows(names: list[str], device: str, dtype: torch.dtype | None, small: bool, seconds: float) -> Iterator[Row]:
    """Measure models one by one, each in its own process: a kernel that fails ends the use of the GPU in its process.

    A contender that does not take a model is left out, and said.
    """
    context = multiprocessing.get_context("spawn")
    for name in names:
        for others in ((OURS, GRAPH, COMPILED), (OURS, GRAPH)):
            with ProcessPoolExecutor(1, context) as child:
                try:
                    yield child.submit(_row, name, device, dtype, small, seconds, others).result()
                    break
                except RuntimeError as error:  # torch.compile's kernels, or ours
                    print(f"{name}, with {others[-1]}: {str(error).splitlines()[0]}", file=sys.stderr)


def _row(
    name: str, device: str, dtype: torch.dtype | None, small: bool, seconds: float, others: tuple[str, ...]
) -> Row:
    warnings.simplefilter("ignore")
    model = zoo.get(name, small=small)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    captured: Any = graph.context.program  # type: ignore[union-attr]
    given = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), model.inputs(model.sizes | {"batch": 1}))
    theirs = move_to_device_pass(captured, device).module(check_guards=False)
    if dtype is not None:
        theirs = theirs.to(dtype)
        given = pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, given)
    flat = graph.structure.flatten(*given)
    program, took = timed(lambda: ir.export(graph, target=Eager(device=device, dtype=dtype)), time.perf_counter)
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        OURS: lambda: lambda: program.artifact(*flat),
        GRAPH: lambda: _bound(program.artifact.capture(*flat), flat),
        COMPILED: lambda: _compiled(theirs, given),
    }
    calls: dict[str, Callable[[], Any]] = {THEIRS: lambda: theirs(*given[0], **given[1])}
    made = {}
    with torch.inference_mode():
        for contender in others:
            make = makers[contender]
            try:
                calls[contender], made[contender] = timed(make, time.perf_counter)
                calls[contender]()
            except Exception as error:
                calls.pop(contender, None)
                print(f"{name}: no {contender}: {str(error).splitlines()[0]}", file=sys.stderr)
        expected = [t for t in pytree.tree_leaves(calls[THEIRS]()) if isinstance(t, torch.Tensor)]
        error = max(_error(a, e) for a, e in zip(calls[OURS](), expected, strict=True))
        wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
        timings, slower = compare({n: _awaited(c, wait) for n, c in calls.items()}, seconds, time.perf_counter)
    ratios = {n: 1 / r for n, r in slower.items()}  # `compare` gives each one's time over the first's
    return Row(name, {n: t * 1e3 for n, t in timings.items()}, ratios, {**made, OURS: took}, error)


def _bound(call: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    return lambda: call(*inputs)


def _awaited(call: Callable[[], Any], wait: Callable[[], Any]) -> Callable[[], Any]:
    def awaited() -> None:
        call()
        wait()

    return awaited


def _compiled(module: Any, given: Any) -> Callable[[], Any]:
    """torch.compile for the very sizes that are measured; two calls compile, the third replays."""
    torch._dynamo.reset()
    fn = torch.compile(module, mode="reduce-overhead", dynamic=False)
    for _ in range(3):
        fn(*given[0], **given[1])
    return lambda: fn(*given[0], **given[1])


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest value."""
    scale = float(expected.double().abs().max())
    return float((actual.double() - expected.double()).abs().max()) / scale if scale else 0.0


def table(measured: list[Row]) -> str:
    """The rows as Markdown, the geometric means last."""
    others = (OURS, GRAPH, COMPILED)
    head = ["model", f"{THEIRS} ms", *(f"{o} ms | ratio" for o in others), "load s", "largest difference / scale"]
    lines = [f"| {' | '.join(head)} |", "|---" * " | ".join(head).count("|") + "|---|"]
    for r in measured:
        cells = [r.name, f"{r.milliseconds[THEIRS]:.3f}"]
        cells += [f"{r.milliseconds[o]:.3f} | **{r.ratios[o]:.2f}**" if o in r.ratios else "- | -" for o in others]
        lines.append(f"| {' | '.join([*cells, f'{r.seconds[OURS]:.2f}', f'{r.error:.1g}'])} |")
    means = [[r.ratios[o] for r in measured if o in r.ratios] for o in others]
    cells = [f"| **{geometric_mean(m):.2f}**" if m else "| -" for m in means]
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(cells)} | | |"])


_BOUND = 5e-2  # of the largest value: convolutions round to TF32, by other algorithms of cuDNN's
_NEAR = 0.95


def verdicts(row: Row) -> Iterator[tuple[bool, str]]:
    """What a model must show on a GPU: whether it holds, and the line that says so."""
    ours, graph, compiled = (row.ratios.get(o) for o in (OURS, GRAPH, COMPILED))
    checks = [(f"results differ by {row.error:.1g} of the largest, at most {_BOUND}", row.error <= _BOUND)]
    if ours is not None:
        checks.append((f"{ours:.2f} times as fast as {THEIRS}, at least 1", ours >= 1))
    if graph is None:
        checks.append(("not recorded as a CUDA graph", False))
    elif ours is not None:
        checks.append((f"as a CUDA graph {graph:.2f}, at least the program's {ours:.2f}", graph >= _NEAR * ours))
    if graph is not None and compiled is not None:
        checks.append((f"as a CUDA graph {graph:.2f}, torch.compile {compiled:.2f}", graph >= _NEAR * compiled))
    for text, holds in checks:
        yield holds, f"{'holds' if holds else 'FAILS'}  {row.name}: {text}"


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of the zoo; by default those of the table")
    parser.add_argument("--device", default="cuda", help="cpu tries the command out: no CUDA graphs, nothing written")
    parser.add_argument("--dtype", help="float16, say; by default what the models have")
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measurement a model")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    o = parser.parse_args()
    if o.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no GPU: nothing to measure; --device cpu --small tries the command out")
        return 1
    dtype = getattr(torch, o.dtype) if o.dtype else None
    measured = list(rows(o.names or list(MODELS), o.device, dtype, o.small, o.seconds))
    text = table(measured)
    print(text)
    found = [v for row in measured for v in verdicts(row)] if o.device.startswith("cuda") else []
    for _, line in found:
        print(line)
    if o.write and o.device.startswith("cuda"):
        where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {dtype or 'float32'}"
        PAGE.write_text(f"# The eager program on a GPU\n\n{__doc__.partition(chr(10) * 2)[2]}\n{where}.\n\n{text}\n")
    return int(not all(holds for holds, _ in found))


if __name__ == "__main__":
    sys.exit(main())
