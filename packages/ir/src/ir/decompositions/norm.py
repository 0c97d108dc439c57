"""Normalisations."""

from __future__ import annotations

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import own


@decomposition("group_norm")
def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    batch, channels = input.shape[:2]
    apart = own(input).reshape(batch, num_groups, channels // num_groups, *input.shape[2:])
    axes = [*range(2, apart.dim())]
    apart = apart - apart.mean(axes, keepdim=True)
    made = (apart * torch.rsqrt(apart.square().mean(axes, keepdim=True) + eps)).reshape(input.shape)
    shape = [-1] + [1] * (input.dim() - 2)
    made = made if weight is None else made * own(weight).reshape(shape)
    return (made if bias is None else made + own(bias).reshape(shape)).to(input.dtype)


@decomposition("native_group_norm")
def _native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, ...]:
    """Also the mean and the inverse deviation of each group."""
    apart = own(input).reshape(N, group, -1)
    mean = apart.mean(-1)
    factor = torch.rsqrt((apart - mean.unsqueeze(-1)).square().mean(-1) + eps)
    made = torch.group_norm(input, group, weight, bias, eps)
    return made, mean.to(input.dtype), factor.to(input.dtype)


@decomposition("norm_except_dim")
def _norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The norm of each slice along one axis, of the whole tensor for -1, as weight normalisation takes it."""
    if dim == -1:
        norm: Tensor = torch.linalg.vector_norm(v, pow)
        return norm
    norms: Tensor = torch.linalg.vector_norm(v, pow, [d for d in range(v.dim()) if d != dim % v.dim()], keepdim=True)
    return norms
