"""Standard NNEF: what it can say runs equal to torch in nnef-tools' interpreter, the rest is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from nnef_backend.runtime import khronos

X = torch.randn(2, 3, 16, 16)
NET = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.Conv2d(8, 8, 3, groups=8, padding=1),
    nn.Sigmoid(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 4),
    nn.Softmax(1),
).eval()


@pytest.mark.parametrize("name", ["model", "model.tar", "model.tgz"])
def test_a_convolutional_net(name, tmp_path):
    program = ir.export(NET, (X,), target="khronos", path=tmp_path / name, verify=True)
    assert not program.artifact.extensions and "tract" not in program.artifact.to_text()
    assert len(khronos.check(tmp_path / name).operations) > 9


def test_the_error_function_is_right_to_32_bits():
    x = torch.cat([torch.linspace(-6, 6, 4001), torch.logspace(-30, 1, 500), torch.tensor([0.0])])
    program = ir.export(torch.erf, (x,), target="khronos")
    exact = torch.erf(x.double())
    assert ((program(x) - exact).abs() <= 5e-7 * exact.abs()).all()
    ir.export(torch.nn.GELU(), (x,), target="khronos").verify((x,), rtol=1e-6, atol=1e-6)


def test_what_the_standard_lacks_is_refused_with_the_extension_that_has_it():
    with pytest.raises(
        ir.RefusedError, match="tract_core_cumsum: standard NNEF lacks it; tract's extension tract_core"
    ):
        ir.export(lambda x: x.cumsum(1), (X,), target="khronos")
    with pytest.raises(ir.RefusedError, match="standard NNEF has no add of i64"):
        ir.export(lambda x: x + 1, (torch.arange(3),), target="khronos")
    with pytest.raises(ir.RefusedError, match="symbols"):
        ir.export(NET, (X,), target="khronos", dynamic_shapes=({0: "batch"},))


@ir.custom_op("khronostests::swish")
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


def test_a_custom_op_comes_out_as_its_body():
    program = ir.export(lambda x: swish(x, 2.0) + 1, (X,), target="khronos", verify=True)
    assert not program.artifact.fragments


def test_complex_results_are_packed_again():
    x = torch.randn(2, 3, dtype=torch.complex64)
    ir.export(lambda x: torch.stack([x, x * 1j], -1), (x,), target="khronos", verify=True)


def test_attention_with_a_mask_goes_by_its_decomposition():
    q, mask = torch.randn(2, 3, 5, 4), torch.randn(1, 1, 5, 5)
    fn = torch.nn.functional.scaled_dot_product_attention
    ir.export(lambda q, m: fn(q, q, q, attn_mask=m), (q, mask), target="khronos", verify=True)


def test_weights_of_truth_values_are_refused_by_name():
    with pytest.raises(ir.RefusedError, match="refuses full: a constant of truth values"):
        ir.export(lambda x: torch.full((2, 3), True), (X,), target="khronos")
