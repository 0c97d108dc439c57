"""How export grows with the number of nodes: `python -m benchmarks.scaling [--nodes 1000,5000,20000,50000] [--write]`.

Each graph is captured from one ExportedProgram and exported to each target in this process, without a file, after one
small export that does not count; the seconds are processor time, the smaller of two. The exponent between two sizes is
the logarithm of the ratio of times over that of nodes: 1 is linear.
"""

from __future__ import annotations

import argparse
import functools
import math
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ir

PAGE = Path(__file__).parent / "scaling.md"
TARGETS = ("onnx", "nnef", "eager")
LAYERS = [32 * layers for layers in (25, 50, 100, 200)]
MOST = 1.15  # what an exponent may be


class Chain(nn.Module):
    """One operation behind the other."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.steps = nodes // 2

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.sin(x) + 0.5
        return x


class Fan(nn.Module):
    """One value that every branch reads, and their sum."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.branches = nodes // 3

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for branch in [torch.sin(x + 0.5) for _ in range(self.branches)]:
            total = total + branch
        return total


class Layers(nn.Module):
    """Transformer encoder layers of 32 nodes."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, max(nodes // 32, 1), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


KINDS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "chain": (Chain, (4, 8)),
    "fan-out": (Fan, (4, 8)),
    "transformer layers": (Layers, (1, 6, 16)),
}


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of the faster of two runs."""
    times = []
    for _ in range(2):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def measure(kind: str, nodes: int) -> dict[str, float]:
    """Seconds of capture and of each target, and the graph's number of nodes."""
    make, shape = KINDS[kind]
    program = torch.export.export(make(nodes).eval(), (torch.randn(shape),))
    graph = ir.capture(program)
    found = {"nodes": float(len(graph.nodes)), "capture": seconds(lambda: ir.capture(program))}
    for target in TARGETS:
        found[target] = seconds(functools.partial(ir.export, graph, target=target))
    return found


def exponent(small: dict[str, float], large: dict[str, float], column: str) -> float:
    """Of the growth between two measurements."""
    return math.log(large[column] / small[column]) / math.log(large["nodes"] / small["nodes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=_numbers, default=[1000, 5000, 20000, 50000])
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = ("capture", *TARGETS)
    lines = [f"| graph | nodes | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    worst = 0.0
    for kind in KINDS:
        measure(kind, 100)
        rows = [measure(kind, n) for n in (LAYERS if kind == "transformer layers" else options.nodes)]
        lines += [f"| {kind} | {r['nodes']:.0f} | {' | '.join(f'{r[c]:.2f} s' for c in columns)} |" for r in rows]
        powers = [exponent(rows[0], rows[-1], c) for c in columns]
        worst = max(worst, *powers)
        lines.append(f"| | exponent | {' | '.join(f'{p:.2f}' for p in powers)} |")
        print("\n".join(lines[-len(rows) - 1 :]), flush=True)
    print(f"largest exponent: {worst:.2f} (at most {MOST} wanted)")
    if options.write:
        head = (
            f"# Export by number of nodes\n\n{(__doc__ or '').partition(chr(10))[2].strip()}\n\nMeasured by "
            f"`python -m benchmarks.scaling --write` with torch {torch.__version__} on {platform.machine()}. The "
            f"exponents are those between the first and the last row; the largest is {worst:.2f}.\n\n"
        )
        PAGE.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
