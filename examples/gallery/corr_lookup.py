"""RAFT's correlation lookup: how alike each pixel of one image and the surroundings of its match in another are.

    C[i, j, k, l] = <f1[i, j], f2[k, l]> / sqrt(channels)        C_n = C averaged over 2^n x 2^n of its last two axes

Read bilinearly (zero outside) at match / 2^n + d for all |d_x|, |d_y| <= radius. Source: Z. Teed and J. Deng, "RAFT:
Recurrent All-Pairs Field Transforms for Optical Flow", 2020, section 3.2, with the order of channels of its code:
levels, then d_x, then d_y.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

import ir


@ir.custom_op("gallery::corr_lookup")
def corr_lookup(f1: Tensor, f2: Tensor, match: Tensor, radius: int = 4, levels: int = 4) -> Tensor:
    """Correlations around the matches.

    Args:
        f1, f2: features of the two images, float32 [batch, channels, H, W]; H and W at least 2^levels.
        match: (x, y) in the second image of each pixel of the first, in pixels, float32 [batch, 2, H, W].
        radius: how far around the match is read.
        levels: of the pyramid.

    Returns:
        float32 [batch, levels * (2 radius + 1)^2, H, W].

    Raises:
        ValueError: the three do not fit.
    """
    if f2.shape != f1.shape or match.shape[::2] + match.shape[3:] != f1.shape[::2] + f1.shape[3:]:
        raise ValueError(f"features {list(f1.shape)} and {list(f2.shape)} do not fit, or matches {list(match.shape)}")
    batch, channels, height, width = f1.shape
    volume = f1.flatten(2).transpose(1, 2) @ f2.flatten(2) * channels**-0.5
    volume = volume.reshape(batch * height * width, 1, height, width)
    center = match.permute(0, 2, 3, 1).reshape(batch * height * width, 1, 1, 2)
    near = torch.arange(-radius, radius + 1, device=f1.device).to(f1.dtype)
    around = torch.stack(torch.meshgrid(near, near, indexing="ij"), -1)
    read = []
    for level in range(levels):
        h, w = height // 2**level, width // 2**level
        x, y = (center / 2**level + around).unbind(-1)
        grid = torch.stack([2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1], -1)
        read.append(grid_sample(volume, grid, align_corners=True).reshape(batch, height, width, (2 * radius + 1) ** 2))
        if level + 1 < levels:
            volume = avg_pool2d(volume, 2, stride=2)
    return torch.cat(read, -1).permute(0, 3, 1, 2)
