"""What the factorizations are made of: rows and columns of whole batches of matrices, triangles, substitution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ir.decompositions.loops import repeat


def wide(x: Tensor) -> Tensor:
    """The matrices in float64 or complex128, which factorizations are computed in."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def real_type(dtype: torch.dtype) -> torch.dtype:
    """The element type of magnitudes."""
    return dtype.to_real() if dtype.is_complex else dtype


def real(x: Tensor) -> Tensor:
    """The real part."""
    return torch.real(x) if x.is_complex() else x


def conjugate(x: Tensor) -> Tensor:
    """The same, of a real tensor itself."""
    return x.conj() if x.is_complex() else x


def mH(x: Tensor) -> Tensor:
    """The matrices transposed and conjugated."""
    return conjugate(x.mT)


def squared(x: Tensor) -> Tensor:
    """The squares of magnitudes."""
    return torch.view_as_real(x).square().sum(-1) if x.is_complex() else x.square()


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    """0, 1, ... as a column beside the rows of the matrices, and as a row along their columns."""
    return torch.arange(x.shape[-2]).unsqueeze(-1), torch.arange(x.shape[-1])


def at(x: Tensor, k: Tensor, dim: int) -> Tensor:
    """The k-th row (dim -2) or column (-1), its axis kept."""
    return x.index_select(dim, k.reshape(1))


def least(x: Tensor) -> Any:
    """The number of columns or of rows, whichever is less."""
    return torch.sym_min(x.shape[-2], x.shape[-1])


def leading(x: Tensor, count: Any, dim: int) -> Tensor:
    """The first rows (dim -2) or columns (-1). A slice to a symbolic end would ask whether that is the size."""
    return x.narrow(dim, 0, count) if isinstance(count, int) else x.index_select(dim, torch.arange(count))


def identity(rows: Any, columns: Any = None) -> Tensor:
    """Ones on the diagonal."""
    columns = rows if columns is None else columns
    return (torch.arange(rows).unsqueeze(-1) == torch.arange(columns)).to(torch.float64)


def batched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the batch dimensions of the two."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def height(x: Tensor) -> Tensor:
    """What LAPACK compares pivots by: a magnitude, of a complex number the sum of those of its parts."""
    return torch.view_as_real(x).abs().sum(-1) if x.is_complex() else x.abs()


def first_failure(bad: Tensor) -> Tensor:
    """LAPACK's info: the first place of the last axis that is bad, counted from 1; 0 if none is."""
    if isinstance(bad.shape[-1], int) and bad.shape[-1] == 0:
        return torch.zeros(bad.shape[:-1], dtype=torch.int32)
    number = bad.to(torch.int32)
    return (number.argmax(-1).to(torch.int32) + 1) * number.amax(-1)


def exchanged(x: Tensor, k: Tensor, other: Tensor) -> Tensor:
    """The matrices with row `k` and row `other` exchanged; the latter is a place for each matrix, [..., 1, 1]."""
    here, _ = places(x)
    lower = x.gather(-2, other.expand(*x.shape[:-2], 1, x.shape[-1]))
    return torch.where(here == k, lower, torch.where(here == other, at(x, k, -2), x))


def substituted(a: Tensor, b: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """A^-1 B of triangular matrices by columns; what lies beyond the triangle is not read."""
    a, b = batched(a, b)
    size = a.shape[-1]

    def step(i: Tensor, x: Tensor, a: Tensor) -> list[Tensor]:
        k = size - 1 - i if upper else i
        here, _ = places(x)
        column = at(a, k, -1)
        found = at(x, k, -2) if unit else at(x, k, -2) / at(column, k, -2)
        ahead = here < k if upper else here > k
        return [torch.where(here == k, found, torch.where(ahead, x - column * found, x))]

    return repeat(size, step, [b], a)[0]
