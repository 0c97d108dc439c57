"""Each pass computes the same as the graph that it was given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.fuse_rms_norm import fuse_rms_norm
from ir.passes.promote import promote
from tests.ir.interpret import run


def same(graph, other, *inputs):
    for a, b in zip(run(graph, *inputs), run(other, *inputs), strict=True):
        assert a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def norm(kind, channels):
    made = kind(channels)
    for t in (made.weight, made.bias, made.running_mean):
        nn.init.normal_(t)
    nn.init.uniform_(made.running_var, 0.5, 2.0)
    return made


class Shared(nn.Module):
    """The first conv's result is read twice, the second's norm folds."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), norm(nn.BatchNorm2d, 4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y, self.norm(self.conv(x * 2))


@pytest.mark.parametrize(
    ("model", "x", "left"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), norm(nn.BatchNorm2d, 4), nn.ReLU()), torch.randn(2, 3, 8, 8), 0),
        (nn.Sequential(nn.Conv1d(4, 6, 3, groups=2, bias=False), norm(nn.BatchNorm1d, 6)), torch.randn(2, 4, 8), 0),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)), torch.randn(2, 3, 4, 4), 0),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), norm(nn.BatchNorm2d, 4)), torch.randn(2, 3, 4, 4), 1),
        (Shared(), torch.randn(1, 3, 5, 5), 1),
    ],
)
def test_fold_batch_norm(model, x, left):
    graph = ir.capture(model.eval(), (x,))
    folded = ir.check(fold_batch_norm(graph))
    assert sum(n.op == "aten::batch_norm" for n in folded.nodes) == left
    same(graph, folded, x)


def test_a_norm_in_training_mode_is_not_folded():
    graph = ir.capture(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train(), (torch.randn(2, 3, 4, 4),))
    assert fold_batch_norm(graph) is graph


def test_promote_is_what_torch_does_anyway():
    def fn(x, n, m):
        return x + n, n / 2, torch.where(m, x, n), n.sum(dtype=torch.float32), m & (n > x), torch.cat([x, n * 1.0])

    args = (torch.randn(3), torch.arange(3), torch.tensor([True, False, True]))
    graph = ir.capture(fn, args)
    same(graph, ir.check(promote(graph)), *args)


class Rms(nn.Module):
    """Root mean square norms as models write them, and others that only look so."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight, self.form = nn.Parameter(torch.rand(6) + 0.5), form

    def forward(self, x):
        of = x + 1 if self.form == "other" else x
        square = of * of if self.form == "mul" else of.square() if self.form == "square" else of.pow(2)
        mean = square.mean(1 if self.form == "axis" else -1, keepdim=True)
        root = torch.rsqrt(mean + 1e-5)
        y = x * root if self.form == "left" else root * x
        if self.form == "bare":
            return y
        if self.form == "shared":
            return y * self.weight, y
        return (self.weight * y, root) if self.form == "root" else self.weight * y


@pytest.mark.parametrize("form", ["pow", "mul", "square", "left", "bare", "shared"])
def test_written_out_rms_norms_are_one_node(form):
    x = torch.randn(2, 3, 6)
    graph = ir.capture(Rms(form), (x,), dynamic_shapes={"x": {0: "batch"}})
    fused = ir.check(fuse_rms_norm(graph))
    assert [n.op for n in fused.nodes] == ["aten::rms_norm"] + ["aten::mul"] * (form == "shared")
    same(graph, fused, x)


@pytest.mark.parametrize("form", ["axis", "other", "root"])
def test_what_is_no_rms_norm_stays(form):
    graph = ir.capture(Rms(form), (torch.randn(2, 3, 6),))
    assert fuse_rms_norm(graph) is graph
