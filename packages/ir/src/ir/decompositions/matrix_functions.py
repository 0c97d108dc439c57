"""Functions of matrices: least squares, the pseudo-inverse and the exponential."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.jacobi import eigen, singular, symmetric
from ir.decompositions.linalg import identity, mH, real, real_type, squared, wide
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


@decomposition("linalg_lstsq")
def _lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The least solution by singular values, whatever driver; `gels` takes the matrix to have full rank."""
    a, right = wide(self), wide(b)
    rows, columns = a.shape[-2:]
    vector = right.dim() == a.dim() - 1 and right.shape == a.shape[:-1]
    right = right.unsqueeze(-1) if vector else right
    if _is_empty(a):
        s, kept = real(a).sum(-1), torch.zeros(a.shape[:-1], dtype=torch.bool)
        x = torch.zeros((*a.shape[:-2], columns, right.shape[-1]), dtype=a.dtype)
    else:
        u, s, v = singular(a)
        digits = torch.finfo(torch.float64 if driver == "gels" else self.dtype).eps
        ratio = digits * torch.sym_max(rows, columns) if rcond is None or driver == "gels" else rcond
        kept = s > ratio * s.narrow(-1, 0, 1)
        x = torch.matmul(v, torch.where(kept, 1 / s, 0.0).unsqueeze(-1) * torch.matmul(mH(u), right))
    none = torch.empty(0, dtype=real_type(self.dtype))
    residuals = squared(right - torch.matmul(a, x)).sum(-2) if driver == "gels" and rows > columns else none
    rank = none.to(torch.int64) if driver == "gels" else kept.sum(-1)
    values = s if driver in ("gelsd", "gelss") else none
    x = x.squeeze(-1) if vector else x
    return x.to(self.dtype), residuals.to(none.dtype), rank, values.to(none.dtype)


@decomposition("linalg_pinv.atol_rtol_tensor")
def _pinv(self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """By singular values; those of symmetric matrices are the magnitudes of eigenvalues."""
    x = wide(self)
    if _is_empty(x):
        return x.mT.to(self.dtype)
    if hermitian:
        values, left = eigen(symmetric(x))
        right = left
    else:
        left, values, right = singular(x)
    sizes = values.abs()
    default = torch.finfo(self.dtype).eps * torch.sym_max(x.shape[-2], x.shape[-1])
    if rtol is None:
        relative = default if atol is None else torch.where(atol > 0, 0.0, default).to(torch.float64).unsqueeze(-1)
    else:
        relative = rtol.to(torch.float64).unsqueeze(-1)
    bound = relative * sizes.amax(-1, keepdim=True)
    bound = bound if atol is None else torch.maximum(bound, atol.to(torch.float64).unsqueeze(-1))
    inverse = torch.where(sizes > bound, 1 / values, 0.0)
    return torch.matmul(right * inverse.unsqueeze(-2), mH(left)).to(self.dtype)


_TERMS = 18  # of the exponential's series: enough for float64 where no column sums to more than 1
_SQUARINGS = 48  # beyond 2**48 float64 has no digits left to scale


@decomposition("linalg_matrix_exp")
def _matrix_exp(self: Tensor) -> Tensor:
    """Halved until small, summed by Horner's rule, squared as often (Moler and Van Loan 2003, method 3).

    What is larger than can be halved so often gives nan.
    """
    x = wide(self)
    if _is_empty(x):
        return self.clone()
    largest = x.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = (torch.clamp(largest, min=1.0).log() / math.log(2)).ceil()
    x = x / torch.exp2(halvings)

    def term(i: Tensor, total: Tensor, x: Tensor) -> list[Tensor]:
        return [identity(x.shape[-1]).to(x.dtype) + torch.matmul(x, total) / (_TERMS - i).to(torch.float64)]

    def square(i: Tensor, total: Tensor, halvings: Tensor) -> list[Tensor]:
        return [torch.where(i < halvings, torch.matmul(total, total), total)]

    (total,) = repeat(_TERMS, term, [identity(x.shape[-1]).to(x.dtype).expand(x.shape)], x)
    (total,) = repeat(_SQUARINGS, square, [total], halvings)
    return torch.where(halvings > _SQUARINGS, math.nan, total).to(self.dtype)


@decomposition("addbmm")
def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    made: Tensor = alpha * torch.matmul(batch1, batch2).sum(0)
    return made if beta == 0 else beta * self + made


@decomposition("bilinear")
def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outputs, first, second = weight.shape
    by_first = weight.permute(1, 0, 2).reshape(first, outputs * second)
    rows = torch.matmul(input1, by_first).reshape([*input1.shape[:-1], outputs, second])
    made = (rows * input2.unsqueeze(-2)).sum(-1)
    return made if bias is None else made + bias


@decomposition("_int_mm")
def _int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    return torch.mm(self.to(torch.int32), mat2.to(torch.int32))
