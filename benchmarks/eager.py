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
from typing import Any

import ir
import torch
from eager_backend import Eager
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="chain and names of the zoo; all by default")
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--plain", action="store_true", help="optimize=False")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measurement a subject")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    print(f"{'subject':24}{'ours ms':>10}{'module ms':>11}{'ratio':>8}{'lower s':>9}{'error':>10}")
    for name, model, args, kwargs, shapes in subjects(options.names or ["chain", *zoo.NAMES], options.small):
        graph = ir.capture(model, args, kwargs, dynamic_shapes=shapes)
        module = graph.context.program.module(check_guards=False)
        start = time.perf_counter()
        program = ir.export(graph, target=Eager(optimize=not options.plain))
        took = time.perf_counter() - start
        with torch.inference_mode():
            expected, actual = (pytree.tree_leaves(f(*args, **kwargs)) for f in (module, program))
            error = max(float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True) if _is_float(e))
            mine, theirs, ratio = compare(
                lambda p=program, a=args, k=kwargs: p(*a, **k),
                lambda m=module, a=args, k=kwargs: m(*a, **k),
                options.seconds,
            )
        ratios.append(ratio)
        print(f"{name:24}{mine * 1e3:10.3f}{theirs * 1e3:11.3f}{ratio:8.3f}{took:9.2f}{error:10.2g}", flush=True)
    print(f"{'geometric mean':24}{'':21}{math.exp(statistics.fmean(map(math.log, ratios))):8.3f}")


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


if __name__ == "__main__":
    main()
