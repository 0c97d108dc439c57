"""Weights in Q4_0: tract computes with the blocks what torch computes with the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ir
from nnef_backend.format import dat


class Tagger(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.up = nn.Linear(64, 96, bias=True)
        self.norm = nn.LayerNorm(96)
        self.down = nn.Linear(96, 7)
        self.odd = nn.Linear(7, 5)
        self.to(dtype)

    def forward(self, ids):
        return self.odd(torch.relu(self.down(self.norm(self.up(self.table(ids))))))


IDS = torch.randint(0, 50, (2, 6))
DYNAMIC = ({0: "batch", 1: "length"},)


def stored(program):
    sources = ((n, s() if callable(s) else s) for n, s in program.artifact.tensors.items())
    return {n for n, s in sources if isinstance(s, dat.BlockQuantised)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_against_the_dequantised_model(dtype, tmp_path):
    torch.manual_seed(0)
    model = Tagger(dtype).eval()
    program = ir.export(
        model, (IDS,), target="nnef", weights="q4_0", dynamic_shapes=DYNAMIC, path=tmp_path / "m.tgz", verify=True
    )
    assert stored(program) == {"table.weight", "up.weight", "down.weight"}  # 7 is no multiple of 32
    program.verify((torch.randint(0, 50, (3, 11)),))
    with torch.no_grad():
        assert (program(IDS) - model(IDS)).abs().max() > 1e-3  # it is not the model's own weights that were compared


def test_the_filter():
    model = Tagger().eval()
    by_pattern = ir.export(model, (IDS,), target="nnef", weights="q4_0", weights_filter="up.*[!s]", verify=True)
    assert stored(by_pattern) == {"up.weight"} if "up.bias" not in stored(by_pattern) else False
    by_function = ir.export(
        model, (IDS,), target="nnef", weights="q4_0", weights_filter=lambda n: n == "table.weight", verify=True
    )
    assert stored(by_function) == {"table.weight"}
    with pytest.raises(ir.RefusedError, match=r"odd.weight: its rows are 7 long, no multiple of 32"):
        ir.export(model, (IDS,), target="nnef", weights="q4_0", weights_filter="odd.weight")
    with pytest.raises(ir.RefusedError, match=r"norm.weight: it is .*, no matrix of floats"):
        ir.export(model, (IDS,), target="nnef", weights="q4_0", weights_filter=["norm.weight"])


def test_what_tract_cannot_read_is_refused_or_stays():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 64))

        def forward(self, x):
            return x @ self.weight + self.weight.sum()

    x = torch.randn(2, 32)
    assert not stored(ir.export(Odd(), (x,), target="nnef", weights="q4_0", verify=True))
    with pytest.raises(ir.RefusedError, match=r"aten::matmul reads it at .*leave it out of the filter"):
        ir.export(Odd(), (x,), target="nnef", weights="q4_0", weights_filter="weight")


def test_a_tied_weight():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(40, 32)
            self.head = nn.Linear(32, 40, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    program = ir.export(Tied(), (IDS % 40,), target="nnef", weights="q4_0", dynamic_shapes=DYNAMIC, verify=True)
    assert len(stored(program)) == 1
    program.verify((torch.randint(0, 40, (1, 3)),))


@pytest.mark.parametrize("shape, axes", [((2, 4, 6, 16), (1, 2)), ((1, 2, 6, 32), (1, 2)), ((2, 6, 4, 16), (2, 3))])
def test_rows_whose_axes_were_transposed(shape, axes):
    """What stands behind attention: tract would move heads into the weight and leave its blocks."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(64, 64)

        def forward(self, x):
            return self.out(x.transpose(*axes).reshape(x.shape[0], -1, 64))

    torch.manual_seed(0)
    dynamic = ({0: "batch", 2: "length"},) if shape[0] > 1 and axes == (1, 2) else ({0: "batch"},)
    dynamic = ({2: "length"},) if shape[0] == 1 else dynamic
    program = ir.export(
        Heads().eval(), (torch.randn(shape),), target="nnef", weights="q4_0", dynamic_shapes=dynamic, verify=True
    )
    assert stored(program) == {"out.weight"}


@ir.custom_op("tests_quantised::times")
def times(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product that a handler makes of its own."""
    return x @ weight.mT


def test_a_custom_op_reads_what_its_handler_can_read():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 64))

        def forward(self, x):
            return times(x, self.weight)

    def product(h, x, weight):
        return h.emit("matmul", x, weight, transposeB=True, shape=(2, 32), dtype=x.type.dtype)

    def doubled(h, x, weight):
        return product(h, x, h.emit("add", weight, weight))

    model, x = Product().eval(), torch.randn(2, 64)
    options = {"target": "nnef", "weights": "q4_0", "weights_filter": "weight"}
    program = ir.export(model, (x,), **options, handlers={"tests_quantised::times": product}, verify=True)
    assert stored(program) == {"weight"}
    with pytest.raises(ir.ExportError, match=r"add does not read weights in Q4_0; leave this one out of the filter"):
        ir.export(model, (x,), **options, handlers={"tests_quantised::times": doubled})
    with pytest.raises(ir.ExportError, match=r"leave .* out of the filter"):
        ir.export(model, (x,), **options)  # of its body, which is the matmul of torch


def test_steps_of_a_scale_stay_what_they_are():
    """Calibrated numbers, whose farthest need not be at -8, and those of other tools; plain ones land on -8."""
    drawn = np.random.default_rng(0)
    codes = drawn.integers(-8, 8, (64, 2, 32))
    codes[:, 0] = codes[:, 0].clip(-3, 5)
    scales = drawn.normal(size=(64, 2, 1)).astype(np.float16).astype(np.float32)
    steps = (codes * scales).reshape(64, 64).astype(np.float32)
    steps[0] = 0
    assert np.array_equal(dat.dequantise_q4_0(dat.quantise_q4_0(steps)), steps)
    plain = drawn.normal(size=(64, 64)).astype(np.float32)
    found = dat.dequantise_q4_0(dat.quantise_q4_0(plain)).reshape(-1, 32)
    farthest = np.abs(plain.reshape(-1, 32)).argmax(1)[:, None]
    assert np.allclose(*(np.take_along_axis(t.reshape(-1, 32), farthest, 1) for t in (found, plain)), rtol=1e-3)
    assert np.array_equal(dat.dequantise_q4_0(dat.quantise_q4_0(found)), found)
