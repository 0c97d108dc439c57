"""Models that are split: Llama with its cache, bert, a U-Net; and a process of a pipeline over torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import ir
from ir.runtime.pipeline import Pipeline
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)
from tests.zoo.decoding import cache_argument

LIMIT = 20  # seconds within which every process learns that another one has ended


def llama() -> tuple[Any, Any, Any, Any]:
    """Four layers, one step of decoding over a cache: batch and past are dynamic."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    shapes = {
        "input_ids": {0: "batch"},
        "attention_mask": {0: "batch", 1: "total"},
        cache_argument(): [{0: "batch", 2: "past"}] * 8,
    }
    return LlamaForCausalLM(config).eval(), _step, shapes, [(3, 9), (1, 5), (4, 17)]


def _step(batch: int, past: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from transformers import DynamicCache

    pairs = torch.randn(8, batch, 2, past, 8).unbind()
    cache = DynamicCache(list(zip(pairs[::2], pairs[1::2], strict=True)))
    mask = torch.ones(batch, past + 1, dtype=torch.int64)
    return (), {"input_ids": torch.randint(0, 64, (batch, 1)), "attention_mask": mask, cache_argument(): cache}


def bert() -> tuple[Any, Any, Any, Any]:
    """Four layers: batch and sequence are dynamic."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4)

    def inputs(batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = (torch.arange(length) < torch.randint(1, length + 1, (batch, 1))).long()
        return (), {"input_ids": torch.randint(0, 64, (batch, length)), "attention_mask": mask}

    shapes = {n: {0: "batch", 1: "sequence"} for n in ("input_ids", "attention_mask")}
    return BertModel(config, add_pooling_layer=True).eval(), inputs, shapes, [(3, 7), (1, 12), (5, 4)]


def unet() -> tuple[Any, Any, Any, Any]:
    """Skips go over every border: batch is dynamic."""
    from tests.zoo.wide.paper_images import UNet

    torch.manual_seed(0)
    return UNet().eval(), lambda batch, size: ((torch.randn(batch, 3, size, size),), {}), ({0: "batch"},), [
        (2, 32), (1, 32), (5, 32)
    ]  # fmt: skip


MODELS = {"llama": llama, "bert": bert, "unet": unet}


def captured(name: str) -> tuple[ir.Graph, Any, Any]:
    """The graph, a function of sizes that makes inputs, and sizes."""
    model, inputs, shapes, sizes = MODELS[name]()
    args, kwargs = inputs(*sizes[0])
    return ir.capture(model, args, kwargs, dynamic_shapes=shapes), inputs, sizes


def given(graph: ir.Graph, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    """The arguments by the names of the graph's inputs."""
    return dict(zip((v.name for v in graph.inputs), graph.structure.flatten(args, kwargs), strict=True))


def process(rank: int, size: int, store: str, folder: str, calls: str, dies: int | None) -> None:
    """One stage of a pipeline in a process of its own: the inputs are read, the results written."""
    import torch.distributed as dist

    from ir.runtime.distributed import Stage

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT)
    )
    pipeline = Pipeline.of(folder, threads=1)
    stage = Stage(pipeline.plan, pipeline.stage(rank))
    found = []
    for number, call in enumerate(torch.load(calls)):
        if rank == dies and number == 1:
            import os

            os._exit(3)
        found.append(stage(call if rank == 0 else None))
    if rank == size - 1:
        torch.save(found, Path(folder, "results.pt"))
    dist.destroy_process_group()
