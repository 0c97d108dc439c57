"""A real model with a custom op on every target: exported, run in its runtime, compared with torch.

A 12-layer BERT whose activation is our own op `demo::swish`. Dynamic batch and sequence. Usage:

    python examples/three_targets.py [output directory]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertModel

import ir


@ir.custom_op("demo::swish")
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


class Swish(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x, 1.5)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    bert = BertModel(BertConfig(vocab_size=8000, num_hidden_layers=12)).eval()
    for layer in bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = Swish()
    return bert


def inputs(batch: int, sequence: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(0, 8000, (batch, sequence)),
        "attention_mask": (torch.arange(sequence) < sequence - torch.arange(batch)[:, None]).long(),
    }


def size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.is_dir() else path.stat().st_size


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    out.mkdir(exist_ok=True)
    names = {0: "batch", 1: "sequence"}
    graph = ir.capture(model(), kwargs=inputs(2, 16), dynamic_shapes={"input_ids": names, "attention_mask": names})
    table = Table("target", "file", "MB", "ops", "export s", "largest error", title="BERT with demo::swish")
    for target, file in {"onnx": "bert.onnx", "nnef": "bert.nnef.tar", "eager": "bert.pt2"}.items():
        start = time.perf_counter()
        program = ir.export(graph, target=target, path=out / file)
        seconds = time.perf_counter() - start
        error = max(program.verify((), inputs(*sizes)).error for sizes in ((2, 16), (1, 9), (3, 40)))
        path = out / file
        table.add_row(
            target, str(path), f"{size(path) / 1e6:.0f}", str(len(graph.nodes)), f"{seconds:.2f}", f"{error:.1e}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
