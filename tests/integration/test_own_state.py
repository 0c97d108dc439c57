"""A program says what the model was at its export, though the model runs before the program is first called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ir


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("same", self.seen[1:])

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1.5)
        return x + self.seen.sum() + self.same.sum()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_run_of_the_model_does_not_show_in_the_program(target: str) -> None:
    model, x = Counting(), torch.ones(2)
    saved = torch.export.export(model, (x,))
    program = ir.export(saved, target=target)
    run = saved.module()
    expected = run(x)
    run(x)
    actual, updates = program.run(x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(updates["seen"], torch.full((3,), 1.5))
