"""Dynamic dimensions that are 0 or 1 at run time, against torch: where torch computes, so does the export, alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ir
from onnx_backend.runtime import session
from tests.cases.base import Case, Spec, f16, f32, i64, mod, row

Sizes = dict[str, int]
TRACED: Sizes = {"B": 3, "S": 5, "H": 11, "W": 13}
TABLE = f32("B", "S")


def layers() -> nn.Module:
    """A small network of images: convolutions, pools, a norm, a head."""
    parts = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        return self.lstm(x, (hidden, cell))


class Attending(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)[0]


ROWS = [
    row("mean", lambda x: (x.mean(1), x.mean(0, keepdim=True), x.mean()), TABLE),
    row(
        "cross_entropy",
        lambda x: F.cross_entropy(x.view(-1, 5), x.new_zeros(x.shape[0], dtype=torch.int64)),
        f32("B", 5),
    ),
    row("assign_own", lambda x: x.clone().index_put_((x[:, 0] > 0,), x[x[:, 0] > 0] * 2), f32("B", 5)),
    row("mean_f16", lambda x: x.mean(1), f16("B", "S", low=3e4, high=6e4)),
    row("mean_dims", lambda x: x.mean((-1, -2)), f32(2, "H", "W")),
    row("sum", lambda x: (x.sum(1), x.sum(), x.nansum(0), x.prod(1), x.prod()), TABLE),
    row("var", lambda x: (x.var(1), x.std(0), x.var(), x.std(1, correction=0), x.var(0, correction=2)), TABLE),
    row("var_mean", lambda x: (torch.var_mean(x, 1), torch.std_mean(x, 0, correction=0)), TABLE),
    row("cov", lambda x: x.T.cov(), f32("B", 3)),
    row("transform", lambda x: torch.view_as_real(torch.fft.fft(x, dim=0, norm="ortho")), f32("B", 4)),
    row("grid", lambda x, t: F.affine_grid(t, [1, 1, x.shape[0], 4], align_corners=True), f32("B"), f32(1, 2, 3)),
    row("norm", lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1, dim=0), x.norm(p=3, dim=1), x.norm(p=0, dim=1)), TABLE),
    row("logsumexp", lambda x: (x.logsumexp(1), x.logsumexp(0)), TABLE),
    row("any_all", lambda x: ((x > 0).any(1), (x > 0).all(0), (x > 0).all(), x.count_nonzero(1)), TABLE),
    row("amax", lambda x: (x.amax(1), x.amin(1), x.max(1)), f32("B", 3)),
    row("argmax", lambda x: (x.argmax(1), x.argmin(1)), f32("B", 3)),
    row("median", lambda x: (x.median(), x.nanmedian()), TABLE),
    row("median_dim", lambda x: x.median(1), f32("B", 3)),
    row("softmax", lambda x: (x.softmax(1), x.log_softmax(1)), f32("B", 3)),
    row("cumsum", lambda x: (x.cumsum(0), x.cumsum(1)), TABLE),
    row("cumprod", lambda x: (x.cumprod(0), x.cumprod(1)), TABLE),
    row("logcumsumexp", lambda x: (x.logcumsumexp(0), x.logcumsumexp(1)), TABLE),
    row("cummax", lambda x: (x.cummax(0), x.cummin(1)), TABLE),
    row("sort", lambda x: (x.sort(1), x.argsort(0, descending=True)), TABLE),
    row("topk", lambda x: x.topk(2, dim=1), f32("B", 3)),
    row("matmul", lambda x: (x @ x.T, x.T @ x), TABLE),
    row("matmul_batch", lambda x, y: x @ y, f32("B", "S", 4), f32("B", 4, "S")),
    row("linear", lambda x, w: F.linear(x, w), f32("B", "S", 4), f32(3, 4)),
    row("cat", lambda x: (torch.cat([x, x], 1), torch.cat([x, x]), torch.stack([x, x], 1)), TABLE),
    row("broadcast", lambda x, y: (x + y, x * y[:, :1], torch.where(x > 0, x, y)), TABLE, TABLE),
    row("reshape", lambda x: (x.reshape(-1), x.T.reshape(-1), x.repeat(2, 3), x.flip(0), F.pad(x, (1, 2))), TABLE),
    row("reversed", lambda x: (x[torch.arange(x.shape[0] - 1, -1, -1)], torch.arange(x.shape[0], 0, -2)), TABLE),
    row("from_the_end", lambda x: x[torch.arange(-x.shape[0], 0)], TABLE),
    row(
        "split_at",
        lambda x: (x.tensor_split([-1]), x.tensor_split([1, 2], 1), x.tensor_split(torch.tensor([2, 1]))),
        TABLE,
    ),
    row("roll", lambda x: (x.roll(3, 0), x.roll((1, -4), (0, 1))), TABLE),
    row("roll_all", lambda x: x.roll(3), f32("B", 5)),
    row("diagonal", lambda x: (x.diagonal(), x.T.diagonal(1), x.diagonal(-1)), TABLE),
    row("diagonal_of_column", lambda x: (x.diagonal(), x.T.diagonal(), x.diagonal(1)), f32("B", 1)),
    row("diagonal_scatter", lambda x: x.diagonal_scatter(x.diagonal() + 1), f32("B", 1)),
    row("diagonal_scatter_ones", lambda x: x.diagonal_scatter(torch.ones_like(x.diagonal())), f32("B", 1)),
    row("repeated", lambda x, n: (x.repeat_interleave(n, 0), x.repeat_interleave(n[None], 1)), TABLE, i64(value=2)),
    row("variance_of_slices", lambda x: torch.cat([x, x, x[:1]]).var((0, 1), correction=3), TABLE),
    row("variance_of_few", lambda x: (x.var(-1, correction=-1), x.std(0), x.var(correction=0.5)), TABLE),
    row("unique", lambda x: torch.unique(x, return_inverse=True, return_counts=True), f32("B", 3)),
    row(
        "unique_consecutive",
        lambda x: torch.unique_consecutive(x.round(), return_inverse=True, return_counts=True),
        f32("B", 3),
    ),
    row("trapezoid", lambda x: (torch.trapezoid(x, dim=0), torch.trapezoid(x, dx=2)), TABLE),
    row("divided_nothing", lambda x: (x[:, 1:] // (x * 0), x[:, 1:] % (x * 0), x[:, 1:].fmod(x * 0)), i64("B", 1)),
    row("pooled", lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool1d(x[:, 0], 1)), f32(2, 3, "H", "W")),
    row("conv_of_nothing", lambda x, w: F.conv_transpose2d(x, w, padding=1), f32(2, 1, 1, 2), f32(1, 2, 2, 2)),
    row("matmul_vector", lambda x, v: (x @ v, v @ x.T, x.T @ x[:, 0]), f32("B", 4), f32(4)),
    row("matmul_spread", lambda x, y: (x @ y[None], x[:, None] @ y, y.mT @ x.mT), f32("B", 3, 4), f32(4, 5)),
    row("matmul_left", lambda x, y: (y @ x, y[0] @ x, y[None] @ x), f32("B", 4, 3), f32(5, 4)),
    row("matmul_turned", lambda x: x.transpose(0, 1) * 0.5 @ x.permute(1, 2, 0), f32("B", 3, 4)),
    *(  # what turns the batch stands before, and onnxruntime brings it to the product
        row(f"matmul_turned_{name}", lambda x, f=fn: (lambda v: (v @ v.mT, v))(f(x.transpose(0, 1))), f32("B", 3, 4))
        for name, fn in {
            "softshrink": F.softshrink,
            "swish": F.silu,
            "summed": lambda x: x + x.exp(),
            "chosen": lambda x: torch.where(x > 0, x, x.exp()),
            "joined": lambda x: torch.cat([x, x], 2),
            "softmax": lambda x: (x * x.sigmoid()).softmax(-1).relu(),
            "twice": lambda x: (x.transpose(0, 2) * x.transpose(0, 2).cos()).transpose(0, 2).sin(),
            "spread": lambda x: (x * x.sigmoid())[None].squeeze(0),
            "double": lambda x: (x * x.sigmoid()).double(),
        }.items()
    ),
    row("matmul_turned_f64", lambda x: x.permute(1, 2, 0).double() @ x.transpose(0, 1).double(), f32("B", 3, 4)),
    row("matmul_turned_i64", lambda x: (x.transpose(0, 1) @ x.permute(1, 2, 0), x.sum(0)), i64("B", 3, 4)),
    row("einsum", lambda x: torch.einsum("bij,bkj->bik", x, x), f32("B", 3, "S")),
    row("masked", lambda x: (x[x > 0], (x > 0).nonzero(), x.masked_fill(x > 0, 1)), TABLE),
    row("gather", lambda x, i: (x[i], x.index_select(0, i), F.embedding(i, x)), f32(4, 3), i64("B", low=0, high=4)),
    row("scatter", lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "amax"), TABLE),
    row("layer_norm", lambda x: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,))), f32("B", "S", 4)),
    row("losses", lambda x: (F.mse_loss(x, x * 2), F.l1_loss(x, x * 2), F.smooth_l1_loss(x, x * 2)), TABLE),
    row("attention", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), f32("B", 2, "S", 8)),
    row("interpolate", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), f32("B", 2, "H", "W")),
    mod("layers", layers, f32("B", 3, "H", "W")),
    mod("group_norm", lambda: nn.GroupNorm(2, 4), f32("B", 4, "S")),
    mod("conv1d", lambda: nn.Conv1d(3, 4, 1), f32("B", 3, "S")),
    mod("attention_of_sequences", lambda: Attending(False), f32("B", 5, 4)),
    mod("attention_of_batches", lambda: Attending(True), f32("B", 5, 4)),
    mod("lstm", lambda: nn.LSTM(4, 5, 2, bidirectional=True), f32(5, "B", 4)),
    mod("lstm_time", lambda: nn.LSTM(4, 5, batch_first=True), f32("B", "S", 4)),
    mod("lstm_projected", lambda: nn.LSTM(4, 5, proj_size=3), f32("S", "B", 4)),
    mod("lstm_state", Stateful, f32("S", "B", 4), f32(1, "B", 5), f32(1, "B", 5)),
    mod("gru", lambda: nn.GRU(4, 5, 2, batch_first=True), f32("B", "S", 4)),
    mod("rnn", lambda: nn.RNN(4, 5), f32("S", "B", 4)),
    row("modulo_a_size", lambda x: (x % x.shape[0], x // x.shape[1], x.fmod(x.shape[0])), i64("B", "S")),
    row("group_norm_computed", lambda x: F.group_norm(x + 1, 1), f32(3, "B", 4, 3)),
    row("group_norm_each", lambda x: F.group_norm(x + 1, 4), f32(3, 4, "B", "S")),
    row("index_fill", lambda x: x.index_fill(1, torch.tensor([0, -1]), 2.5), TABLE),
    row(
        "pools_of_no_channels", lambda x: (F.adaptive_max_pool1d(x, 3, True), F.adaptive_avg_pool1d(x, 3)), f32("B", 6)
    ),
    row("rest_of_nothing", lambda x: F.smooth_l1_loss(torch.cat([x, x[:1]]), torch.cat([x, x[:1]])), f32("B", 3)),
    row("first_of_nothing", lambda x: F.huber_loss(x[:1], x[:1]), f32("B", 3)),
    row("first_added", lambda x: F.huber_loss(x[:1], x.new_zeros(4, 3)), f32("B", 3)),
    row("nothing_summed_bf16", lambda x: (x + 1).bfloat16() @ (x + 1).bfloat16().mT, f32(3, 6, "S")),
]


def small(specs: tuple[Spec, ...]) -> list[Sizes]:
    """The traced sizes, with one or all of the names at 0 or 1."""
    names = sorted({s for spec in specs for s in spec.shape if isinstance(s, str)})
    each = [{**TRACED, n: size} for n in names for size in (0, 1)]
    return [*each, {**TRACED, **dict.fromkeys(names, 1)}]


def of_torch(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
    """The module's own results; None where torch raises."""
    try:
        with torch.no_grad():
            return module(*args)
    except (RuntimeError, IndexError, ValueError):
        return None


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.name)
def test_sizes_of_zero_and_one(case: Case, opset: int) -> None:
    module = case.module()
    expected = {tuple(s.items()): of_torch(module, case.args(s)) for s in small(case.specs)}
    assert any(e is not None for e in expected.values())
    try:
        program = ir.export(module, case.args(TRACED), dynamic_shapes=case.dynamic_shapes, target="onnx", opset=opset)
    except ir.RefusedError as error:
        assert opset < 16 and "use opset=1" in str(error)
        return
    for sizes, result in expected.items():
        if result is not None:
            actual = program(*case.args(dict(sizes)))
            torch.testing.assert_close(
                actual, result, rtol=1e-3, atol=1e-4, equal_nan=True, msg=lambda m, at=sizes: f"at {at}: {m}"
            )


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (lambda x: x.squeeze(0) + 1, {1}),
        (lambda x: x[:, None].squeeze(), {1}),
        (lambda x: x.chunk(2)[1], {1}),
        (lambda x: x.chunk(3)[0], {0, 1, 3, 5, 6, 7}),
        (lambda x: x.split(3)[1], {0, 1, 2, 3, 7}),
    ],
    ids=["squeeze", "squeeze_all", "chunk", "fewer_chunks", "split"],
)
def test_sizes_that_give_another_rank_or_number_of_results_are_refused(function: Any, refused: set[int]):
    shapes = ({0: "n"},)
    program = ir.export(function, (torch.randn(4, 3),), dynamic_shapes=shapes, target="onnx")
    for size in range(8):
        x = torch.randn(size, 3)
        if size in refused:
            with pytest.raises(ir.RefusedError, match="capture the model anew"):
                program(x)
            with pytest.raises((ir.ExportError, RuntimeError), match=r"capture the model anew|needs .*n|made for"):
                program.runner(x)  # the artifact by itself
        else:
            torch.testing.assert_close(program(x), function(x))


def test_a_scan_of_no_rows_whose_number_torch_has_as_one() -> None:
    """torch's formula, 2n + 1, holds from 2 on."""
    program = ir.export(
        lambda x: torch.cat([x, x, x[:1]]).cummin(1), (torch.randn(3, 4, 2),), target="onnx",
        dynamic_shapes=({0: "n"},),
    )  # fmt: skip
    for n in (0, 1, 3):
        x = torch.randn(n, 4, 2)
        assert all(map(torch.equal, program(x), torch.cat([x, x, x[:1]]).cummin(1)))


def test_the_mean_of_nothing_whose_size_torch_has_as_one() -> None:
    """torch's formula, min(n, 1), is 1 from 2 on."""

    def means(x: Tensor) -> Any:
        diagonal = x[1::2].diagonal()
        return diagonal.mean(0), diagonal.mean(), diagonal.var(0, correction=0), x[:, :1].mean(1)

    program = ir.export(means, (torch.randn(3, 4),), dynamic_shapes=({1: "n"},), target="onnx")
    for n in (0, 1, 3):
        x = torch.randn(3, n)
        for ours, torchs in zip(program(x), means(x), strict=True):
            torch.testing.assert_close(ours, torchs, equal_nan=True)


def test_a_batch_that_is_never_empty_costs_nothing() -> None:
    def ops(least: int) -> list[str]:
        batch = torch.export.Dim("batch", min=least)
        program = ir.export(nn.LSTM(4, 5), (torch.randn(5, 3, 4),), dynamic_shapes=({1: batch},), target="onnx")
        return [n.op_type for n in program.artifact.graph]

    assert "Pad" in ops(0) and "Pad" not in ops(1)


def test_sizes_that_the_ranges_keep_above_zero_cost_nothing() -> None:
    height = torch.export.Dim("height", min=32)
    args = (torch.randn(1, 3, 64, 64),)
    module = row("", lambda x, w: F.conv2d(x, w, stride=2).mean((2, 3)), f32(1), f32(1)).module()
    program = ir.export(module, (*args, torch.randn(4, 3, 3, 3)), dynamic_shapes=({2: height}, None), target="onnx")
    assert [n.op_type for n in program.artifact.graph] == ["Conv", "ReduceMean"]


def test_top_k_of_nothing_before_it_runs(monkeypatch):
    """onnxruntime up to 1.30 divides by the number of rows, and with it ends the caller's process."""
    x, given = torch.randn(3, 5), {"target": "onnx", "dynamic_shapes": ({0: "B"},)}
    assert ir.export(lambda x: x.topk(2)[0], (x,), **given)(x[:0]).shape == (0, 2)
    monkeypatch.setattr(session, "_version", lambda: (1, 30))
    program = ir.export(lambda x: x.topk(2)[0], (x,), **given)
    assert torch.equal(program(x[:1]), x[:1].topk(2)[0])
    with pytest.raises(ir.RefusedError, match=r"before version 1\.31 onnxruntime ends the process where TopK"):
        program(x[:0])
    assert ir.export(lambda x: x + 1, (x,), **given)(x[:0]).shape == (0, 5)
