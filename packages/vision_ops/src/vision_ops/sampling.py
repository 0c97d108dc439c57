"""Reading feature maps between their pixels."""

from __future__ import annotations

import torch
from torch import Tensor


def axis_taps(position: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bilinear taps along one axis as roi_align takes them: low, high (int64), and their weights.

    Up to one pixel outside a position is held at the border; beyond that both weights are 0.
    """
    inside = (position >= -1) & (position <= size)
    held = position.clamp(min=0)
    low = held.floor().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    fraction = torch.where(low >= size - 1, 0.0, held - low)
    weights = inside.to(position.dtype)
    return low.long(), high.long(), (1 - fraction) * weights, fraction * weights


def rows(table: Tensor, index: Tensor) -> Tensor:
    """`table[index]` for an index of any rank: a gather along the first axis."""
    return table.index_select(0, index.reshape(-1)).reshape(*index.shape, *table.shape[1:])
