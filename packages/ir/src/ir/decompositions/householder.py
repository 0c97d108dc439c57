"""Householder's reflections as LAPACK keeps them: vectors below the diagonal, their factors beside. QR by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ir.decompositions.linalg import at, conjugate, identity, leading, least, mH, places, real, squared, wide
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition


def factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """R on and above the diagonal, the reflections below it, and their factors: LAPACK's geqrf."""
    count = least(a)

    def step(k: Tensor, a: Tensor, factors: Tensor) -> list[Tensor]:
        row, column = places(a)
        this = at(a, k, -1)
        below, head = torch.where(row > k, this, 0.0), at(this, k, -2)
        rest = squared(below).sum(-2, keepdim=True)
        length = (rest + squared(head)).sqrt()
        none = (rest == 0) & (head == real(head))  # nothing to reflect
        beta = torch.where(none, head, torch.where(real(head) < 0, length, -length))
        safe = torch.where(none, 1.0, beta)
        factor = torch.where(none, 0.0, (safe - head) / safe)
        below = below / torch.where(none, 1.0, head - safe)
        v = torch.where(row == k, 1.0, below)
        turned = a - conjugate(factor) * v * torch.matmul(mH(v), a)
        kept = torch.where(row < k, this, torch.where(row == k, beta, below))
        a = torch.where(column > k, turned, torch.where(column == k, kept, a))
        return [a, torch.where(torch.arange(factors.shape[-1]) == k, factor.squeeze(-1), factors)]

    start = torch.zeros((*a.shape[:-2], count), dtype=a.dtype)
    a, factors = repeat(count, step, [a, start])
    return a, factors


def reflected(a: Tensor, factors: Tensor, x: Tensor, last_first: bool) -> Tensor:
    """H_1 ... H_k X for the k reflections in `a`, or the adjoint of that product, which starts with the first."""
    count = factors.shape[-1]

    def step(i: Tensor, x: Tensor, a: Tensor, factors: Tensor) -> list[Tensor]:
        k = count - 1 - i if last_first else i
        row, _ = places(a)
        v = torch.where(row == k, 1.0, torch.where(row > k, at(a, k, -1), 0.0))
        factor = at(factors, k, -1).unsqueeze(-1)
        factor = factor if last_first else conjugate(factor)
        return [x - factor * v * torch.matmul(mH(v), x)]

    return repeat(count, step, [x], a, factors)[0]


def columns_of_q(a: Tensor, factors: Tensor, count: Any) -> Tensor:
    """The first columns of the product of the reflections."""
    start = identity(a.shape[-2], count).to(a.dtype).expand(*a.shape[:-1], count)
    return reflected(a, factors, start, last_first=True)


@decomposition("geqrf")
def _geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    a, factors = factored(wide(self))
    return a.to(self.dtype), factors.to(self.dtype)


@decomposition("linalg_qr")
def _qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    a, factors = factored(wide(A))
    r = (a if mode == "complete" else leading(a, least(a), -2)).triu().to(A.dtype)
    if mode == "r":
        return torch.empty(0, dtype=A.dtype), r
    return columns_of_q(a, factors, A.shape[-2] if mode == "complete" else least(a)).to(A.dtype), r


@decomposition("linalg_householder_product")
def _householder_product(input: Tensor, tau: Tensor) -> Tensor:
    return columns_of_q(wide(input), wide(tau), input.shape[-1]).to(input.dtype)


@decomposition("ormqr")
def _ormqr(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Q C, Q^H C, C Q or C Q^H; from the right as (Q^H C^H)^H."""
    a, factors, c = wide(self), wide(input2), wide(input3)
    if left:
        return reflected(a, factors, c, last_first=not transpose).to(self.dtype)
    return mH(reflected(a, factors, mH(c), last_first=transpose)).to(self.dtype)
