"""Farthest point sampling: points of a cloud, each as far as can be from those already taken.

    taken[0] = 0        taken[n] = the point whose distance to the nearest of taken[0 .. n-1] is largest

Source: Y. Eldar et al., "The Farthest Point Strategy for Progressive Image Sampling", 1997; in networks: C. R. Qi et
al., "PointNet++", 2017, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import scan

import ir


@ir.custom_op("gallery::farthest_points")
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Which points are taken.

    Args:
        points: float32 [batch, points, 3].
        count: how many to take.

    Returns:
        Their indices, in the order in which they were taken, int64 [batch, count]; of equal points the first.
    """

    def step(distance: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        newest = torch.where(taken > 0, distance.argmax(1), 0)  # tract needs a loop that uses what it runs over
        there = points.gather(1, newest[:, None, None].expand(-1, 1, 3))
        return torch.minimum(distance, (points - there).square().sum(-1)), newest

    far = torch.full_like(points[:, :, 0], 1e30)
    _, indices = scan(step, far, torch.arange(count, device=points.device), dim=0)
    return indices.transpose(0, 1)
