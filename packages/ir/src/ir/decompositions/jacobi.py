"""Eigenvalues of Hermitian matrices and singular values by Jacobi's rotations.

A step turns half as many pairs of axes as there are at once, each axis being in one pair; after n - 1 steps each axis
has met each other one (R. Brent and F. Luk, 1985). The signs of the vectors are free, here as in LAPACK.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.householder import columns_of_q, factored
from ir.decompositions.linalg import conjugate, identity, leading, least, mH, real, real_type, squared, wide
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition


@functools.cache
def _tournament(size: int) -> tuple[tuple[int, ...], ...]:
    """For each round and axis its partner; itself for the one that is left over where the number is odd."""
    even = size + size % 2
    rounds = []
    for r in range(even - 1):
        around = [even - 1, *((r + i) % (even - 1) for i in range(even - 1))]
        partner = dict(zip(around, _opposite(around), strict=True))
        rounds.append(tuple(p if partner[p] >= size else partner[p] for p in range(size)))
    return tuple(rounds)


def _opposite(around: list[int]) -> list[int]:
    """The first meets the second, and the rest from both ends."""
    first, second, *rest = around
    return [second, first, *rest[::-1]]


def _sweeps(size: int) -> int:
    """Enough for 1e-9 where half of the eigenvalues are equal, or each a part of the one before: random ones need half.

    There convergence is quadratic at the end; equal eigenvalues in places apart leave it linear.
    """
    return 4 + 2 * math.ceil(math.log2(size))


def _rotation(here: Tensor, there: Tensor, between: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine for each axis: of the diagonal's elements and the one beside them that becomes 0."""
    place = torch.arange(partner.shape[0])
    mirrored = conjugate(between.index_select(-1, partner))
    between = torch.where(place > partner, mirrored, between)  # one number for both
    size = between.abs()
    none = (size == 0) | (place == partner)
    ratio = (there - here) / torch.where(none, 1.0, 2 * size)
    tangent = 1 / (ratio.abs() + (1 + ratio * ratio).sqrt())
    tangent = torch.where((ratio < 0) | ((ratio == 0) & (place > partner)), -tangent, tangent)
    tangent = torch.where(none, 0.0, tangent)
    cosine = 1 / (1 + tangent * tangent).sqrt()
    return cosine, tangent * cosine * between.sgn()


def _turned(x: Tensor, across: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The columns turned with those of their partners."""
    return x * cosine.unsqueeze(-2) - across * conjugate(sine).unsqueeze(-2)


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


def _in_rounds(turn: Any, state: list[Tensor], size: int) -> list[Tensor]:
    """Every pair of axes turned, in so many sweeps: `turn(partner, *state)`."""
    if size < 2:
        return state
    table = torch.tensor(_tournament(size))
    count = len(table)

    def step(i: Tensor, *operands: Tensor) -> list[Tensor]:
        *state, table = operands
        turned: list[Tensor] = turn(table.index_select(0, torch.remainder(i, count).reshape(1)).reshape(-1), *state)
        return turned

    return repeat(_sweeps(size) * count, step, state, table)


# -- Hermitian matrices ------------------------------------------------------------------------------------------------


def _turn_both(partner: Tensor, a: Tensor, *vectors: Tensor) -> list[Tensor]:
    across, diagonal = a.index_select(-1, partner), real(_diagonal(a))
    rotation = _rotation(diagonal, diagonal.index_select(-1, partner), _diagonal(across), partner)
    a = mH(_turned(a, across, *rotation))
    a = _turned(a, a.index_select(-1, partner), *rotation)
    return [a, *(_turned(v, v.index_select(-1, partner), *rotation) for v in vectors)]


def symmetric(a: Tensor, upper: bool = False) -> Tensor:
    """The Hermitian matrices that have this triangle."""
    half = a.triu(1) if upper else a.tril(-1)
    return half + mH(half) + torch.diag_embed(real(_diagonal(a))).to(a.dtype)


def eigenvalues(a: Tensor) -> Tensor:
    """The eigenvalues of Hermitian matrices, ascending."""
    (a,) = _in_rounds(_turn_both, [a], _static(a.shape[-1]))
    return real(_diagonal(a)).sort()[0]


def eigen(a: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and eigenvectors."""
    size = _static(a.shape[-1])
    a, v = _in_rounds(_turn_both, [a, identity(size).to(a.dtype).expand(a.shape)], size)
    values, order = real(_diagonal(a)).sort()
    return values, _columns(v, order)


def _columns(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(-1, order.unsqueeze(-2).expand(x.shape))


def _static(size: Any) -> int:
    if not isinstance(size, int):
        raise NotImplementedError("matrices whose size is only known at run time")
    return size


@decomposition("_linalg_eigh")
def _eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    a = symmetric(wide(A), UPLO.upper() == "U")
    values, vectors = eigen(a) if compute_v else (eigenvalues(a), torch.empty(0))
    return values.to(real_type(A.dtype)), vectors.to(A.dtype)


# -- singular values ---------------------------------------------------------------------------------------------------


def _turn_columns(partner: Tensor, a: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Until columns are orthogonal (M. Hestenes, 1958)."""
    across, lengths = a.index_select(-1, partner), squared(a).sum(-2)
    rotation = _rotation(lengths, lengths.index_select(-1, partner), (conjugate(a) * across).sum(-2), partner)
    return [_turned(a, across, *rotation), *(_turned(v, v.index_select(-1, partner), *rotation) for v in vectors)]


def _completed(x: Tensor, count: Any) -> Tensor:
    """So many orthonormal columns: those of `x`, in the place of zeros and behind them any."""
    a, factors = factored(x)
    q = columns_of_q(a, factors, count)
    turned = torch.where(real(_diagonal(a)) < 0, -1.0, 1.0).to(torch.float64)
    more = count - turned.shape[-1]
    turned = torch.cat([turned, torch.ones((*turned.shape[:-1], more), dtype=torch.float64)], -1) if more else turned
    return q * turned.unsqueeze(-2)


def _wider(a: Tensor) -> bool:
    """True where the columns are more than the rows, or a number that is not known."""
    rows, columns = a.shape[-2:]
    return isinstance(rows, int) and (not isinstance(columns, int) or rows < columns)


def _lengths(a: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the columns as a row, descending, and which columns they are of."""
    lengths, order = squared(a).sum(-2).sqrt().sort(descending=True)
    return lengths.unsqueeze(-2), order


def singular_values(a: Tensor) -> Tensor:
    """The singular values, descending."""
    a = mH(a) if _wider(a) else a
    (image,) = _in_rounds(_turn_columns, [a], _static(a.shape[-1]))
    return leading(_lengths(image)[0], least(a), -1).squeeze(-2)


def singular(a: Tensor, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of A = U S V^H."""
    if _wider(a):
        v, s, u = singular(mH(a), full)
        return u, s, v
    size, count = _static(a.shape[-1]), least(a)  # beyond the least singular values are 0
    image, v = _in_rounds(_turn_columns, [a, identity(size).to(a.dtype).expand(*a.shape[:-2], size, size)], size)
    s, order = _lengths(image)
    image, v = _columns(image, order), _columns(v, order)
    u = _completed(image / torch.where(s == 0, 1.0, s), a.shape[-2] if full else count)
    return u, leading(s, count, -1).squeeze(-2), v if full else leading(v, count, -1)


@decomposition("_linalg_svd")
def _svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if not compute_uv:
        none = torch.empty(0, dtype=A.dtype)
        return none, singular_values(wide(A)).to(real_type(A.dtype)), none
    u, s, v = singular(wide(A), full_matrices)
    return u.to(A.dtype), s.to(real_type(A.dtype)), mH(v).to(A.dtype)
