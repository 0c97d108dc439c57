"""Rotary embedding: pairs of features are turned by an angle that grows with the position.

    (x[2i], x[2i+1]) -> (x[2i] cos a - x[2i+1] sin a, x[2i] sin a + x[2i+1] cos a)        a = position base^(-2i / size)

Source: J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equation 34. Models that
descend from GPT-NeoX pair feature i with feature i + size / 2 instead of neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::rotary")
def rotary(x: Tensor, positions: Tensor, base: float = 10000.0, interleaved: bool = False) -> Tensor:
    """Queries or keys, turned.

    Args:
        x: float32 [batch, length, heads, size], size even.
        positions: of the tokens, int64 [batch, length].
        base: of the geometric series of wavelengths.
        interleaved: pair neighbours, as in RoFormer; otherwise halves, as in GPT-NeoX.

    Returns:
        As x.
    """
    size = x.shape[-1]
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float32, device=x.device) / size)
    angles = positions.to(torch.float32)[:, :, None, None] * rates
    cos, sin = angles.cos(), angles.sin()
    pairs = x.unflatten(-1, (size // 2, 2) if interleaved else (2, size // 2))
    axis = -1 if interleaved else -2
    first, second = pairs.select(axis, 0), pairs.select(axis, 1)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], axis).flatten(-2)
