"""Intersection over union of rotated boxes, without sorting corners.

Twice the area of a region is the integral of x dy - y dx along its edge, and the edge of an intersection is what lies
of each box's sides in the other box: sides are clipped against two slabs each (M. Cyrus and J. Beck, "Generalized two-
and three-dimensional clipping", 1978). So that boxes share no side, which would count twice, the first ones are made
smaller by 1e-9, and all is done in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


def corners(boxes: Tensor) -> Tensor:
    """[..., 5] to [..., 4, 2], counter-clockwise."""
    x, y, w, h, angle = boxes[..., None].unbind(-2)
    dx = w * boxes.new_tensor([-0.5, 0.5, 0.5, -0.5])
    dy = h * boxes.new_tensor([-0.5, -0.5, 0.5, 0.5])
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([x + dx * cos - dy * sin, y + dx * sin + dy * cos], -1)


def along(sides: Tensor, box: Tensor) -> Tensor:
    """Twice what the sides [..., 4, 2] of one box add to the area, as far as they are in the other box [..., 5]."""
    start, step = sides, sides.roll(-1, -2) - sides
    x, y, w, h, angle = box[..., None].unbind(-2)
    cos, sin = angle.cos(), angle.sin()
    enter, leave = torch.zeros_like(start[..., 0]), torch.ones_like(start[..., 0])
    for ux, uy, extent in ((cos, sin, w), (-sin, cos, h)):
        at = (start[..., 0] - x) * ux + (start[..., 1] - y) * uy
        speed = step[..., 0] * ux + step[..., 1] * uy
        speed = torch.where(speed.abs() < 1e-12, 1e-12, speed)  # along the slab: in it from -inf to inf, or never
        one, other = (extent / 2 - at) / speed, (-extent / 2 - at) / speed
        enter = torch.maximum(enter, torch.minimum(one, other))
        leave = torch.minimum(leave, torch.maximum(one, other))
    cross = start[..., 0] * step[..., 1] - start[..., 1] * step[..., 0]
    return (cross * (leave - enter).clamp(min=0)).sum(-1)


@ir.custom_op("gallery::rotated_iou")
def rotated_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of each box of a and each of b: (x, y, width, height, radians) float32 [N, 5], [M, 5] to [N, M]."""
    one, other = a.double()[:, None], b.double()[None]
    center = torch.nn.functional.pad(one[..., :2], [0, 3])
    one, other = one - center, other - center  # near the origin the integrals keep their digits
    smaller = one - one.new_tensor([0, 0, 1e-9, 1e-9, 0])
    shared = along(corners(smaller), other) + along(corners(other), smaller)
    areas = one[..., 2] * one[..., 3] + other[..., 2] * other[..., 3]
    return (shared / 2 / (areas - shared / 2)).clamp(0, 1).to(a.dtype)
