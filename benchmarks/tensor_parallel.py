"""A call of tensor-parallel models on two and four processes (gloo), beside torch's own: -- --write."""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ir
from benchmarks import pages
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

PAGE = Path(__file__).with_name("tensor_parallel.md")
SIZES = (2, 4)
OURS, THEIRS, SHARDED = "eager", "ep.module()", "DTensor module"
LIMIT = timedelta(minutes=5)
Row = dict[str, Any]


class MLP(torch.nn.Module):
    """Two layers, the hidden ones on several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def mlp() -> tuple[Any, Any, Any, tuple[str, ...], tuple[str, ...]]:
    """The module, arguments, dynamic sizes, and the layers cut by columns and by rows."""
    return MLP().eval(), (torch.randn(16, 1024),), ({0: "batch"},), ("up",), ("down",)


def llama() -> tuple[Any, Any, Any, tuple[str, ...], tuple[str, ...]]:
    """The same of a Llama of four layers of width 512."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    names = [tuple(f"model.layers.{i}.{n}" for i in range(4) for n in group) for group in (columns, rows)]
    shapes = {"input_ids": {0: "batch", 1: "sequence"}}
    return LlamaForCausalLM(config).eval(), (torch.randint(0, 8192, (2, 64)),), shapes, names[0], names[1]


MODELS = {"MLP 1024, 4096, 16 rows": mlp, "Llama, 4 layers of 512, 2 x 64 tokens": llama}


def turns(calls: dict[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """Median milliseconds of each; all processes begin each call together, and the clock is the wall's."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(count):
        for name in list(calls) if turn % 2 else list(reversed(calls)):
            dist.barrier()
            start = time.perf_counter()
            calls[name]()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(found[3:]) for name, found in times.items()}


def process(rank: int, size: int, store: str, name: str, count: int) -> None:
    """One of the processes; the first writes what was measured beside the store."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=LIMIT)
    torch.manual_seed(0)
    whole, args, shapes, columns, rows = MODELS[name]()
    plan = {n: ColwiseParallel() for n in columns} | {n: RowwiseParallel() for n in rows}
    cut = parallelize_module(copy.deepcopy(whole), init_device_mesh("cpu", (size,)), plan)
    graph = ir.capture(cut, args, dynamic_shapes=shapes)
    theirs = graph.context.program.module(check_guards=False)  # type: ignore[union-attr]
    ours = ir.export(graph, target="eager")
    with torch.no_grad():
        wanted = _logits(whole(*args))
        error = (_logits(ours(*args)) - wanted).abs().max() / wanted.abs().max()
        calls = {OURS: lambda: ours(*args), THEIRS: lambda: theirs(*args), SHARDED: lambda: cut(*args)}
        times = turns(calls, count)
        whole_ms = turns({"whole": lambda: whole(*args)}, count)["whole"] if rank == 0 else _waiting(count)
    if rank == 0:
        row = {"model": name, "processes": size, "error": float(error), "whole": whole_ms} | times
        Path(store).with_name("row.json").write_text(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


def _logits(result: Any) -> torch.Tensor:
    found: torch.Tensor = getattr(result, "logits", result)
    return found


def _waiting(count: int) -> float:
    """The other processes, while the first runs the whole model alone."""
    for _ in range(count):
        dist.barrier()
    return 0.0


def table(rows: list[Row]) -> str:
    """A line for each model and number of processes."""
    lines = [
        "| model | processes | eager | ep.module() | DTensor module | whole model, one process | error |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        cells = [f"{r[OURS]:.2f}", *(f"{r[k]:.2f} ({r[k] / r[OURS]:.2f})" for k in (THEIRS, SHARDED, "whole"))]
        lines.append(f"| {r['model']} | {r['processes']} | {' | '.join(cells)} | {r['error']:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    options = parser.parse_args()
    note = f"torch {torch.__version__}, {os.cpu_count()} CPUs, load before it {os.getloadavg()[0]:.1f}."
    rows: list[Row] = []
    for name in MODELS:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(process, (size, str(Path(folder, "store")), name, options.turns), nprocs=size)
                rows.append(json.loads(Path(folder, "row.json").read_text()))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if options.write:
        pages.put(PAGE, f"{note}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
