"""Models that derive by torch.func in their forward, as force fields and robots' arms do, on every target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ir


class Forces(nn.Module):
    """The gradient of a learned energy."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.func.grad(lambda y: self.energy(y).sum())(x)


class Arm(nn.Module):
    """Where an arm of two links ends, and how that moves with its angles."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def end(angles: Tensor) -> Tensor:
            return torch.stack([angles.cumsum(0).cos().sum(), angles.cumsum(0).sin().sum()])

        there, back = torch.func.vjp(torch.func.vmap(end), x)
        return there, torch.func.vmap(torch.func.jacfwd(end))(x), back(there)[0]


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(("model", "width"), [(Forces, 3), (Arm, 2)])
def test_derivatives(model, width, target):
    torch.manual_seed(0)
    made = model().eval()
    program = ir.export(made, (torch.randn(4, width),), target=target, dynamic_shapes=({0: "n"},))
    for count in (4, 7, 2):
        x = torch.randn(count, width)
        torch.testing.assert_close(program(x), made(x), rtol=1e-4, atol=1e-5)
