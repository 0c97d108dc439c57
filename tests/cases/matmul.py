"""Products of matrices, and what linear algebra a model is likely to hold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .base import bf16, boolean, c64, f16, f32, f64, family, i32, i64, inf, mod, nan, row, u8

ODD_ROWS = [[1.0, nan, 0.0], [-0.0, 2.0, inf], [-inf, 0.0, 1.0]]


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 0.3 + 1


def ends(rows: int, groups: int = 3) -> torch.Tensor:
    """Where the groups of rows end: the second one is empty, the last one has what is left."""
    number = torch.arange(1, groups + 1)
    end = torch.where(number == groups, rows, torch.where(number == 2, 1, number) * rows // groups)
    return end.cummax(0).values.to(torch.int32)


class Readout(nn.Module):
    """DPT's: each token beside the one that stands for the whole, through one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole, tokens = x[:, :1], x[:, 1:]
        return self.layer(torch.cat((tokens, whole.expand_as(tokens)), -1))


CASES = family(
    __name__,
    mod("linear_of_a_repeated_part", Readout, f32("B", 7, 3)),
    row(
        "product_rounded_and_wide_again",
        lambda x: [f(x @ x.mT).to(t).double() for f in (torch.clone, _scaled) for t in (torch.float32, torch.float16)],
        f64("B", 3, 2),
    ),
    row("half_of_a_product_widened", lambda x: (x @ x.mT).half().double(), f64(2, 3)),
    row("half_of_a_sum_with_a_product_widened", lambda x: _scaled(x @ x.mT).half().double(), f64(2, 3)),
    row(
        "joined_repeated_rows",
        lambda x: (torch.inner(x.repeat(2, 1, 1), x), x.expand(2, *x.shape).reshape(-1, 2) @ torch.ones(2, 3)),
        f32("B", 2),
    ),
    row(
        "matrices_of_moved_axes_by_one",
        lambda x, w: (
            x.permute(1, 0, 2, 3).reshape(20, 2, 2) @ w,
            w.mT @ x.permute(1, 0, 2, 3).reshape(20, 2, 2),
            x.permute(1, 0, 2, 3).reshape(2, 10, 2, 2) @ w[0],
            x.double().permute(1, 0, 2, 3).reshape(20, 2, 2) @ w.double(),
        ),
        *(f32(5, 4, 2, 2), f32(1, 2, 9)),
    ),
    row("rows_of_pairs", lambda x: torch.cartesian_prod(x, x) @ torch.ones(2, 3), f32("B")),
    row("joined_repeated_rows_of_both", lambda x: torch.inner(x.repeat(2, 1, 1), x.repeat(2, 1, 1)), f32(3, 2)),
    row(
        "batch_moved_f16",
        lambda x: (
            x.transpose(1, 0) @ torch.ones(4, 5, dtype=x.dtype),
            x.permute(1, 2, 0) @ torch.ones(3, 2, dtype=x.dtype),
        ),
        f16(3, "B", 4),
    ),
    row("mm", lambda x, y: torch.mm(x, y), f32("B", 3), f32(3, 4)),
    row("bmm", lambda x, y: torch.bmm(x, y), f32("B", "S", 3), f32("B", 3, 4)),
    row(
        "products_of_masks_and_bytes",
        lambda m, u, x: (
            m.float() @ x,
            m.long() @ u.long(),
            u.float() @ x,
            x.mT @ u.double().float(),
            u.int() @ u.int(),
        ),
        *(boolean("B", 3, 3), u8("B", 3, 3), f32("B", 3, 4)),
    ),
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
    row("turned_before_cast", lambda x, y: x.transpose(0, 1).float() @ y, f16("B", 4, 5), f32(5, 3)),
    row("turned_before_cast_i64", lambda x, y: y @ x.transpose(0, 1).float(), i64("B", 4, 5), f32(2, "B")),
    row("turned_before_cast_4d", lambda x, y: x.permute(1, 2, 0, 3).float() @ y, f64(2, 4, "B", 5), f32(5, 3)),
    row("turned_before_reshape", lambda x, y: x.transpose(0, 1).reshape(4, 3, 5).float() @ y, f16(3, 4, 5), f32(5, 3)),
    row("turned_bfloat16", lambda x, y: x.transpose(0, 1) @ y, bf16("B", 4, 5), bf16(5, 3)),
    row("matmul_empty_inner", lambda x, y: x @ y, f32(2, 0), f32(0, 3)),
    row("matmul_empty_batch", lambda x, y: x @ y, f32(0, 2, 3), f32(3, 4)),
    row("matmul_f16", lambda x, y: x @ y, f16("B", 3), f16(3, 4)),
    row("matmul_bf16", lambda x, y: x @ y, bf16("B", 3), bf16(3, 4)),
    row("matmul_f64", lambda x, y: x @ y, f64("B", 3), f64(3, 4)),
    row("matmul_i32", lambda x, y: x @ y, i32("B", 3), i32(3, 4)),
    row("matmul_i64", lambda x, y: x @ y, i64("B", 3), i64(3, 4)),
    row("matmul_complex", lambda x, y: x @ y, c64("B", 3), c64(3, 4)),
    # groups of rows, of columns, and of what is summed over; one of the groups is empty
    row("grouped_mm", lambda x, y: torch._grouped_mm(x, y, offs=ends(x.shape[0])), f32("T", 4), f32(3, 4, 8)),
    row("grouped_mm_few_rows", lambda x, y: torch._grouped_mm(x, y, offs=ends(4)), f32(4, 4), f32(3, 4, 8)),
    row("grouped_mm_many_groups", lambda x, y: torch._grouped_mm(x, y, offs=ends(2, 40)), f32(2, 4), f32(40, 4, 8)),
    row("grouped_mm_blocks", lambda x, y: torch._grouped_mm(x, y, offs=ends(512)), f32(512, 4), f32(3, 4, 8)),
    row("grouped_mm_rows_behind", lambda x, y: torch._grouped_mm(x, y, offs=ends(5))[:5], f32("T", 4), f32(3, 4, 8)),
    row("grouped_mm_bf16", lambda x, y: torch._grouped_mm(x, y, offs=ends(x.shape[0])), bf16("T", 8), bf16(3, 8, 8)),
    row("grouped_mm_columns", lambda x, y: torch._grouped_mm(x, y, offs=ends(8)), f32(3, "S", 4), f32(4, 8)),
    row("grouped_mm_inner", lambda x, y: torch._grouped_mm(x, y, offs=ends(8)), f32(4, 8), f32(8, 4)),
    row("grouped_mm_of_pairs", lambda x, y: torch._grouped_mm(x, y), f32("B", 4, 8), f32("B", 8, 4)),
    row("dot", lambda x, y: torch.dot(x, y), f32("S"), f32("S")),
    row("dot_int", lambda x, y: torch.dot(x, y), i64(4), i64(4)),
    row("mv", lambda x, y: torch.mv(x, y), f32("B", 3), f32(3)),
    row("mv_transposed", lambda x, y: (torch.mv(x.t(), y), x.abs().t() @ y, y @ x), f32(3, 4), f32(3)),
    row("mv_transposed_batch", lambda x, y: (x.mT @ y, (x.mT * 2).flip(0) @ y), f32(2, 3, 4), f32(3)),
    row("mv_transposed_f64", lambda x, y: torch.mv(x.t(), y), f64(3, 4), f64(3)),
    row("mv_transposed_f16", lambda x, y: torch.mv(x.t(), y), f16(3, 4), f16(3)),
    row("outer", lambda x, y: torch.outer(x, y), f32("B"), f32("N")),
    row("outer_promotes", lambda x, y: torch.outer(x, y), f16("B"), i64("N")),
    row("outer_of_a_mask", lambda x, y: torch.outer(x > 0, y), f32("B"), i64("N")),
    row("inner", lambda x, y: torch.inner(x, y), f32("B", 3), f32(4, 3)),
    row("kron", lambda x, y: torch.kron(x, y), f32("B", 3), f32(2, "N")),
    row("kron_of_ranks", lambda x, y: torch.kron(x, y), f32("B"), i64(2, 1, "N")),
    row("chain_matmul", lambda x, y, z: torch.linalg.multi_dot([x, y, z]), f32("B", 3), f32(3, "N"), f32("N", 2)),
    row("chain_of_fixed_sizes", lambda x, y, z: torch.chain_matmul(x, y, z, y), f32(2, 3), f32(3, 4), f32(4, 3)),
    row("chain_of_vectors", lambda x, y: torch.linalg.multi_dot([x[0], y, y.mT, x[0]]), f32("B", 3), f32(3, "N")),
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
    row("addbmm", lambda c, x, y: torch.addbmm(c, x, y, alpha=0.5), f32(2, 4), f32("B", 2, 3), f32("B", 3, 4)),
    row("addr", lambda c, x, y: torch.addr(c, x, y, beta=2), f32("B", 4), f32("B"), f32(4)),
    row("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y), f32("B", 1, 4), f32("B", 2, 3), f32("B", 3, 4)),
    row(
        "baddbmm_alpha_beta",
        lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2),
        *(f32("B", "S", 4), f32("B", "S", 3), f32("B", 3, 4)),
    ),
    row("linear_vectors", lambda x, w: (F.linear(x[0], w), F.linear(x, w)), f32("B", 3), f32(3)),
    row("linear", lambda x, w, b: F.linear(x, w, b), f32("B", 3), f32(4, 3), f32(4)),
    row("linear_of_itself", lambda x: F.linear(x.expand(1, *x.shape), x), f32("B", 3)),
    row("linear_no_bias", lambda x, w: F.linear(x, w), f32("B", 3), f32(4, 3)),
    row("linear_1d", lambda x, w, b: F.linear(x, w, b), f32(3), f32(4, 3), f32(4)),
    row("linear_4d", lambda x, w, b: F.linear(x, w, b), f32("B", 2, "S", 3), f32(4, 3), f32(4)),
    mod("linear_module", lambda: nn.Linear(3, 4), f32("B", "S", 3)),
    mod("linear_square", lambda: nn.Linear(3, 3), f32("B", 3)),  # a forgotten transpose would not fail on shape
    mod("linear_f16", lambda: nn.Linear(3, 4).half(), f16("B", 3)),
    mod("bilinear", lambda: nn.Bilinear(3, 4, 2), f32("B", 3), f32("B", 4)),
    mod("mlp", lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), f32("B", 3)),
    row("einsum_promotes", lambda x, y: torch.einsum("bi,bi->bi", x, y), f16("B", 3), f32("B", 3)),
    row("einsum_mm", lambda x, y: torch.einsum("bi,ij->bj", x, y), f32("B", 3), f32(3, 4)),
    row(
        "einsum_attention",
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        f32("B", 2, "S", 3),
        f32("B", 2, "T", 3),
    ),
    row("einsum_transpose", lambda x: torch.einsum("bij->bji", x), f32("B", "S", 3)),
    row("einsum_diagonal", lambda x: torch.einsum("bii->bi", x), f32("B", 3, 3)),
    row("einsum_diagonals", lambda x, y: torch.einsum("bii,iji->bj", x, y), f32("B", 3, 3), f32(3, 4, 3)),
    row("einsum_diagonal_cut", lambda x: torch.einsum("ii->i", x)[1:].prod(), i64(3, 3)),
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
    row(
        "einsum_of_one_and_many",
        lambda x, y, z: (
            [torch.einsum(e, x, y) for e in ("bij,bij->bi", "bij,bik->bjk", "bij,bij->bj")]
            + [torch.einsum("b...ij,...jk->b...ik", x, z), torch.einsum("bij,kj->i", x, z)]
        ),
        f32("B", 4, 1),
        f32("B", 4, 5),
        f32(1, 5),
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
    row("outer_of_integers_and_floats", lambda x, y: torch.outer(x, y), i32(3), f32(4)),
    row("outer_of_two_types", lambda x, y: torch.outer(x, y), f32(3), u8(4)),
    row("trace_beside_nan", lambda x: torch.trace(x), f32(value=[[1.0, nan], [inf, 2.0], [-inf, nan]])),
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
    row("turned_no_batch", lambda x: x[:0].relu().transpose(-1, -2) @ torch.ones(x.shape[-2], 2), f32(2, 1, 3, 4)),
    row("fft", lambda x: torch.fft.fft(x), f32("B", 8)),
    row("rfft_abs", lambda x: torch.fft.rfft(x).abs(), f32("B", 8)),
    row("fft_complex", lambda x: torch.fft.fft(x, n=12, dim=0, norm="ortho"), c64(9, "B")),
    row("fft_prime", lambda x: torch.fft.fft(x, n=7), c64("B", 9)),
    row("fft_long", lambda x: torch.fft.fft(x), f32("B", 1000)),
    row("fft_dynamic", lambda x: torch.fft.fft(x), f32(2, "H")),
    row("rfft_ortho_dynamic", lambda x: torch.fft.rfft(x, norm="ortho").abs(), f32(2, "H")),
    row("rfft_irfft_dynamic", lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[1]), f32(2, "H")),
    row("fft2_ifft2", lambda x: torch.fft.ifft2(torch.fft.fft2(x) * 2).real, f32("B", 6, 5)),
    row("rfftn_irfftn", lambda x: torch.fft.irfftn(torch.fft.rfftn(x), s=(6, 5)), f32("B", 6, 5)),
    row("irfft_odd", lambda x: torch.fft.irfft(x, n=9, norm="forward"), c64("B", 5)),
    row("irfft_long", lambda x: torch.fft.irfft(x, n=1000), c64("B", 501)),
    row("hfft_ihfft", lambda x: torch.fft.ihfft(torch.fft.hfft(x, n=8)), c64("B", 5)),
    row(
        "fftshift",
        lambda x: torch.fft.ifftshift(torch.fft.fftshift(torch.fft.fft(x), dim=-1) * 2, dim=-1).abs(),
        f32("B", 8),
    ),
    row("fnet", lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, f32("B", "S", 8)),
    row("stft", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), f32("B", 64)),
    row(
        "stft_short_window",
        lambda x: torch.stft(
            x,
            16,
            win_length=12,
            window=torch.hann_window(12),
            center=False,
            normalized=True,
            onesided=False,
            return_complex=True,
        ).abs(),
        f32(64),
    ),
    row(
        "stft_istft",
        lambda x: torch.istft(
            torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True),
            16,
            4,
            window=torch.hann_window(16),
            length=64,
        ),
        f32("B", 64),
    ),
    row("einsum_complex", lambda x, y: torch.einsum("bi,ij->bj", x, y), c64("B", 3), c64(3, 4)),
    row("conv_complex", lambda x, w: torch.nn.functional.conv1d(x, w, padding=1), c64("B", 2, 9), c64(3, 2, 3)),
    row("addmm_complex", lambda x, y, z: torch.addmm(z, x, y, alpha=2, beta=0.5), c64("B", 3), c64(3, 4), c64(4)),
    row("solve_complex", lambda x, y: torch.linalg.solve(x @ x.mH + 3 * torch.eye(3), y), c64(2, 3, 3), c64(2, 3)),
    row("inv_complex", lambda x: torch.linalg.inv(x @ x.mH + 3 * torch.eye(3)), c64("B", 3, 3)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row("odd_matmul", lambda x, y: (x @ y, F.linear(y, x)), f32(value=ODD_ROWS), f32(3, 3)),
    row(
        "odd_addmm",
        lambda c, x, y: (torch.addmm(c, x, y), torch.baddbmm(c, x[None], y[None])),
        *(f32(value=[[nan, inf, -0.0]]), f32("B", 3), f32(3, 3)),
    ),
    row(
        "odd_addmm_dropped",
        lambda c, x, y: torch.addmm(c, x, y, beta=0),
        f32(value=[nan, inf, 1.0]),
        f32("B", 3),
        f32(3, 3),
    ),
    row("empty_linear", lambda x, w, b: (F.linear(x, w, b), torch.addmm(b, x, w.mT)), f32(0, 3), f32(4, 3), f32(4)),
    row(
        "empty_inner_bias",
        lambda x, y, b: (torch.addmm(b, x, y), torch.bmm(x[None], y[None])),
        f32(2, 0),
        f32(0, 3),
        f32(3),
    ),
    row("empty_linear_rank_3", lambda x, w, b: F.linear(x, w, b) + 1, f32(3, 0, 1), f32(4, 1), f32(4)),
    row("empty_einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), f32(0, 2, 3), f32(0, 3, 4)),
    row("size_one_batch", lambda x, y: (x @ y, y.mT @ x.mT), f32("B", 1, 3, 4), f32(1, 2, 4, 1)),
    row("size_one_vectors", lambda x, y: (x @ y, torch.dot(x, y), torch.outer(x, y)), f32(1), f32(1)),
)
