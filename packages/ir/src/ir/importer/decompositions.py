"""Decompositions in place of torch's own, which give other numbers than torch's kernels do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _ldexp(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`self * 2**other`, exact where a power by itself would overflow or vanish (C's ldexp)."""
    if other.dtype.is_floating_point or not self.dtype.is_floating_point:
        return self * torch.pow(2.0, other)
    exponent = other.to(torch.float64).clamp(-2040, 2040)  # from the least float64 to the largest and back
    half = torch.trunc(exponent / 2)
    return (self.to(torch.float64) * torch.exp2(half) * torch.exp2(exponent - half)).to(self.dtype)


DECOMPOSITIONS: Mapping[str, Callable[..., Any]] = {"aten::ldexp.Tensor": _ldexp}  # by overload
