"""Sampling at the places of a grid: the corners around each place, weighted."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition


@decomposition("grid_sampler_3d")
def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """aten/src/ATen/native/GridSampler.h, for any number of axes; the grid counts them from the last."""
    batch, channels, *sizes = input.shape
    rows = input.movedim(1, -1).reshape([batch * math.prod(sizes), channels])
    places = [_inside(p, s, padding_mode, align_corners) for p, s in zip(grid.unbind(-1)[::-1], sizes, strict=True)]
    total = torch.zeros([*grid.shape[:-1], channels], dtype=input.dtype)
    for corner in itertools.product(*(_corners(p, nearest=interpolation_mode == 1) for p in places)):
        number = torch.arange(batch).reshape([-1] + [1] * len(sizes))
        weight = torch.ones([], dtype=input.dtype)
        for (place, share), size in zip(corner, sizes, strict=True):
            held = place.clamp(0, size - 1)
            weight = weight * (torch.where(held == place, share, 0.0) if padding_mode == 0 else share)
            number = number * size + held.to(torch.int64).clamp(min=0)  # nan is somewhere, too
        found = rows.index_select(0, number.reshape(-1)).reshape(total.shape)
        total = total + found * weight.unsqueeze(-1)
    return total.movedim(-1, 1)


def _inside(place: Tensor, size: Any, padding: int, align: bool) -> Tensor:
    """A coordinate of [-1, 1] in elements, brought back inside as the padding asks: 1 is border, 2 reflection."""
    place = (place + 1) * 0.5
    place = place * (size - 1) if align else place * size - 0.5
    if padding == 2:
        low, span = (0.0, size - 1) if align else (-0.5, size)
        span = torch.scalar_tensor(span, dtype=place.dtype).clamp(min=1e-6)  # one element mirrors onto itself
        place = span - (torch.fmod((place - low).abs(), span + span) - span).abs() + low
    # nan is the last element, as in torch's kernel
    return place if padding == 0 else torch.where(place.isnan(), size - 1, place).clamp(0, size - 1)


def _corners(place: Tensor, nearest: bool) -> list[tuple[Tensor, Tensor]]:
    """The elements next to a place and their weights."""
    if nearest:
        return [(place.round(), torch.ones_like(place))]
    low = place.floor()
    return [(low, low + 1 - place), (low + 1, place - low)]
