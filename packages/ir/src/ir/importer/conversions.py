"""`module.to(...)` in a forward: where it changes nothing, torch.export is spared it, for it can swap no parameters."""

from __future__ import annotations

from typing import Any

import torch

from ir.importer.swapping import swapped
from ir.importer.torch_api import conversion


def left_out() -> Any:
    """A block in which such a call returns the module."""
    convert = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self if _changes_nothing(self, args, kwargs) else convert(self, *args, **kwargs)

    return swapped(torch.nn.Module, "to", to)


def _changes_nothing(module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    try:
        device, dtype, memory_format = conversion(*args, **kwargs)
    except (RuntimeError, TypeError):  # a wrong call, which torch tells
        return False
    held = [*module.parameters(), *module.buffers()]
    moved = device is not None and any(t.device != device for t in held)
    cast = dtype is not None and any(t.dtype != dtype for t in held if t.is_floating_point() or t.is_complex())
    return not (moved or cast or memory_format is not None)
