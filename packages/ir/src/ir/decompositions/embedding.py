"""Bags of embeddings: rows of a table, reduced by bag."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ir.decompositions.pieces import fitted
from ir.decompositions.registry import decomposition
from ir.decompositions.statistics import segment_of

_Results = tuple[Tensor, Tensor, Tensor, Tensor]


@decomposition("embedding_bag.padding_idx")
def _embedding_bag_padded(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, include_last_offset: bool, padding_idx: int | None,
) -> _Results:  # fmt: skip
    """Here a negative padding index counts from the end, and None is none; everywhere else -1 is none."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0] if padding_idx < 0 else padding_idx
    return _embedding_bag(
        weight, indices, offsets, False, mode, False, per_sample_weights, include_last_offset, padding
    )


@decomposition("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> _Results:  # fmt: skip
    """Mode 0 sums, 1 averages, 2 takes the maximum. The other results are for the backward pass, and have no form."""
    edges, size = offsets.to(torch.int64), indices.shape[0]
    bags = edges.shape[0] - 1 if include_last_offset else edges.shape[0]
    bag = segment_of(edges, size) - 1
    rows, kept = weight.index_select(0, indices), indices != padding_idx if padding_idx >= 0 else None
    if per_sample_weights is not None:
        rows = rows * fitted(per_sample_weights, [size]).unsqueeze(1)
    empty = rows.new_zeros([edges.shape[0], weight.shape[1]])  # one more than bags where the last edge is given
    if kept is None:
        number = torch.arange(edges.shape[0])
        after = edges[torch.clamp(number + 1, max=edges.shape[0] - 1)]
        held = torch.where(number == edges.shape[0] - 1, size, after) - edges
    else:
        held = torch.zeros_like(edges).index_add(0, bag, kept.to(torch.int64))
    if mode == 2:
        made = _highest(weight, rows, indices, kept, bag, edges)
        made = torch.where((held == 0).unsqueeze(1), 0.0, made)
    else:
        made = empty.index_add(0, bag, rows if kept is None else torch.where(kept.unsqueeze(1), rows, 0))
    if mode == 1:
        made = made / held.clamp(min=1).to(rows.dtype).unsqueeze(1)
    unread = torch.zeros([0, 0, 0], dtype=indices.dtype)
    return made[:bags], unread, unread.clone(), unread.clone()


def _highest(weight: Tensor, rows: Tensor, indices: Tensor, kept: Tensor | None, bag: Tensor, first: Tensor) -> Tensor:
    """As torch's kernel, which stays at a nan that comes first, and goes past all others."""
    known = torch.where(rows.isnan(), -math.inf, rows)
    if kept is not None:
        known, size = torch.where(kept.unsqueeze(1), known, -math.inf), rows.shape[0]
        place = torch.where(kept, torch.arange(size), size)
        first = torch.full_like(first, 0).add(size).index_reduce(0, bag, place, "amin")
    start = rows.new_full([first.shape[0], rows.shape[1]], -math.inf)
    made = start.index_reduce(0, bag, known, "amax")
    read = torch.cat([indices, indices.new_zeros([1])])[first]  # a bag at the end may have nothing to read
    return torch.where(weight.index_select(0, read).isnan(), math.nan, made)
