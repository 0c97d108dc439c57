"""RWKV's wkv: attention without queries, an average of the values so far, weighted by decaying keys.

    wkv[t] = (sum_{i<t} exp(-(t-1-i) w + k[i]) v[i] + exp(u + k[t]) v[t])
           / (sum_{i<t} exp(-(t-1-i) w + k[i])      + exp(u + k[t]))

Source: B. Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, equation 16, computed as its appendix on
numerical stability says: numerator and denominator are kept divided by exp(p), p the largest exponent so far.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import scan

import ir


@ir.custom_op("gallery::wkv")
def wkv(w: Tensor, u: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weighted averages of the values of a batch of sequences.

    Args:
        w: how fast each channel forgets, positive, float32 [channels].
        u: the bonus of the present token, float32 [channels].
        k: the keys, float32 [batch, length, channels].
        v: the values, as k.

    Returns:
        The averages, as v.
    """

    def step(state: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        (a, b, p), (k, v) = state, now
        top = torch.maximum(p, u + k)
        past, present = torch.exp(p - top), torch.exp(u + k - top)
        y = (past * a + present * v) / (past * b + present)
        top = torch.maximum(p - w, k)
        past, present = torch.exp(p - w - top), torch.exp(k - top)
        return [past * a + present * v, past * b + present, top], y

    zero = k.new_zeros(k.shape[0], k.shape[2])
    start = [zero, zero.clone(), zero - 1e38]
    _, y = scan(step, start, [k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()], dim=0)
    return y.transpose(0, 1)
