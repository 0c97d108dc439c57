"""HDRnet's bilateral slicing: a grid of colour transforms, looked up by place and brightness, applied to an image.

    T[y, x] = trilinear reading of the grid at ((x + 1/2) w / W, (y + 1/2) h / H, guide[y, x] d), held at the border
    out[y, x] = T[y, x] (image[y, x], 1)

Source: M. Gharbi et al., "Deep Bilateral Learning for Real-Time Image Enhancement", 2017, section 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::bilateral_slice")
def bilateral_slice(grid: Tensor, guide: Tensor, image: Tensor) -> Tensor:
    """The image, transformed.

    Args:
        grid: affine transforms, row after row, float32 [batch, out * (channels + 1), d, h, w].
        guide: brightness, 0 to 1, float32 [batch, H, W].
        image: float32 [batch, channels, H, W].

    Returns:
        float32 [batch, out, H, W].
    """
    batch, channels, height, width = image.shape
    x = (torch.arange(width, device=image.device).to(image.dtype) + 0.5) * 2 / width - 1
    y = (torch.arange(height, device=image.device).to(image.dtype) + 0.5) * 2 / height - 1
    place = torch.stack([x.expand_as(guide), y[:, None].expand_as(guide), guide * 2 - 1], -1)
    read = torch.nn.functional.grid_sample(grid, place[:, None], padding_mode="border", align_corners=False)
    affine = read.reshape(batch, grid.shape[1] // (channels + 1), channels + 1, height, width)
    return (affine[:, :, :-1] * image[:, None]).sum(2) + affine[:, :, -1]
