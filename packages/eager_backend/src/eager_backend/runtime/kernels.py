"""An op that torch does not compute in the program's element type, which only its own kernel could tell."""

from __future__ import annotations

from types import FunctionType

import torch

from eager_backend.building.source import failed_step
from ir.errors import RuntimeFailure


def without_kernel(error: Exception, own: torch.dtype | None, run: FunctionType) -> RuntimeFailure | None:
    """What names the op and the model's line, where torch speaks of the type that `dtype=` asked for; else None."""
    if own is None:
        return None
    word = torch.empty(0, dtype=own).type().removeprefix("torch.").removesuffix("Tensor")  # "Half"
    reason = str(error).partition("\n")[0]
    if word not in reason:
        return None
    op = failed_step(error, run).rpartition("# ")[2] or "a step of the program"
    name = str(own).removeprefix("torch.")
    way_out = "name it in keep_float32=, or export without dtype="
    return RuntimeFailure(f"{op}: torch refuses it in {name} ({reason}); {way_out}")
