"""Mamba's selective scan: a diagonal state space whose rates depend on the input.

    h[t] = exp(delta[t] A) h[t-1] + delta[t] B[t] u[t]        y[t] = C[t] h[t] + D u[t]

Source: A. Gu and T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, equations 2 and 4,
with B discretised as delta B, as the authors' kernel does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import scan

import ir


@ir.custom_op("gallery::selective_scan")
def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The scan of a batch of sequences.

    Args:
        u: the inputs, float [batch, length, inner].
        delta: the step sizes, positive, as u.
        A: the rates, negative, float [inner, state].
        B, C: into the state and out of it, float [batch, length, state].
        D: the way around the state, float [inner].

    Returns:
        y, as u.
    """

    def step(h: Tensor, now: list[Tensor]) -> tuple[Tensor, Tensor]:
        u, delta, B, C = now
        h = torch.exp(delta[..., None] * A) * h + (delta * u)[..., None] * B[:, None, :]
        return h, (h * C[:, None, :]).sum(-1)

    start = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
    _, y = scan(step, start, [x.transpose(0, 1).contiguous() for x in (u, delta, B, C)], dim=0)
    return y.transpose(0, 1) + D * u
