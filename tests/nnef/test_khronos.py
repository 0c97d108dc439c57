"""Standard NNEF: what it can say runs equal to torch in nnef-tools' interpreter, the rest is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from nnef_backend import khronos

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


def test_what_the_standard_lacks_is_refused_with_the_extension_that_has_it():
    with pytest.raises(ir.RefusedError, match="tract_core_erf"):
        ir.export(lambda x: torch.erf(x), (X,), target="khronos")
    with pytest.raises(ir.RefusedError, match="symbols"):
        ir.export(NET, (X,), target="khronos", dynamic_shapes=({0: "batch"},))


@ir.custom_op("khronostests::swish")
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


def test_a_custom_op_comes_out_as_its_body():
    program = ir.export(lambda x: swish(x, 2.0) + 1, (X,), target="khronos", verify=True)
    assert not program.artifact.fragments
