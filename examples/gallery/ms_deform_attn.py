"""Multi-scale deformable attention: each query reads a few points of each feature map, where it says itself.

    y[q, m] = sum over levels l and points p of a[q, m, l, p] V_l[m] at location[q, m, l, p]

Source: X. Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection", 2020, equation 3
without its two linear projections, as the authors' kernel; reading is bilinear and zero outside of a map.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

import ir


@ir.custom_op("gallery::ms_deform_attn")
def ms_deform_attn(value: Tensor, shapes: list[int], locations: Tensor, weights: Tensor) -> Tensor:
    """What the queries read.

    Args:
        value: the maps of all levels, flattened and one after the other, float32 [batch, sum of H W, heads, size].
        shapes: height and width of each level: [H_0, W_0, H_1, W_1, ...].
        locations: (x, y) of the points, 0 to 1 over a map, float32 [batch, queries, heads, levels, points, 2].
        weights: of the points, float32 [batch, queries, heads, levels, points].

    Returns:
        float32 [batch, queries, heads * size].
    """
    batch, _, heads, size = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    grids = (locations * 2 - 1).transpose(1, 2)  # [batch, heads, queries, levels, points, 2]
    scales = list(zip(shapes[::2], shapes[1::2], strict=True))
    read = []
    for level, (height, width) in enumerate(scales):
        start = sum(h * w for h, w in scales[:level])
        table = value[:, start : start + height * width].permute(0, 2, 3, 1)
        table = table.reshape(batch * heads, size, height, width)
        grid = grids[:, :, :, level].reshape(batch * heads, queries, points, 2)
        read.append(grid_sample(table, grid, padding_mode="zeros", align_corners=False))
    found = torch.stack(read, 3).reshape(batch, heads, size, queries, len(scales), points)
    made = (found * weights.transpose(1, 2)[:, :, None]).sum((-1, -2))
    return made.permute(0, 3, 1, 2).flatten(2)
