"""What passes of the core make, for targets that have no op for it."""

from __future__ import annotations

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition


@decomposition("ir::rotary_embedding")
def rotary_embedding(input: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """See ir.passes.fuse_rotary."""
    front, rest = input[..., : 2 * cos.shape[-1]], input[..., 2 * cos.shape[-1] :]
    a, b = (front[..., ::2], front[..., 1::2]) if interleaved else front.chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat([torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1), rest], -1)
