"""Scans, and what is picked from an order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import own


def _before(self: Tensor, dim: int, initial: Any) -> Tensor:
    """Each element beside all up to it along an axis: a square for the axis, `initial` above its diagonal."""
    axis = dim % self.dim()
    size = self.shape[axis]
    rest = [1] * (self.dim() - axis - 1)
    here = torch.arange(size)
    earlier = (here <= here.unsqueeze(1)).reshape(size, size, *rest)
    return torch.where(earlier, self.unsqueeze(axis), initial)


@decomposition("cumsum")
def _cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    self = self.to(dtype or (self.dtype if self.dtype.is_floating_point else torch.int64))
    return _before(self, dim, 0).sum(dim % self.dim() + 1, dtype=self.dtype) if self.dim() else self.clone()


@decomposition("cumprod")
def _cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    self = self.to(dtype or (self.dtype if self.dtype.is_floating_point else torch.int64))
    return _before(self, dim, 1).prod(dim % self.dim() + 1, dtype=self.dtype) if self.dim() else self.clone()


@decomposition("logcumsumexp")
def _logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return _before(self, dim, -math.inf).logsumexp(dim % self.dim() + 1) if self.dim() else self.clone()


def _first(x: Tensor, top: Tensor, dim: int) -> Tensor:
    """The first place along an axis, which is kept, of an extreme element or of a nan."""
    axis = dim % x.dim()
    size = x.shape[axis]
    places = torch.arange(size).reshape([-1] + [1] * (x.dim() - axis - 1))
    found = (x == top) | x.isnan() if x.dtype.is_floating_point else x == top
    return torch.where(found, places, size).amin(axis, keepdim=True)


def _place(extreme: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """argmax or argmin."""

    def place(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        x = self.reshape(-1) if dim is None or self.dim() == 0 else self
        axis = 0 if dim is None else dim
        found = _first(x, extreme(x, axis, keepdim=True), axis)
        if dim is None or self.dim() == 0:
            return found.reshape([1] * self.dim() if keepdim else [])
        return found if keepdim else found.squeeze(axis)

    return place


decomposition("argmax")(_place(torch.amax))
decomposition("argmin")(_place(torch.amin))


def _with_place(extreme: Callable[..., Tensor], place: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """max or min along an axis."""

    def both(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return extreme(self, dim, keepdim=keepdim), place(self, dim, keepdim=keepdim)

    return both


decomposition("max.dim")(_with_place(torch.amax, torch.argmax))
decomposition("min.dim")(_with_place(torch.amin, torch.argmin))


def _running(extreme: Callable[..., Tensor], start: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """cummax or cummin: the extreme so far and its last place, or that of a nan."""

    def running(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if self.dim() == 0:
            return self.clone(), torch.zeros((), dtype=torch.int64)
        axis = dim % self.dim()
        last = torch.iinfo(self.dtype) if not (self.dtype.is_floating_point or self.dtype is torch.bool) else None
        worst = start if self.dtype.is_floating_point else (last.max if start > 0 else last.min) if last else start > 0
        parts = _before(self, axis, worst)
        top = extreme(parts, axis + 1, keepdim=True)
        found = (parts == top) | parts.isnan() if self.dtype.is_floating_point else parts == top
        places = torch.arange(self.shape[axis]).reshape([-1] + [1] * (self.dim() - axis - 1)).expand(self.shape)
        return top.squeeze(axis + 1), torch.where(found, _before(places, axis, -1), -1).amax(axis + 1)

    return running


decomposition("cummax")(_running(torch.amax, -math.inf))
decomposition("cummin")(_running(torch.amin, math.inf))


@decomposition("sort")
def _sort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Each element goes to the place that the number of those before it says; a nan is above every number."""
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64)
    axis = dim % self.dim()
    x = self.to(torch.int8) if self.dtype is torch.bool else self
    mine, other = x.unsqueeze(axis + 1), x.unsqueeze(axis)
    low, high = (mine, other) if descending else (other, mine)
    ahead, alike = low < high, low == high
    if self.dtype.is_floating_point:
        ahead, alike = ahead | (high.isnan() & ~low.isnan()), alike | (high.isnan() & low.isnan())
    here = torch.arange(self.shape[axis])
    rest = [1] * (self.dim() - axis - 1)
    earlier = (here < here.unsqueeze(1)).reshape(self.shape[axis], self.shape[axis], *rest)
    place = (ahead | (alike & earlier)).sum(axis + 1)
    order = torch.zeros_like(place).scatter(axis, place, here.reshape(-1, *rest).expand(self.shape))
    return self.gather(axis, order), order


@decomposition("topk")
def _topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, ...]:
    values, places = torch.sort(self, dim=dim, descending=largest, stable=True)
    return (values.narrow(dim, 0, k), places.narrow(dim, 0, k)) if self.dim() else (values, places)


@decomposition("kthvalue")
def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, ...]:
    found = torch.sort(self, dim=dim, stable=True)
    if self.dim() == 0:
        return found
    picked = (t.narrow(dim, k - 1, 1) for t in found)
    return tuple(t if keepdim else t.squeeze(dim) for t in picked)


@decomposition("median.dim")
def _median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    """The lower one of two in the middle; the first nan, where there is one."""
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64)
    middle = torch.arange(1) + torch.scalar_tensor((self.shape[dim] - 1) // 2, dtype=torch.int64)
    found = [t.index_select(dim, middle) for t in torch.sort(self, dim=dim, stable=True)]
    if self.dtype.is_floating_point:
        top = torch.max(self, dim, keepdim=True)
        found = [torch.where(top[0].isnan(), t, m) for t, m in zip(top, found, strict=True)]
    return tuple(t if keepdim else t.squeeze(dim) for t in found)


@decomposition("median")
def _median_of_all(self: Tensor) -> Tensor:
    """That of nothing is nan; as one number more, it is behind all others, and not in the middle of them."""
    row, dtype = self.reshape(-1), self.dtype
    if isinstance(row.shape[0], int) and row.shape[0] > 0:
        return torch.median(row, 0)[0]
    last = math.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    middle = torch.arange(1) + torch.scalar_tensor((row.shape[0] - 1) // 2, dtype=torch.int64).clamp(min=0)
    found = torch.sort(torch.cat([row, row.new_full([1], last)]), stable=True)[0].index_select(0, middle)[0]
    if dtype.is_floating_point:
        return torch.where(row.isnan().any(), math.nan, found)
    return torch.where(torch.scalar_tensor(row.shape[0]) == 0, _nan_as(dtype), found)


def _nan_as(dtype: torch.dtype) -> int:
    """torch's nan as an integer, by x86's rule: the least of 32 and of 64 bits, of which narrower ones keep zeros."""
    return torch.iinfo(dtype).min if dtype.itemsize >= 4 else 0


@decomposition("var.correction")
def _var(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The squares of what is apart from the mean, over their number less the correction."""
    x = own(self)
    axes = [*range(self.dim())] if not dim and dim != 0 else [dim] if isinstance(dim, int) else [*dim]
    apart = x - x.mean(axes, keepdim=True)
    count = math.prod(self.shape[a] for a in axes if self.dim())
    correction = 1 if correction is None else correction
    less = torch.clamp(torch.scalar_tensor(count, dtype=x.dtype) - correction, min=0)
    if correction < 0:  # the variance of nothing is nan all the same
        less = less * torch.sym_min(count, 1)
    return (apart.square().sum(axes, keepdim=keepdim) / less).to(self.dtype)


@decomposition("std")
def _std(self: Tensor, *args: Any, **options: Any) -> Tensor:
    """In float64: of 2e19 the square is infinite in float32, and the deviation not."""
    return torch.var(self.double(), *args, **options).sqrt().to(self.dtype)


@decomposition("std_mean")
def _std_mean(self: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    variance, middle = torch.var_mean(self.double(), *args, **options)
    return variance.sqrt().to(self.dtype), middle.to(self.dtype)


@decomposition("_cdist_forward")
def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """torch's kernels count nan as nan, and pass it over in search of the largest gap."""
    gap = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 0 or gap.shape[-1] == 0:
        return gap.abs().ceil().clamp(max=1).sum(-1)
    if p == math.inf:
        gap = torch.where(gap.isnan(), 0.0, gap)
    distance: Tensor = torch.linalg.vector_norm(gap, p, dim=-1)
    return distance
