"""Export from the same ExportedProgram beside torch.onnx's, for a few models of docs/models.md, and peak memory.

python -m benchmarks.export [model ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import ir
from tests.zoo import get
from tests.zoo.page import peer_table
from tests.zoo.peer import against_torch_onnx

MODELS = ("resnet50", "vit_b_16", "bert", "densenet121")
ROUNDS = 3


def times(name: str) -> dict[str, Any]:
    """One model, as tests.zoo.peer measures it."""
    with tempfile.TemporaryDirectory() as folder:
        return against_torch_onnx(get(name), Path(folder), rounds=ROUNDS)


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
    peak = memory()
    return peer_table({name: times(name) for name in names}) + (
        f"\nA model of {peak['weights']:.0f} MB of weights: {peak['above']:.0f} MB of peak memory above the loaded "
        f"model while it is exported and written, {100 * peak['ratio']:.1f} % of the weights."
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table(tuple(sys.argv[1:]) or MODELS))
