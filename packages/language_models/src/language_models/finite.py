"""Weights that are no numbers, or that have become none in the element type of an export, are refused."""

from __future__ import annotations

from typing import Any

import torch

from ir.errors import ExportError, RefusedError
from ir.importer.checkpoint import stored_tensors
from language_models.checkpoint import Checkpoint

PIECE = 1 << 20  # elements that are looked at a time


def check_finite(checkpoint: Checkpoint, source: Any) -> None:
    """Look at the weights that were converted or lie in memory; those that a file holds as they are, nobody reads yet.

    Args:
        source: what the checkpoint was opened from: a folder, or a model.

    Raises:
        RefusedError: a weight has nan or infinite numbers, or such as its element type does not reach.
    """
    before = _before(source)
    for name, weight in checkpoint.model.named_parameters():
        own = before.get(name)
        mapped = checkpoint.folder is not None and own is not None and own.dtype == weight.dtype
        if not mapped and weight.is_floating_point() and not _is_finite(weight):
            raise RefusedError(_said(name, weight.dtype, own))


def _before(source: Any) -> dict[str, torch.Tensor]:
    """The weights before they were converted, by name; none where they come from files of other kinds."""
    if isinstance(source, torch.nn.Module):
        return dict(source.named_parameters())
    try:
        return stored_tensors(source)
    except ExportError:
        return {}


def _is_finite(weight: torch.Tensor) -> bool:
    return all(bool(piece.isfinite().all()) for piece in weight.detach().reshape(-1).split(PIECE))


def _said(name: str, dtype: torch.dtype, own: torch.Tensor | None) -> str:
    if own is not None and not _is_finite(own):
        return f"the weight {name} has nan or infinite numbers: no token would be the model's own; check the checkpoint"
    kind, end = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
    largest = "numbers beyond that" if own is None else f"one of {own.abs().max():.6g}"
    return f"{kind} ends at {end:.6g}, and the weight {name} has {largest}: take weights='bf16', or 'f32'"
