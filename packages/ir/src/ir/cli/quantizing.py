"""`--quantize`: weights of linear layers as integers, by torchao."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ir.errors import CaptureError

_GROUP = 32  # weights that share a scale, of int4
KINDS = ("int8", "int4")


def quantize(model: torch.nn.Module, kind: str) -> str:
    """Quantise a model where it stands; what there is to say of it.

    Raises:
        CaptureError: torchao is not installed, or no layer can be quantised.
    """
    ao = _torchao()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    chosen = [m for m in linear if kind == "int8" or m.in_features % _GROUP == 0]
    if not chosen:
        sized = f" of a multiple of {_GROUP} inputs" if linear else ""
        raise CaptureError(f"--quantize {kind}: the model has no linear layer{sized}, whose weights could be quantised")
    ao.quantize_(model, _config(ao, kind), filter_fn=lambda module, name: any(module is m for m in chosen))
    return (
        f"weights of {len(chosen)} of {len(linear)} linear layers are {kind}; the error is against the quantised model"
    )


def _config(ao: Any, kind: str) -> Any:
    """Weights alone, with their scales: activations stay as they are."""
    granularity = ao.PerAxis(0) if kind == "int8" else ao.PerGroup(_GROUP)
    return ao.IntxWeightOnlyConfig(weight_dtype=getattr(torch, kind), granularity=granularity)


def _torchao() -> Any:
    try:
        return importlib.import_module("torchao.quantization")
    except Exception as error:  # one that does not fit the installed torch fails in many ways
        raise CaptureError(f"--quantize needs torchao ({error}): pip install torchao") from error
