"""torch's own program in float64: what float32 rounds to."""

from __future__ import annotations

from typing import Any

import torch

from ir.importer.torch_api import TorchDispatchMode, pytree, schema_of


class InFloat64(TorchDispatchMode):
    """Every op computes in float64 what it would compute in float32; numbers made on the way are float64 too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.view.dtype:
            raise TypeError("the bits of a float32 are read as another type")
        args, kwargs = widened((args, kwargs or {}))
        made = func(*args, **kwargs)
        if _narrow(made) and any(a.name == "dtype" for a in schema_of(func).arguments):  # by torch's default
            made = func(*args, **kwargs | {"dtype": torch.float64})
        return made


def widened(values: Any) -> Any:
    """Tensors and element types in a structure, float32 as float64."""
    return pytree.tree_map(_wide, values)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
        return value.double()
    return torch.float64 if value is torch.float32 else value


def _narrow(made: Any) -> bool:
    return any(isinstance(t, torch.Tensor) and t.dtype is torch.float32 for t in pytree.tree_leaves(made))
