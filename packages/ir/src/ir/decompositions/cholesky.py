"""Triangular systems, and Cholesky's factors of positive definite matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ir.decompositions.linalg import at, first_failure, identity, mH, places, real, substituted, wide
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition


@decomposition("linalg_solve_triangular")
def _solve_triangular(self: Tensor, B: Tensor, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    a, b = wide(self), wide(B)
    if left:
        return substituted(a, b, upper, unitriangular).to(self.dtype)
    return substituted(a.mT, b.mT, not upper, unitriangular).mT.to(self.dtype)


@decomposition("triangular_solve")
def _triangular_solve(
    self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    a = wide(A)
    x = substituted(a.mT if transpose else a, wide(self), upper != transpose, unitriangular)
    return x.to(self.dtype), A.clone()


def _factor(x: Tensor) -> Tensor:
    """L with L L^H = x by outer products; what lies above the diagonal of x is not read."""

    def step(k: Tensor, a: Tensor) -> list[Tensor]:
        row, column = places(a)
        this = at(a, k, -1)
        this = torch.where(row >= k, this / real(at(this, k, -2)).sqrt(), 0.0)
        a = torch.where(column > k, a - this * mH(this), a)
        return [torch.where((column == k) & (row >= k), this, a)]

    return repeat(x.shape[-1], step, [x])[0].tril()


@decomposition("linalg_cholesky_ex")
def _cholesky_ex(self: Tensor, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """A matrix that is not positive definite gives nan, where torch raises."""
    lower = _factor(wide(self))
    positive = real(lower.diagonal(dim1=-2, dim2=-1)) > 0
    return (mH(lower) if upper else lower).to(self.dtype), first_failure(~positive)


@decomposition("cholesky")
def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """Of the triangle that it gives, where linalg_cholesky reads the lower one."""
    return mH(_factor(mH(wide(self)))).to(self.dtype) if upper else _factor(wide(self)).to(self.dtype)


def _solve(factor: Tensor, b: Tensor, upper: bool) -> Tensor:
    """The inverse of the matrix that has this factor, times B."""
    lower = mH(factor) if upper else factor
    return substituted(mH(lower), substituted(lower, b, upper=False), upper=True)


@decomposition("cholesky_solve", "_cholesky_solve_helper")
def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    return _solve(wide(input2), wide(self), upper).to(self.dtype)


@decomposition("cholesky_inverse")
def _cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    return _solve(wide(self), identity(self.shape[-1]).to(wide(self).dtype), upper).to(self.dtype)
