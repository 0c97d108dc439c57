"""A linear layer whose weights are stored in 4 bits, by groups with a scale and a zero point of their own.

    y = x W^T        W[n, k] = (q[n, k] - zero[n, k // group]) scale[n, k // group]        q in 0 .. 15

Source: the layout that GPTQ (E. Frantar et al., 2022) and AWQ (J. Lin et al., 2023) made common, here along rows: two
weights to a byte, the lower four bits first.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::int4_linear")
def int4_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """A product with the weights as they are stored.

    Args:
        x: float32 [rows, K].
        packed: two weights to a byte, uint8 [N, K / 2].
        scales: of the groups, float32 [N, K / group].
        zeros: the zero points, uint8 [N, K / group].

    Returns:
        float32 [rows, N].
    """
    features, groups = scales.shape
    wide = packed.to(torch.int32)
    low, high = wide & 15, wide >> 4
    q = torch.stack([low, high], -1).reshape(features, groups, -1)
    weight = (q - zeros.to(torch.int32)[..., None]).to(x.dtype) * scales[..., None]
    return x @ weight.reshape(features, -1).t()
