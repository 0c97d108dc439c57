"""What each process of a group does in tests/integration/test_tensor_parallel.py."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import ir
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

LIMIT = 20  # seconds within which every process learns that another one has ended


class MLP(torch.nn.Module):
    """Two layers, whose hidden ones lie on several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def mlp() -> tuple[Any, Any, Any]:
    """The module, arguments for a number of rows, and how it is cut."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return MLP().eval(), lambda n: (torch.randn(n, 8),), {"up": ColwiseParallel(), "down": RowwiseParallel()}


def llama() -> tuple[Any, Any, Any]:
    """Two layers of four heads, as Hugging Face's own plan cuts them."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    plan = {f"model.layers.{i}.{n}": ColwiseParallel() for i in range(2) for n in columns}
    plan |= {f"model.layers.{i}.{n}": RowwiseParallel() for i in range(2) for n in rows}
    return LlamaForCausalLM(config).eval(), lambda n: (torch.randint(0, 64, (n, n + 4)),), plan


MODELS = {"mlp": mlp, "llama": llama}
SHAPES = {"mlp": ({0: "batch"},), "llama": {"input_ids": {0: "batch", 1: "sequence"}}}


def start(rank: int, size: int, store: str) -> None:
    """Join the group."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT)
    )


def leave() -> None:
    """End the process where all went well; its exit handlers race.

    A result that nobody waited for (the reference's own, which torch's registry of collectives holds) keeps gloo's
    threads, and they end the process by SIGABRT if they outlive it.
    """
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def sharded(rank: int, size: int, store: str, name: str) -> None:
    """A model cut over the processes beside the whole one: 50 calls at several sizes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    start(rank, size, store)
    torch.manual_seed(0)
    whole, inputs, plan = MODELS[name]()
    cut = parallelize_module(copy.deepcopy(whole), init_device_mesh("cpu", (size,)), plan)
    graph = ir.capture(cut, inputs(3), dynamic_shapes=SHAPES[name])
    program = ir.export(graph, target="eager", verify=True)
    sums = [n.origin for n in graph.nodes if n.op == "_c10d_functional::all_reduce"]
    assert sums and {o.module.rpartition(".")[2] for o in sums} <= {"down", "o_proj", "down_proj"}
    files = {inspect.getsourcefile(type(m)) for m in whole.modules()}
    named = [n for n in graph.nodes if n.origin.file in files]
    assert len(named) == len(graph.nodes), "a node has no line of the model"
    held = sum(w.tensor.numel() for w in graph.weights.values())
    assert held < sum(p.numel() for p in whole.parameters()), "a process holds the whole model"
    for call in range(50):
        torch.manual_seed(call)
        args = inputs(1 + call % 5)
        found, wanted = program(*args), whole(*args)
        torch.testing.assert_close(_logits(found), _logits(wanted), rtol=1e-4, atol=1e-5)
    for target in ("onnx", "nnef"):
        try:
            ir.export(graph, target=target)
        except ir.RefusedError as error:
            assert "waits for other processes, and a file of this target runs in one" in str(error)
        else:
            raise AssertionError(f"{target} wrote a collective")
    leave()


def _logits(result: Any) -> torch.Tensor:
    return getattr(result, "logits", result)


class Collectives(torch.nn.Module):
    """Functional ones and one in place, as results and read again; those that cut rows ask for their number."""

    def __init__(self, cutting: bool) -> None:
        super().__init__()
        self.cutting = cutting

    def forward(self, x):
        import torch.distributed._functional_collectives as functional

        group = dist.group.WORLD
        total = functional.all_reduce(x * 2, "sum", group)
        gathered = functional.all_gather_tensor(x, 0, group)
        own = x + 1
        dist.all_reduce(own)
        made = total + 1, gathered, own * 2, functional.broadcast(x, 0, group)
        if not self.cutting:
            return made
        part = functional.reduce_scatter_tensor(gathered + 1, "sum", 0, group)
        return *made, part, functional.all_to_all_single(gathered, None, None, group)


def collectives(rank: int, size: int, store: str, name: str) -> None:
    """Every kind of collective, compared with torch's own module."""
    start(rank, size, store)
    for cutting, counts in ((False, (4, 1, 7)), (True, (4, 4))):
        model = Collectives(cutting)
        example = torch.arange(12.0).view(4, 3) + rank
        program = ir.export(
            model, (example,), target="eager", dynamic_shapes=None if cutting else ({0: "rows"},), verify=True
        )
        for rows in counts:
            x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rank))
            for found, wanted in zip(program(x), model(x), strict=True):
                torch.testing.assert_close(found, torch.as_tensor(wanted))
    leave()


def dying(rank: int, size: int, store: str, name: str) -> None:
    """The last process ends in the middle of the calls."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    start(rank, size, store)
    torch.manual_seed(0)
    whole, inputs, plan = MODELS[name]()
    cut = parallelize_module(whole, init_device_mesh("cpu", (size,)), plan)
    program = ir.export(cut, inputs(3), target="eager", dynamic_shapes=SHAPES[name])
    for call in range(1000):
        if rank == size - 1 and call == 5:
            os._exit(3)
        program(*inputs(2))


WORK: dict[str, Callable[..., None]] = {"sharded": sharded, "collectives": collectives, "dying": dying}
