"""Calls of torch's kernels that trust their operands, as models with the operands in buffers, and a way to try them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # or each child that `survives` starts imports it at its first call within a mode: 2 s

A: Any = torch.ops.aten
FAR = 1 << 40  # no index of anything
LEAST = -(2**63)
SECONDS = 60


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def far(*shape: int) -> torch.Tensor:
    return torch.full(shape, FAR)


def _pool(grad: Any, x: Any, indices: Any) -> Any:
    return A.max_pool2d_with_indices_backward(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)


def _pool3d(grad: Any, x: Any, indices: Any) -> Any:
    three = [2, 2, 2]
    return A.max_pool3d_with_indices_backward(grad, x, three, three, [0, 0, 0], [1, 1, 1], False, indices)


def _bag(grad: Any, w: Any, indices: Any, offsets: Any, map_: Any) -> Any:
    return A._embedding_bag_per_sample_weights_backward(grad, w, indices, offsets, map_, 0)


# The function, and what the buffers hold. Each ends the process where torch runs it.
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "least_by_minus_one": (lambda a, b: A.div.Tensor_mode(a, b, rounding_mode="trunc"), (ints(LEAST), ints(-1))),
    "least_by_a_number": (lambda a: A.div.Scalar_mode(a, -1, rounding_mode="trunc"), (ints(LEAST),)),
    "least_of_int32": (
        lambda a, b: A.div.Tensor_mode(a, b, rounding_mode="trunc"),
        (torch.full((33,), -(2**31), dtype=torch.int32), torch.full((33,), -1, dtype=torch.int32)),
    ),
    "least_of_pools": (
        lambda a: A.avg_pool2d(a, [1, 1], [1, 1], [0, 0], False, True, -1), (torch.full((1, 1, 4, 4), LEAST),),
    ),
    "least_of_pools_3d": (
        lambda a: A.avg_pool3d(a, [1] * 3, [1] * 3, [0] * 3, False, True, -1), (torch.full((1, 1, 4, 4, 4), LEAST),),
    ),
    "lcm": (A.lcm, (ints(LEAST), ints(2**63 - 1))),
    "pool": (_pool, (torch.ones(1, 1, 4, 4), torch.ones(1, 1, 8, 8), far(1, 1, 4, 4))),
    "pool3d": (_pool3d, (torch.ones(1, 1, 2, 2, 2), torch.ones(1, 1, 4, 4, 4), far(1, 1, 2, 2, 2))),
    "adaptive_pool": (
        A.adaptive_max_pool2d_backward, (torch.ones(1, 1, 4, 4), torch.ones(1, 1, 8, 8), far(1, 1, 4, 4)),
    ),
    "bag": (_bag, (torch.ones(2, 4), torch.ones(4, 4), ints(0, FAR, 2, 3), ints(0, 2), ints(0, 0, 1, 1))),
    "bags": (
        lambda w, i, o: A.embedding_bag.padding_idx(w, i, o, False, 0, False, None, False, None)[0],
        (torch.ones(5, 3), ints(0, 1, 2), ints(0, -(10**9), 2)),
    ),
    "csr_to_coo": (A._convert_indices_from_csr_to_coo, (ints(0, FAR, 5), torch.arange(5))),
    "coo_to_csr": (lambda a: A._convert_indices_from_coo_to_csr(a, 4), (ints(0, FAR),)),
    "segments": (
        lambda a, b: A.segment_reduce(a, "sum", lengths=b, axis=0, unsafe=True), (torch.ones(4), ints(FAR)),
    ),
    "resize": (lambda a: A._upsample_bilinear2d_aa(a, [8, 8], False, 1e-12, 1e-12), (torch.ones(1, 1, 4, 4),)),
    "nearest": (
        lambda a: A.upsample_nearest2d(a, [7, 9], 1e-300, 1e-300), (torch.ones(1, 3, 4, 4, dtype=torch.uint8),),
    ),
    "repeats": (
        lambda a: A.repeat_interleave.Tensor(a, output_size=5), (ints(2**62, 2**62, 2**62, 2**62 + 5),),
    ),
    "alias": (lambda a: A._reshape_alias(a, [4], [FAR]), (torch.ones(4),)),
}  # fmt: skip


class Model(torch.nn.Module):
    """The input and a sum over what a call gives of buffers."""

    def __init__(self, call: Callable[..., Any], *buffers: torch.Tensor) -> None:
        super().__init__()
        self.call = call
        for i, buffer in enumerate(buffers):
            self.register_buffer(f"b{i}", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.call(*self.buffers())
        return x + (made[0] if isinstance(made, tuple) else made).sum().to(x.dtype)


def model(name: str) -> Model:
    call, buffers = CALLS[name]
    return Model(call, *buffers)


def saved(name: str, folder: Path) -> Path:
    """The model as a .pt2 file: nothing of it is computed on the way."""
    path = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(model(name), (torch.ones(3),)), path)
    return path


def survives(call: Callable[[], Any]) -> str:
    """ "" of a call that ends in a child of this process, by an error or not, else the signal that ended the child."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            call()
        except Exception:
            os._exit(1)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""


def lines_of(module: str, *arguments: str) -> list[str]:
    """What a module prints, run in a process of its own: one that forks has no threads yet."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
