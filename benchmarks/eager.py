"""Run time of the eager target against `ExportedProgram.module()`: `python -m benchmarks.eager [names...] [--small]`.

One CPU thread, inference mode. The two run in turns, so that what else the machine does strikes both; a figure is the
median of the ratios of neighbouring runs, above 1 where the eager program is faster.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests import zoo


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


def subjects(names: list[str], small: bool) -> Iterator[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any], Any]]:
    """Name, model, arguments and dynamic shapes of each subject."""
    for name in names:
        if name == "chain":
            yield name, Chain().eval(), (torch.randn(16, 16), torch.randn(16, 16)), {}, None
        else:
            model = zoo.get(name, small=small)
            yield name, model.build(), *model.inputs(model.sizes), model.dynamic_shapes


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> tuple[float, float, float]:
    """Median seconds of each, and the median of their ratios."""
    for _ in range(3):
        ours()
        theirs()
    mine: list[float] = []
    other: list[float] = []
    end = time.perf_counter() + seconds
    start = time.perf_counter()
    ours()
    repeats = max(1, round(0.002 / (time.perf_counter() - start)))  # of short programs several calls a turn
    while time.perf_counter() < end or len(mine) < 7:
        for fn, times in ((ours, mine), (theirs, other)) if len(mine) % 2 else ((theirs, other), (ours, mine)):
            start = time.perf_counter()
            for _ in range(repeats):
                fn()
            times.append((time.perf_counter() - start) / repeats)
    return (
        statistics.median(mine),
        statistics.median(other),
        statistics.median(b / a for a, b in zip(mine, other, strict=True)),
    )


@dataclass(frozen=True)
class Row:
    """One subject: milliseconds of both, the ratio, seconds to lower the graph, the largest difference."""

    name: str
    ours: float
    theirs: float
    ratio: float
    lower: float
    error: float


def rows(names: list[str], *, small: bool = False, optimize: bool = True, seconds: float = 4.0) -> Iterator[Row]:
    """Measure subjects one by one, on one thread."""
    torch.set_num_threads(1)
    for name, model, args, kwargs, shapes in subjects(names, small):
        graph = ir.capture(model, args, kwargs, dynamic_shapes=shapes)
        module = graph.context.program.module(check_guards=False)
        start = time.perf_counter()
        program = ir.export(graph, target=Eager(optimize=optimize))
        took = time.perf_counter() - start
        with torch.inference_mode():
            expected, actual = (pytree.tree_leaves(f(*args, **kwargs)) for f in (module, program))
            error = max(float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True) if _is_float(e))
            mine, theirs, ratio = compare(
                lambda p=program, a=args, k=kwargs: p(*a, **k),
                lambda m=module, a=args, k=kwargs: m(*a, **k),
                seconds,
            )
        yield Row(name, mine * 1e3, theirs * 1e3, ratio, took, error)


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def table(names: list[str] | None = None, seconds: float = 4.0) -> str:
    """The chain and the first models at full size, as Markdown."""
    threads = torch.get_num_threads()
    measured = list(rows(names or ["chain", *zoo.FIRST], seconds=seconds))
    torch.set_num_threads(threads)
    lines = ["| subject | ours ms | ep.module() ms | ratio | largest difference |", "|---|---|---|---|---|"]
    lines += [f"| {r.name} | {r.ours:.3f} | {r.theirs:.3f} | **{r.ratio:.2f}** | {r.error:.1g} |" for r in measured]
    return "\n".join([*lines, f"| geometric mean | | | **{geometric_mean([r.ratio for r in measured]):.2f}** | |"])


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="chain and names of the zoo; all by default")
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--plain", action="store_true", help="optimize=False")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measurement a subject")
    options = parser.parse_args()
    ratios = []
    print(f"{'subject':24}{'ours ms':>10}{'module ms':>11}{'ratio':>8}{'lower s':>9}{'error':>10}")
    names = options.names or ["chain", *zoo.NAMES]
    for r in rows(names, small=options.small, optimize=not options.plain, seconds=options.seconds):
        ratios.append(r.ratio)
        print(f"{r.name:24}{r.ours:10.3f}{r.theirs:11.3f}{r.ratio:8.3f}{r.lower:9.2f}{r.error:10.2g}", flush=True)
    print(f"{'geometric mean':24}{'':21}{geometric_mean(ratios):8.3f}")


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


if __name__ == "__main__":
    main()
