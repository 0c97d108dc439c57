"""Linear algebra and the matrices to try it on: random, singular and empty ones, batches. For all targets' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ir

L = torch.linalg


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


SQUARE, TALL, WIDE = _random(2, 3, 5, 5), _random(2, 3, 5, 3), _random(2, 3, 3, 5)
SIDES = _random(2, 3, 5, 2)
REGULAR = SQUARE + 3 * torch.eye(5)
POSITIVE = SQUARE @ SQUARE.mT + torch.eye(5)
PERMUTED = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]
SINGULAR = torch.tensor([[0.0, 1, 2], [0, 3, 4], [0, 1, 1]], dtype=torch.float64)
ONE, NONE = _random(1, 1), _random(2, 0, 0)

BLOCKS = (SQUARE + SQUARE.mT) * (1 - torch.eye(5))  # nothing on the diagonal: pivots of two rows
PROJECTION = (lambda q: q @ q.mT)(L.qr(_random(7, 3))[0])


def _eigh(a: Tensor) -> tuple[Tensor, ...]:
    """What is free of the vectors' signs: values, the matrix again and V^H V."""
    values, v = L.eigh(a)
    return values, (v * values.unsqueeze(-2)) @ v.mH, v.mH @ v


def _svd(a: Tensor, full: bool = False) -> tuple[Tensor, ...]:
    u, s, v = L.svd(a, full_matrices=full)
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2)) @ v[..., :k, :], u.mH @ u, v @ v.mH


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "solve": (L.solve, (SQUARE, SIDES)),
    "solve_vector": (L.solve, (SQUARE[0, 0], SIDES[0, 0, :, 0])),
    "solve_vectors": (L.solve, (SQUARE, SIDES[..., 0])),
    "solve_many_sides": (L.solve, (SQUARE[0, 0], SIDES)),
    "solve_many_matrices": (L.solve, (SQUARE, SIDES[0, 0])),
    "solve_crossed_batches": (L.solve, (SQUARE[:, :1], SIDES[:1])),
    "solve_right": (lambda a, b: L.solve(a, b.mT, left=False), (SQUARE, SIDES)),
    "inv": (L.inv, (SQUARE,)),
    "inv_of_30": (L.inv, (_random(30, 30),)),
    "inv_of_1": (L.inv, (ONE,)),
    "inv_of_0": (L.inv, (NONE,)),
    "inv_of_no_matrices": (L.inv, (SQUARE[:0, 0],)),
    "inv_ex_info": (lambda a: L.inv_ex(a)[1], (torch.stack([SINGULAR, SINGULAR + torch.eye(3)]),)),
    "det": (L.det, (SQUARE,)),
    "det_of_0": (L.det, (NONE,)),
    "det_singular": (L.det, (SINGULAR,)),
    "slogdet": (L.slogdet, (SQUARE,)),
    "slogdet_singular": (L.slogdet, (SINGULAR,)),
    "logdet": (torch.logdet, (SQUARE,)),
    "lu": (L.lu, (SQUARE,)),
    "lu_tall": (L.lu, (TALL,)),
    "lu_wide": (L.lu, (WIDE,)),
    "lu_permuted": (L.lu, (PERMUTED,)),
    "lu_singular": (L.lu, (SINGULAR,)),
    "lu_of_0": (L.lu, (NONE,)),
    "lu_factor_ex": (L.lu_factor_ex, (torch.stack([SINGULAR, SINGULAR + torch.eye(3)]),)),
    "lu_unpack": (lambda a: torch.lu_unpack(*L.lu_factor(a)), (WIDE,)),
    "lu_solve": (lambda a, b: L.lu_solve(*L.lu_factor(a), b), (SQUARE, SIDES)),
    "lu_solve_adjoint": (lambda a, b: L.lu_solve(*L.lu_factor(a), b, adjoint=True), (SQUARE, SIDES)),
    "lu_solve_right": (lambda a, b: L.lu_solve(*L.lu_factor(a), b.mT, left=False), (SQUARE, SIDES)),
    "triangle_upper": (lambda a, b: L.solve_triangular(a, b, upper=True), (REGULAR, SIDES)),
    "triangle_lower_right": (lambda a, b: L.solve_triangular(a, b.mT, upper=False, left=False), (REGULAR, SIDES)),
    "triangle_unit": (lambda a, b: L.solve_triangular(a, b, upper=False, unitriangular=True), (SQUARE, SIDES)),
    "triangle_transposed": (lambda a, b: torch.triangular_solve(b, a, True, True)[0], (REGULAR, SIDES)),
    "cholesky": (L.cholesky, (POSITIVE,)),
    "cholesky_upper": (lambda a: L.cholesky(a, upper=True), (POSITIVE,)),
    "cholesky_of_triangle": (lambda a: torch.cholesky(a.triu(), upper=True), (POSITIVE,)),
    "cholesky_of_0": (L.cholesky, (NONE,)),
    "cholesky_ex_info": (lambda a: L.cholesky_ex(a)[1], (torch.stack([SINGULAR, torch.eye(3).double()]),)),
    "cholesky_solve": (torch.cholesky_solve, (SIDES, REGULAR)),
    "cholesky_solve_upper": (lambda b, a: torch.cholesky_solve(b, a, upper=True), (SIDES, REGULAR)),
    "cholesky_inverse": (torch.cholesky_inverse, (REGULAR,)),
    "geqrf": (torch.geqrf, (TALL,)),
    "geqrf_wide": (torch.geqrf, (WIDE,)),
    "geqrf_nothing_to_reflect": (torch.geqrf, (torch.stack([REGULAR[0, 0].triu(), -torch.eye(5).double()]),)),
    "geqrf_of_1": (torch.geqrf, (ONE,)),
    "qr": (L.qr, (SQUARE,)),
    "qr_tall": (L.qr, (TALL,)),
    "qr_wide": (L.qr, (WIDE,)),
    "qr_complete": (lambda a: L.qr(a, "complete"), (TALL,)),
    "qr_complete_wide": (lambda a: L.qr(a, "complete"), (WIDE,)),
    "qr_r": (lambda a: L.qr(a, "r"), (TALL,)),
    "qr_of_0": (L.qr, (NONE,)),
    "householder_product": (lambda a: L.householder_product(*torch.geqrf(a)), (TALL,)),
    "householder_product_of_some": (L.householder_product, (TALL, TALL[..., 0, :2])),
    **{
        f"ormqr{'_left' * left}{'_transposed' * transposed}": (
            lambda a, t, c, left=left, transposed=transposed: torch.ormqr(a, t, c if left else c.mT, left, transposed),
            (SQUARE[..., :3], TALL[..., 0, :], SIDES),
        )
        for left in (True, False)
        for transposed in (True, False)
    },
    "eigvalsh": (L.eigvalsh, (SQUARE,)),
    "eigvalsh_upper": (lambda a: L.eigvalsh(a, "U"), (SQUARE,)),
    "eigvalsh_of_1": (L.eigvalsh, (ONE,)),
    "eigvalsh_of_0": (L.eigvalsh, (NONE,)),
    "eigvalsh_singular": (L.eigvalsh, (SINGULAR,)),
    "eigh": (_eigh, (SQUARE,)),
    "eigh_equal": (_eigh, (PROJECTION,)),
    "eigh_of_1": (_eigh, (ONE,)),
    "svdvals": (L.svdvals, (TALL,)),
    "svdvals_of_0": (L.svdvals, (NONE,)),
    "svd": (_svd, (SQUARE,)),
    "svd_tall": (_svd, (TALL,)),
    "svd_wide": (_svd, (WIDE,)),
    "svd_tall_full": (lambda a: _svd(a, True), (TALL,)),
    "svd_wide_full": (lambda a: _svd(a, True), (WIDE,)),
    "svd_singular": (_svd, (SINGULAR,)),
    "svd_of_zeros": (_svd, (torch.zeros(3, 4, dtype=torch.float64),)),
    "svd_equal": (_svd, (PROJECTION,)),
    "svd_of_1": (_svd, (ONE,)),
    "pinv": (L.pinv, (TALL,)),
    "pinv_wide": (L.pinv, (WIDE,)),
    "pinv_singular": (L.pinv, (SINGULAR,)),
    "pinv_of_0": (L.pinv, (NONE,)),
    "pinv_hermitian": (lambda a: L.pinv(a, hermitian=True), (PROJECTION - 0.5 * PROJECTION[:1].T @ PROJECTION[:1],)),
    "pinv_tolerance": (lambda a: L.pinv(a, atol=0.5, rtol=0.3), (SQUARE,)),
    "pinv_tolerances": (lambda a, t: L.pinv(a, atol=t), (SQUARE[0], torch.tensor([0.0, 0.5, 2]).double())),
    "pinverse": (torch.pinverse, (SQUARE,)),
    "matrix_rank": (L.matrix_rank, (torch.stack([SINGULAR, SINGULAR + torch.eye(3), 0 * SINGULAR]),)),
    "matrix_rank_hermitian": (lambda a: L.matrix_rank(a, hermitian=True), (PROJECTION,)),
    "cond": (L.cond, (SQUARE,)),
    "cond_nuclear": (lambda a: L.cond(a, "nuc"), (SQUARE,)),
    "norm_nuclear": (lambda a: L.matrix_norm(a, "nuc"), (TALL,)),
    "norm_spectral": (lambda a: L.matrix_norm(a, 2), (TALL,)),
    "norm_least": (lambda a: L.matrix_norm(a, -2), (TALL,)),
    "matrix_exp": (torch.matrix_exp, (SQUARE,)),
    "matrix_exp_large": (torch.matrix_exp, (torch.stack([SINGULAR, -30 * POSITIVE[0, 0, :3, :3]]),)),
    "matrix_exp_of_1": (torch.matrix_exp, (ONE,)),
    "matrix_exp_of_0": (torch.matrix_exp, (NONE,)),
    "ldl_factor_ex": (L.ldl_factor_ex, (SQUARE + SQUARE.mT,)),
    "ldl_factor_blocks": (L.ldl_factor_ex, (BLOCKS,)),
    "ldl_factor_of_1": (L.ldl_factor_ex, (ONE,)),
    "ldl_factor_of_0": (L.ldl_factor_ex, (NONE,)),
    "ldl_factor_info": (L.ldl_factor_ex, (torch.stack([0 * SINGULAR, torch.eye(3).double()]),)),
    "ldl_solve": (lambda a, b: L.ldl_solve(*L.ldl_factor(a), b), (SQUARE + SQUARE.mT, SIDES)),
    "ldl_solve_blocks": (lambda a, b: L.ldl_solve(*L.ldl_factor(a), b), (BLOCKS, SIDES)),
    "lstsq": (lambda a, b: L.lstsq(a, b), (TALL, SIDES)),
    "lstsq_wide": (lambda a, b: L.lstsq(a, b[..., :3, :]), (WIDE, SIDES)),
    "lstsq_vector": (lambda a, b: L.lstsq(a, b)[0], (TALL, SIDES[..., 0])),
    "lstsq_singular": (lambda a: L.lstsq(a, a, driver="gelsd"), (SINGULAR,)),  # gelsy reads memory that nothing set
    "lstsq_full_rank": (lambda a, b: L.lstsq(a, b, driver="gels"), (TALL, SIDES)),
    "lstsq_values": (lambda a, b: L.lstsq(a, b, driver="gelsd"), (SQUARE, SIDES)),
    "lstsq_of_0": (L.lstsq, (NONE, NONE)),
}

COMPLEX = [
    "solve_right", "inv_of_1", "det", "slogdet", "lu_tall", "lu_solve_adjoint", "lu_solve_right", "cholesky_upper",
    "cholesky_solve", "qr", "qr_complete", "geqrf", "ormqr_transposed", "eigvalsh", "eigh_equal", "svd_tall_full",
    "svd_wide", "pinv", "ldl_factor_ex", "lstsq", "matrix_exp",
]  # fmt: skip

SINGLE = ["solve", "lu", "cholesky", "qr", "eigh", "svd", "pinv", "ldl_factor_ex", "lstsq", "matrix_exp"]
BATCHES = [
    "solve",
    "inv",
    "det",
    "lu",
    "lu_solve_adjoint",
    "cholesky_solve",
    "qr_tall",
    "eigvalsh",
    "svd_wide",
    "lstsq",
]


def check(name: str, target: str, dtype: torch.dtype = torch.float64, digits: float = 1e-9) -> None:
    """The function's program against torch."""
    function, args = CASES[name]
    given = tuple(a.to(dtype) for a in args)
    program = ir.export(lambda *x: function(*x), given, target=target)
    _compare(program(*given), function(*given), digits)


def check_complex(name: str, target: str) -> None:
    """With imaginary parts that keep what the matrices are: Hermitian, positive, regular."""
    function, args = CASES[name]
    given = tuple(_turned(a) for a in args)
    program = ir.export(lambda *x: function(*x), given, target=target)
    _compare(program(*given), function(*given), 1e-9)


def _turned(a: Tensor) -> Tensor:
    """The rows and columns of the matrices times numbers on the unit circle."""
    row, column = (torch.polar(torch.ones(n), torch.arange(n) * 1.3).to(torch.complex128) for n in a.shape[-2:])
    return row.unsqueeze(-1) * a * column.conj()


def check_batch(name: str, target: str) -> None:
    """A batch whose size is known at run time alone."""
    function, args = CASES[name]
    shapes = ({0: torch.export.Dim("n")},) * len(args)
    program = ir.export(lambda *x: function(*x), args, target=target, dynamic_shapes=(shapes,))
    for given in (args, tuple(torch.cat([a, a, a]) for a in args), tuple(a[:1] for a in args)):
        _compare(program(*given), function(*given), 1e-9)


def _compare(actual: Any, expected: Any, digits: float) -> None:
    results = [x if isinstance(x, (tuple, list)) else (x,) for x in (actual, expected)]
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e, rtol=digits, atol=digits, equal_nan=True)
