"""Ball query: the first few points of a cloud that are near each centre.

Source: C. R. Qi et al., "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", 2017, section
3.2, with the order and the filling of its code.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::ball_query")
def ball_query(points: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
    """Which points are near.

    Args:
        points: float32 [batch, points, 3].
        centers: float32 [batch, centers, 3].
        radius: a point is near if its distance is smaller.
        count: how many to find, at most the number of points.

    Returns:
        The first `count` indices of near points in ascending order, int64 [batch, centers, count]. Where there are
        fewer, the rest repeats the first one; where there is none, all are 0.
    """
    size = points.shape[1]
    near = (points[:, None] - centers[:, :, None]).square().sum(-1) < radius**2
    index = torch.where(near, torch.arange(size, device=points.device), size)
    found = index.topk(count, dim=-1, largest=False, sorted=True).values
    first = found[..., :1]
    found = torch.where(found < size, found, first)
    return torch.where(found < size, found, 0)
