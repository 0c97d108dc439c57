"""What differs where a program lies on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from eager_backend.building.cuda import Cuda
from ir.errors import ExportError

runtime = Cuda()  # tests put a stand-in here


def chosen(device: str | torch.device) -> torch.device:
    """The device; "cuda" is the one that is current now, whichever is later.

    Raises:
        ValueError: it is neither the CPU nor a GPU of CUDA.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: {str(error).partition(chr(10))[0]}") from error
    if found.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"device={str(device)!r}: a program runs on cpu or cuda")
    if found.type == "cuda" and found.index is None and runtime.count():
        return torch.device("cuda", runtime.current())
    return found


def require(device: torch.device) -> None:
    """Ask for a device before anything is moved to it.

    Raises:
        ExportError: it is a GPU, and torch finds none, or not so many.
    """
    if device.type != "cuda":
        return
    count = runtime.count()
    if (device.index or 0) >= count:
        raise ExportError(f"torch {torch.__version__} finds {count} GPUs, there is no {device}: Eager(device='cpu')")


def settled(device: torch.device) -> None:
    """Wait until weights have arrived: calls may come on other streams."""
    if device.type == "cuda":
        runtime.synchronize(device)


def same_random_numbers(device: torch.device) -> AbstractContextManager[Any]:
    """What is drawn inside is not missing from torch's generators afterwards."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
