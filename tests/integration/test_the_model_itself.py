"""verify() beside the model: what torch.export's program has decided while it was traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import ir

X = torch.randn(4, 3)


def of_one(x: Tensor) -> Tensor:
    return x - 1 if x.size(0) == 1 else x * 2


def of_none(x: Tensor) -> Tensor:
    return x.sum(0) - 1 if x.size(0) == 0 else x.sum(0)


def when_exported(x: Tensor) -> Tensor:
    return x * 2 if torch.compiler.is_exporting() else x


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(("model", "place"), [(of_one, " at b=1"), (of_none, " at b=0"), (when_exported, "")])
def test_another_way_than_the_traced_one(model: Callable[[Tensor], Tensor], place: str, target: str) -> None:
    program = ir.export(model, X, target=target, dynamic_shapes=({0: "b"},))
    with pytest.raises(ir.MismatchError, match=rf"but the model itself gives other results:\noutput{place}"):
        program.verify()
    program = ir.export(torch.export.export(Module(model), (X,)), target=target)  # of which there is nothing else
    assert program.verify().ok


def test_a_range_that_leaves_them_out() -> None:
    assert ir.export(of_one, X, target="eager", dynamic_shapes=({0: Dim("b", min=2)},), verify=True).report.ok


class Module(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class Counting(nn.Module):
    """Writes to buffers, draws random numbers and keeps a list."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(3), [0]
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.total += x.sum(0)
        self.calls.append(1)
        return self.norm(x) * self.total, torch.nn.functional.dropout(x)


def test_the_model_is_left_as_it_was() -> None:
    model = Counting()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    program = ir.export(model, X, target="onnx", dynamic_shapes=({0: "b"},), verify=True)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items()) and model.calls == [0]
    program(X), model(X)
    assert program.verify().ok
    model.eval()  # is another model, of which the program knows nothing
    assert program.verify().ok
