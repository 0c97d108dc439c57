"""Products of matrices, and what linear algebra a model is likely to hold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .base import bf16, c64, f16, f32, f64, family, i32, i64, mod, row

CASES = family(
    __name__,
    row("mm", lambda x, y: torch.mm(x, y), f32("B", 3), f32(3, 4)),
    row("bmm", lambda x, y: torch.bmm(x, y), f32("B", "S", 3), f32("B", 3, 4)),
    row("matmul_1d_1d", lambda x, y: x @ y, f32("S"), f32("S")),
    row("matmul_1d_2d", lambda x, y: x @ y, f32(3), f32(3, "N")),
    row("matmul_2d_1d", lambda x, y: x @ y, f32("B", 3), f32(3)),
    row("matmul_1d_3d", lambda x, y: x @ y, f32(3), f32("B", 3, 4)),
    row("matmul_3d_1d", lambda x, y: x @ y, f32("B", "S", 3), f32(3)),
    row("matmul_2d_3d", lambda x, y: x @ y, f32(4, 3), f32("B", 3, 5)),
    row("matmul_3d_2d", lambda x, y: x @ y, f32("B", "S", 3), f32(3, 4)),
    row("matmul_3d_3d", lambda x, y: x @ y, f32("B", "S", 3), f32("B", 3, "T")),
    row("matmul_broadcast_one", lambda x, y: x @ y, f32("B", 2, "S", 3), f32(1, 2, 3, 4)),
    row("matmul_broadcast_rank", lambda x, y: x @ y, f32("B", 2, "S", 3), f32(2, 3, 4)),
    row("matmul_broadcast_both", lambda x, y: x @ y, f32("B", 1, 2, 3), f32(5, 3, 4)),
    row("matmul_transposed", lambda x, y: x @ y.transpose(-1, -2), f32("B", 2, "S", 3), f32("B", 2, "T", 3)),
    row("matmul_empty_inner", lambda x, y: x @ y, f32(2, 0), f32(0, 3)),
    row("matmul_empty_batch", lambda x, y: x @ y, f32(0, 2, 3), f32(3, 4)),
    row("matmul_f16", lambda x, y: x @ y, f16("B", 3), f16(3, 4)),
    row("matmul_bf16", lambda x, y: x @ y, bf16("B", 3), bf16(3, 4)),
    row("matmul_f64", lambda x, y: x @ y, f64("B", 3), f64(3, 4)),
    row("matmul_i32", lambda x, y: x @ y, i32("B", 3), i32(3, 4)),
    row("matmul_i64", lambda x, y: x @ y, i64("B", 3), i64(3, 4)),
    row("matmul_complex", lambda x, y: x @ y, c64("B", 3), c64(3, 4)),
    row("dot", lambda x, y: torch.dot(x, y), f32("S"), f32("S")),
    row("dot_int", lambda x, y: torch.dot(x, y), i64(4), i64(4)),
    row("mv", lambda x, y: torch.mv(x, y), f32("B", 3), f32(3)),
    row("outer", lambda x, y: torch.outer(x, y), f32("B"), f32("N")),
    row("inner", lambda x, y: torch.inner(x, y), f32("B", 3), f32(4, 3)),
    # torch itself fixes the sizes of kron and of a chain, whose order of multiplication depends on them.
    row("kron", lambda x, y: torch.kron(x, y), f32(4, 3), f32(2, 2)),
    row("chain_matmul", lambda x, y, z: torch.linalg.multi_dot([x, y, z]), f32(2, 3), f32(3, 4), f32(4, 2)),
    row("cross", lambda x, y: torch.linalg.cross(x, y), f32("B", 3), f32("B", 3)),
    row("vecdot", lambda x, y: torch.linalg.vecdot(x, y), f32("B", 3), f32("B", 3)),
    row("addmm", lambda c, x, y: torch.addmm(c, x, y), f32(4), f32("B", 3), f32(3, 4)),
    row(
        "addmm_alpha_beta",
        lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2),
        f32(4),
        f32("B", 3),
        f32(3, 4),
    ),
    row("addmm_column", lambda c, x, y: torch.addmm(c, x, y), f32("B", 1), f32("B", 3), f32(3, 4)),
    row("addmm_beta_zero", lambda c, x, y: torch.addmm(c, x, y, beta=0), f32(4), f32("B", 3), f32(3, 4)),
    row("addmv", lambda c, x, y: torch.addmv(c, x, y, beta=2, alpha=3), f32("B"), f32("B", 3), f32(3)),
    row(
        "addbmm", lambda c, x, y: torch.addbmm(c, x, y, alpha=0.5), f32(2, 4), f32("B", 2, 3), f32("B", 3, 4)
    ),
    row("addr", lambda c, x, y: torch.addr(c, x, y, beta=2), f32("B", 4), f32("B"), f32(4)),
    row("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y), f32("B", 1, 4), f32("B", 2, 3), f32("B", 3, 4)),
    row(
        "baddbmm_alpha_beta",
        lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2),
        *(f32("B", "S", 4), f32("B", "S", 3), f32("B", 3, 4)),
    ),
    row("linear", lambda x, w, b: F.linear(x, w, b), f32("B", 3), f32(4, 3), f32(4)),
    row("linear_no_bias", lambda x, w: F.linear(x, w), f32("B", 3), f32(4, 3)),
    row("linear_1d", lambda x, w, b: F.linear(x, w, b), f32(3), f32(4, 3), f32(4)),
    row("linear_4d", lambda x, w, b: F.linear(x, w, b), f32("B", 2, "S", 3), f32(4, 3), f32(4)),
    mod("linear_module", lambda: nn.Linear(3, 4), f32("B", "S", 3)),
    mod(
        "linear_square", lambda: nn.Linear(3, 3), f32("B", 3)
    ),  # a forgotten transpose would not fail on shape
    mod("linear_f16", lambda: nn.Linear(3, 4).half(), f16("B", 3)),
    mod("bilinear", lambda: nn.Bilinear(3, 4, 2), f32("B", 3), f32("B", 4)),
    mod("mlp", lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), f32("B", 3)),
    row("einsum_mm", lambda x, y: torch.einsum("bi,ij->bj", x, y), f32("B", 3), f32(3, 4)),
    row(
        "einsum_attention",
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        f32("B", 2, "S", 3),
        f32("B", 2, "T", 3),
    ),
    row("einsum_transpose", lambda x: torch.einsum("bij->bji", x), f32("B", "S", 3)),
    row("einsum_diagonal", lambda x: torch.einsum("bii->bi", x), f32("B", 3, 3)),
    row("einsum_trace", lambda x: torch.einsum("ii->", x), f32(3, 3)),
    row("einsum_sum", lambda x: torch.einsum("bij->b", x), f32("B", 2, 3)),
    row("einsum_outer", lambda x, y: torch.einsum("i,j->ij", x, y), f32("B"), f32("N")),
    row("einsum_ellipsis", lambda x, y: torch.einsum("...i,ij->...j", x, y), f32("B", "S", 3), f32(3, 4)),
    row(
        "einsum_three",
        lambda x, y, z: torch.einsum("bi,ij,bj->b", x, y, z),
        f32("B", 3),
        f32(3, 4),
        f32("B", 4),
    ),
    row("einsum_implicit", lambda x, y: torch.einsum("ij,jk", x, y), f32("B", 3), f32(3, 4)),
    row("tensordot", lambda x, y: torch.tensordot(x, y, dims=2), f32("B", 3, 4), f32(3, 4, 5)),
    row(
        "tensordot_axes",
        lambda x, y: torch.tensordot(x, y, dims=([1, 2], [1, 0])),
        *(f32("B", 3, 4), f32(4, 3, 5)),
    ),
    row("matrix_power", lambda x: torch.linalg.matrix_power(x, 3), f32("B", 3, 3)),
    row("trace", lambda x: torch.trace(x), f32(3, 4)),
    # what there is little hope for outside torch
    row("det", lambda x: torch.linalg.det(x), f32("B", 3, 3)),
    row("inv", lambda x: torch.linalg.inv(x + 4 * torch.eye(3)), f32("B", 3, 3, low=-1, high=1)),
    row(
        "solve",
        lambda x, y: torch.linalg.solve(x + 4 * torch.eye(3), y),
        f32("B", 3, 3, low=-1),
        f32("B", 3, 2),
    ),
    row("cholesky", lambda x: torch.linalg.cholesky(x @ x.mT + 3 * torch.eye(3)), f32("B", 3, 3)),
    row("svdvals", lambda x: torch.linalg.svdvals(x), f32("B", 3, 4)),
    row("fft", lambda x: torch.fft.fft(x), f32("B", 8)),
    row("rfft_abs", lambda x: torch.fft.rfft(x).abs(), f32("B", 8)),
)
