"""L D L^T of symmetric matrices with pivots of one or two rows (Bunch and Kaufman, 1977), as LAPACK's sytf2 keeps them.

Matrices of one batch take blocks of different sizes: a step that finds its row in the block before does nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ir.decompositions.linalg import at, batched, height, places, wide
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition

_ALPHA = (1 + math.sqrt(17)) / 8  # of the choice between one and two rows


def _exchanged(x: Tensor, k: Tensor, other: Tensor) -> Tensor:
    """The matrices with two rows exchanged, each of them a place for each matrix, [..., 1, 1]."""
    row, _ = places(x)
    order = torch.where(row == k, other, torch.where(row == other, k, row))
    return x.gather(-2, order.expand(x.shape))


def _element(column: Tensor, place: Tensor) -> Tensor:
    """That of a column at a place for each matrix."""
    return column.gather(-2, place.expand(*column.shape[:-2], 1, 1))


def _pivot(a: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row to exchange with, whether the block has two rows, and whether the column has nothing but zeros."""
    row, _ = places(a)
    column = height(at(a, k, -1))
    here = at(column, k, -2)
    below = torch.where(row > k, column, -1.0)
    place = below.argmax(-2, keepdim=True)
    largest = torch.clamp(below.amax(-2, keepdim=True), min=0.0)
    other = height(a.gather(-1, place.expand(*a.shape[:-1], 1)))
    beside = torch.where((row >= k) & (row != place), other, 0.0).amax(-2, keepdim=True)
    none = torch.maximum(here, largest) == 0
    stays = none | (here >= _ALPHA * largest) | (here * beside >= _ALPHA * largest * largest)
    two = ~stays & (_element(other, place) < _ALPHA * beside)
    return torch.where(stays, k, place), two, none


def _block(first: Tensor, second: Tensor, b1: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers times the inverse of a block of two rows, given as its diagonal over the number beside."""
    scale = 1 / (first * second - 1)
    return scale * (second * b1 - b2), scale * (first * b2 - b1)


def _safe(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, x)


def _factor_step(k: Tensor, a: Tensor, ld: Tensor, pivots: Tensor, info: Tensor, done: Tensor) -> list[Tensor]:
    """One row, or two; `done` is 1 where the step before took this one too."""
    row, column = places(a)
    last = a.shape[-1] - 1
    skip = done.unsqueeze(-1).unsqueeze(-1) > 0
    other, two, none = _pivot(a, k)
    kk = torch.where(two, k + 1, k)
    turned = _exchanged(_exchanged(a, kk, other).mT, kk, other)
    following = torch.clamp(k + 1, max=last)
    c1, c2 = at(turned, k, -1), at(turned, following, -1)
    d1, d2, beside = at(c1, k, -2), at(c2, following, -2), _safe(at(c1, following, -2))
    beside = torch.where(two, beside, 1.0)
    w1, w2 = _block(torch.where(two, d1 / beside, 2.0), torch.where(two, d2 / beside, 2.0), c1 / beside, c2 / beside)
    rest = row > kk
    l1 = torch.where(rest, torch.where(two, w1, c1 / _safe(d1)), 0.0)
    l2 = torch.where(rest & two, w2, 0.0)
    left = turned - l1 * c1.mT - l2 * c2.mT
    new = torch.where(column == k, torch.where((row >= k) & (row <= kk), c1, l1), ld)
    new = torch.where((column == k + 1) & two, torch.where(row == kk, c2, l2), new)
    number = torch.where(two, -1 - other, other + 1).squeeze(-1)
    place = torch.arange(a.shape[-1])
    taken = (place == k) | ((place == k + 1) & two.squeeze(-1))
    failed = none.squeeze(-1).squeeze(-1) & (info == 0)
    skips = skip.squeeze(-1)
    return [
        torch.where(skip, a, left),
        torch.where(skip, ld, new),
        torch.where(taken & ~skips, number, pivots),
        torch.where(failed & (done == 0), k + 1, info),
        torch.where(done > 0, 0, two.squeeze(-1).squeeze(-1).to(torch.int64)),
    ]


def _refuse_hermitian(x: Tensor, hermitian: bool) -> None:
    if hermitian and x.is_complex():
        raise NotImplementedError("Hermitian matrices")


@decomposition("linalg_ldl_factor_ex")
def _ldl_factor(self: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Tensor, ...]:
    _refuse_hermitian(self, hermitian)
    a = wide(self).tril()
    a = a + a.tril(-1).mT
    numbers = torch.zeros(a.shape[:-1], dtype=torch.int64)
    batch = torch.zeros(a.shape[:-2], dtype=torch.int64)
    start = [a, torch.zeros_like(a), numbers, batch, batch]
    _, ld, pivots, info, _ = repeat(a.shape[-1], _factor_step, start)
    return ld.to(self.dtype), pivots.to(torch.int32), info.to(torch.int32)


def _down(k: Tensor, x: Tensor, done: Tensor, ld: Tensor, pivots: Tensor) -> list[Tensor]:
    """One step of D^-1 L^-1 B."""
    row, _ = places(x)
    pivot = at(pivots, k, -2)
    skip = done > 0
    two = (pivot < 0) & ~skip
    kk = torch.where(two, k + 1, k)
    turned = torch.where(skip, x, _exchanged(x, kk, pivot.abs() - 1))
    following = torch.clamp(k + 1, max=x.shape[-2] - 1)
    c1, c2 = at(ld, k, -1), at(ld, following, -1)
    b1, b2 = at(turned, k, -2), at(turned, following, -2)
    taken = torch.where(two, c1 * b1 + c2 * b2, c1 * b1)
    d1, d2 = at(c1, k, -2), at(c2, following, -2)
    beside = torch.where(two, at(c1, following, -2), 1.0)
    w1, w2 = _block(torch.where(two, d1 / beside, 2.0), torch.where(two, d2 / beside, 2.0), b1 / beside, b2 / beside)
    made = torch.where(row > kk, turned - taken, turned)
    made = torch.where(row == k, torch.where(two, w1, b1 / d1), made)
    made = torch.where((row == k + 1) & two, w2, made)
    return [torch.where(skip, x, made), two.to(torch.int64)]


def _up(i: Tensor, x: Tensor, done: Tensor, ld: Tensor, pivots: Tensor) -> list[Tensor]:
    """One step of L^-T B, from the last row on."""
    row, _ = places(x)
    k = x.shape[-2] - 1 - i
    pivot = at(pivots, k, -2)
    skip = done > 0
    two = (pivot < 0) & ~skip
    before = torch.clamp(k - 1, min=0)
    below = torch.where(row > k, x, 0.0)
    c1, c2 = (torch.where(row > k, at(ld, place, -1), 0.0) for place in (k, before))
    made = torch.where(row == k, x - (c1 * below).sum(-2, keepdim=True), x)
    made = torch.where((row == k - 1) & two, x - (c2 * below).sum(-2, keepdim=True), made)
    made = _exchanged(made, k.expand(pivot.shape), pivot.abs() - 1)
    return [torch.where(skip, x, made), two.to(torch.int64)]


@decomposition("linalg_ldl_solve")
def _ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    _refuse_hermitian(LD, hermitian)
    ld, x = batched(wide(LD), wide(B))
    exchanges = pivots.to(torch.int64).unsqueeze(-1).expand(*x.shape[:-1], 1)
    start = torch.zeros((*x.shape[:-2], 1, 1), dtype=torch.int64)
    x, _ = repeat(x.shape[-2], _down, [x, start], ld, exchanges)
    x, _ = repeat(x.shape[-2], _up, [x, start.clone()], ld, exchanges)
    return x.to(B.dtype)
