"""Segment sum and mean: rows added up, or averaged, by the segment that each belongs to.

    y[s] = sum of x[i] over all i with segment[i] = s, divided by their number for the mean (0 where there is none)

As torch_scatter's `scatter` and TensorFlow's `unsorted_segment_sum`; messages in graph networks are gathered by it.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::segment_reduce")
def segment_reduce(x: Tensor, segment: Tensor, segments: int, reduce: str = "sum") -> Tensor:
    """Rows, reduced by segment.

    Args:
        x: float32 [rows, features].
        segment: of each row, in any order, int64 [rows], each in [0, segments).
        segments: how many there are.
        reduce: "sum" or "mean".

    Returns:
        float32 [segments, features].

    Raises:
        ValueError: another reduction.
    """
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce is 'sum' or 'mean', not {reduce!r}")
    total = x.new_zeros(segments, x.shape[1]).index_add(0, segment, x)
    if reduce == "sum":
        return total
    rows = x.new_zeros(segments).index_add(0, segment, torch.ones_like(x[:, 0]))
    return total / rows.clamp(min=1)[:, None]
