"""Trilinear voxel sampling: features of a grid, read at points between its voxels.

    y[p] = sum over the 8 corners c of p's cell of prod_axes (1 - |p - c|) grid[c]

Source: the `trilinear_devoxelize` of Z. Liu et al., "Point-Voxel CNN for Efficient 3D Deep Learning", 2019, section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::voxel_sample")
def voxel_sample(grid: Tensor, points: Tensor) -> Tensor:
    """Features at the points.

    Args:
        grid: float32 [batch, channels, X, Y, Z].
        points: in voxels, held at the border, float32 [batch, points, 3].

    Returns:
        float32 [batch, channels, points].
    """
    channels = grid.shape[1]
    table = grid.flatten(2)
    corner, total = [], torch.zeros_like(table[:, :, :1])
    for axis, size in enumerate(grid.shape[2:]):
        at = points[:, :, axis].clamp(0, size - 1)
        low = at.floor()
        high = (low + 1).clamp(max=size - 1)
        corner.append(((low.to(torch.int64), 1 - (at - low)), (high.to(torch.int64), at - low)))
    _, _, _, height, depth = grid.shape
    for x, weight_x in corner[0]:
        for y, weight_y in corner[1]:
            for z, weight_z in corner[2]:
                place = ((x * height + y) * depth + z)[:, None].expand(-1, channels, -1)
                total = total + table.gather(2, place) * (weight_x * weight_y * weight_z)[:, None]
    return total
