"""Gauss' elimination with partial pivoting, as LAPACK's getrf: LU, systems of equations, inverses, determinants."""

from __future__ import annotations

import torch
from torch import Tensor

from ir.decompositions.linalg import (
    at,
    batched,
    exchanged,
    first_failure,
    height,
    identity,
    leading,
    least,
    mH,
    places,
    real_type,
    substituted,
    wide,
)
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition


def eliminated(a: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """L below and U on the diagonal of the first `count` columns, and the row (from 0) that each step took.

    Columns beyond these are eliminated as well: of `[A | B]` they become `L^-1 P^T B`.
    """

    def step(k: Tensor, a: Tensor, pivots: Tensor) -> list[Tensor]:
        row, column = places(a)
        best = torch.where(row >= k, height(at(a, k, -1)), -1.0).argmax(-2, keepdim=True)
        a = exchanged(a, k, best)
        first, below = at(a, k, -2), row > k
        pivot = at(first, k, -1)
        factor = torch.where(below, at(a, k, -1) / torch.where(pivot == 0, 1.0, pivot), 0.0)
        a = torch.where(below & (column == k), factor, a - factor * torch.where(column > k, first, 0.0))
        return [a, torch.where(torch.arange(pivots.shape[-1]) == k, best.squeeze(-1), pivots)]

    start = torch.zeros((*a.shape[:-2], count), dtype=torch.int64)
    lu, pivots = repeat(count, step, [a, start])
    return lu, pivots


def _diagonal(lu: Tensor) -> Tensor:
    return lu.diagonal(dim1=-2, dim2=-1)


def _permuted(x: Tensor, pivots: Tensor, backwards: bool) -> Tensor:
    """The rows exchanged step by step: P^T X, or P X from the last step to the first."""
    count = pivots.shape[-1]

    def step(i: Tensor, x: Tensor, pivots: Tensor) -> list[Tensor]:
        k = count - 1 - i if backwards else i
        return [exchanged(x, k, at(pivots, k, -1).unsqueeze(-1))]

    return repeat(count, step, [x], pivots)[0]


# -- factors -----------------------------------------------------------------------------------------------------------


def _permutation(pivots: Tensor, rows: int) -> Tensor:
    """P with A = P L U."""
    return _permuted(identity(rows).expand(*pivots.shape[:-1], rows, rows), pivots, backwards=True)


def _triangles(lu: Tensor) -> tuple[Tensor, Tensor]:
    """L with ones on its diagonal, and U."""
    count = least(lu)
    left, right = leading(lu, count, -1), leading(lu, count, -2)
    row, column = places(left)
    return torch.where(row == column, 1.0, left.tril(-1)).to(lu.dtype), right.triu()


@decomposition("linalg_lu_factor_ex")
def _lu_factor(A: Tensor, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise NotImplementedError("pivot=False")
    lu, pivots = eliminated(wide(A), least(A))
    return lu.to(A.dtype), (pivots + 1).to(torch.int32), first_failure(_diagonal(lu) == 0)


@decomposition("linalg_lu")
def _lu(A: Tensor, pivot: bool = True) -> tuple[Tensor, ...]:
    if not pivot:
        raise NotImplementedError("pivot=False")
    lu, pivots = eliminated(wide(A), least(A))
    return tuple(x.to(A.dtype) for x in (_permutation(pivots, A.shape[-2]), *_triangles(lu)))


@decomposition("lu_unpack")
def _lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, ...]:
    none = torch.empty(0, dtype=LU_data.dtype)
    p = _permutation(LU_pivots.to(torch.int64) - 1, LU_data.shape[-2]).to(LU_data.dtype) if unpack_pivots else none
    return (p, *(_triangles(LU_data) if unpack_data else (none, none)))


# -- systems of equations ----------------------------------------------------------------------------------------------


def solved(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A^-1 B, and the factors and exchanges of A."""
    size = a.shape[-1]
    if torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) != a.shape[:-2]:  # each is eliminated once
        lu, pivots = eliminated(a, size)
        return _with_factors(lu, pivots, b), lu, pivots
    done, pivots = eliminated(torch.cat(batched(a, b), -1), size)
    lu = done[..., :size]
    return substituted(lu, done[..., size:], upper=True), lu, pivots


def _with_factors(lu: Tensor, pivots: Tensor, b: Tensor, turned: bool = False) -> Tensor:
    """A^-1 B, or the same of A^H, from the factors and exchanges of A."""
    lu, b = batched(lu, b)
    pivots = pivots.expand(*b.shape[:-2], -1)
    if turned:
        x = substituted(mH(lu), substituted(mH(lu), b, upper=False), upper=True, unit=True)
        return _permuted(x, pivots, backwards=True)
    return substituted(lu, substituted(lu, _permuted(b, pivots, backwards=False), upper=False, unit=True), upper=True)


@decomposition("linalg_inv_ex")
def _inv(A: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    inverse, lu, _ = solved(wide(A), identity(A.shape[-1]).to(wide(A).dtype))
    return inverse.to(A.dtype), first_failure(_diagonal(lu) == 0)


@decomposition("_linalg_solve_ex")
def _solve(A: Tensor, B: Tensor, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    a, b = wide(A), wide(B)
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    x, lu, pivots = solved(a, b) if left else solved(a.mT, b.mT)
    x = x if left else x.mT
    x = x.squeeze(-1) if vector else x
    return x.to(A.dtype), lu.to(A.dtype), (pivots + 1).to(torch.int32), first_failure(_diagonal(lu) == 0)


@decomposition("linalg_lu_solve")
def _lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, left: bool = True, adjoint: bool = False) -> Tensor:
    lu, b, exchanges = wide(LU), wide(B), pivots.to(torch.int64) - 1
    x = _with_factors(lu, exchanges, b, adjoint) if left else mH(_with_factors(lu, exchanges, mH(b), not adjoint))
    return x.to(LU.dtype)


# -- determinants ------------------------------------------------------------------------------------------------------


def _sign(pivots: Tensor) -> Tensor:
    """-1 to the number of exchanges."""
    return torch.where(pivots == torch.arange(pivots.shape[-1]), 1.0, -1.0).to(torch.float64).prod(-1)


@decomposition("_linalg_det")
def _det(A: Tensor) -> tuple[Tensor, ...]:
    lu, pivots = eliminated(wide(A), A.shape[-1])
    result = _sign(pivots) * _diagonal(lu).prod(-1)
    return result.to(A.dtype), lu.to(A.dtype), (pivots + 1).to(torch.int32)


@decomposition("_linalg_slogdet")
def _slogdet(A: Tensor) -> tuple[Tensor, ...]:
    lu, pivots = eliminated(wide(A), A.shape[-1])
    diagonal = _diagonal(lu)
    sign = _sign(pivots) * diagonal.sgn().prod(-1)
    return (
        sign.to(A.dtype),
        diagonal.abs().log().sum(-1).to(real_type(A.dtype)),
        lu.to(A.dtype),
        (pivots + 1).to(torch.int32),
    )
