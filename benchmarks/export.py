"""Export time from the same ExportedProgram, ours written to a file beside torch.onnx's in memory, and peak memory.

python -m benchmarks.export [model ...]
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ir
from tests.zoo import get

MODELS = ("resnet50", "vit_b_16", "bert", "densenet121")
ROUNDS = 3


def best(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of a few runs, after one that is not counted."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def peer(program: torch.export.ExportedProgram) -> Any:
    """torch's own exporter, silent."""
    with contextlib.redirect_stdout(io.StringIO()):
        return torch.onnx.export(program, dynamo=True, verbose=False)


def times(name: str) -> dict[str, Any]:
    """One model: our seconds, the peer's, the ratio, and the nodes of both."""
    program = get(name).export()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ours = best(lambda: ir.export(program, target="onnx", path=path))
        nodes = len(ir.export(program, target="onnx").artifact.graph)
    theirs = best(lambda: peer(program), 2)
    return {"model": name, "ours": ours, "torch.onnx": theirs, "ratio": theirs / ours, "nodes": nodes,
            "torch.onnx nodes": len(peer(program).model.graph)}  # fmt: skip


def memory(gigabytes: float = 1.0) -> dict[str, float]:
    """Peak memory of an export above the loaded model, in a process of its own, in MB."""
    code = f"from benchmarks.export import _peak; _peak({gigabytes})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _peak(gigabytes: float) -> None:
    warnings.simplefilter("ignore")
    width, layers = 4096, round(gigabytes * 2**30 / (4096 * 4096 * 4))
    with tempfile.TemporaryDirectory() as folder:
        small = torch.nn.Linear(4, 4)
        ir.export(small, (torch.randn(1, 4),), target="onnx", path=Path(folder) / "warm.onnx")
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        program = torch.export.export(model, (torch.randn(1, width),))
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew, from what is held now
        before = _status("VmRSS")
        ir.export(program, target="onnx", path=Path(folder) / "model.onnx")
        after = _status("VmHWM")
    weights = layers * width * width * 4 / 2**20
    print(json.dumps({"weights": weights, "above": after - before, "ratio": (after - before) / weights}))


def _status(field: str) -> float:
    """A field of Linux' /proc/self/status, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def table(names: tuple[str, ...] = MODELS) -> str:
    """The tables as Markdown."""
    rows = [times(name) for name in names]
    lines = [
        "| model | ours s, written | torch.onnx s | ratio | our nodes | torch.onnx nodes |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['model']} | {r['ours']:.3f} | {r['torch.onnx']:.2f} | **{r['ratio']:.1f}** | {r['nodes']} "
        f"| {r['torch.onnx nodes']} |"
        for r in rows
    ]
    peak = memory()
    lines += [
        "",
        f"A model of {peak['weights']:.0f} MB of weights: {peak['above']:.0f} MB of peak memory above the loaded model "
        f"while it is exported and written, {100 * peak['ratio']:.1f} % of the weights.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table(tuple(sys.argv[1:]) or MODELS))
