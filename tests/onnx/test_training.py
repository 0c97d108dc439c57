"""Modules in training mode, truth values read out of tensors, and dimensions that are 0 or 1 at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir

OPSETS = (13, 20, 22)  # onnxruntime's random ops end at 21
DYNAMIC = torch.export.Dim.DYNAMIC


class Fn(nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("make", "updated"),
    [
        (lambda: nn.BatchNorm2d(3), {"running_mean", "running_var", "num_batches_tracked"}),
        (lambda: nn.BatchNorm2d(3, momentum=0.3, affine=False), {"running_mean", "running_var", "num_batches_tracked"}),
        (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), {"running_mean", "running_var"}),
        (lambda: nn.InstanceNorm2d(3), set()),
    ],
)
def test_norms_move_their_statistics(make: Callable[[], nn.Module], updated: set[str], opset: int) -> None:
    program = ir.export(make().train(), (images(),), target="onnx", opset=opset)
    assert set(program.graph.updates) >= updated - {"num_batches_tracked"}
    assert program.verify().ok
    _, after = program.run(images())
    mean = images().mean((0, 2, 3))
    for name in updated & {"running_mean"}:
        momentum = 0.3 if "momentum=0.3" in str(make()) else 0.1
        torch.testing.assert_close(after[name], momentum * mean)


@pytest.mark.parametrize("dynamic", [None, ({0: DYNAMIC},)])
def test_instance_norm_statistics_at_another_batch(dynamic: Any) -> None:
    module = nn.InstanceNorm1d(3, track_running_stats=True).train()
    program = ir.export(module, (torch.randn(4, 3, 9),), target="onnx", dynamic_shapes=dynamic)
    assert program.verify((torch.randn(6 if dynamic else 4, 3, 9),)).ok


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("make", "dropped"),
    [
        (nn.Dropout, lambda y: (y == 0).float().mean()),
        (nn.Dropout2d, lambda y: (y == 0).flatten(2).all(-1).float().mean()),
        (nn.AlphaDropout, lambda y: (y < y.min() + 1e-5).float().mean()),
        (nn.FeatureAlphaDropout, lambda y: (y.amax((2, 3)) == y.amin((2, 3))).float().mean()),
    ],
)
def test_dropout_drops_in_training(make: Any, dropped: Callable[[Tensor], Tensor], opset: int) -> None:
    x = torch.rand(32, 64, 4, 4) + 0.1  # nothing of it is as low as what alpha dropout puts in
    program = ir.export(make(0.3).train(), (x,), target="onnx", opset=opset)
    y = program(x)
    assert y.shape == x.shape and abs(dropped(y) - 0.3) < 0.05
    assert not torch.equal(y, program(x))
    still = ir.export(make(0.3).eval(), (x,), target="onnx", opset=opset)
    assert torch.equal(still(x), x)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: nn.functional.dropout(x.relu(), 0.5, True) @ torch.ones(4, 4),
        lambda x: torch.native_dropout(x.relu(), 0.5, True)[0] * 2,
        lambda x: nn.functional.scaled_dot_product_attention(x, x, torch.ones_like(x), dropout_p=0.5) * 1,
    ],
)
def test_dropout_within_a_graph_drops(fn: Callable[[Tensor], Tensor], opset: int) -> None:
    """onnxruntime takes a Dropout out that stands between other nodes."""
    x = torch.ones(64, 32, 4)
    program = ir.export(Fn(fn), (x,), target="onnx", opset=opset)
    y, expected = program(x), fn(x)
    assert abs(y.mean() / expected.mean() - 1) < 0.05 and abs(y.std() / expected.std() - 1) < 0.1


def test_rrelu_draws_slopes_in_training() -> None:
    x = torch.randn(1000)
    y = ir.export(nn.RReLU(0.2, 0.4).train(), (x,), target="onnx")(x)
    assert torch.equal(y[x >= 0], x[x >= 0])
    slopes = (y / x)[x < 0]
    assert slopes.min() >= 0.2 - 1e-5 and slopes.max() <= 0.4 + 1e-5 and slopes.std() > 0.02


def test_truth_values_read_out_of_tensors() -> None:
    program = ir.export(Fn(lambda x: (x * (x.sum() > 0).item(), (x.sum() > 1).item())), (torch.ones(3),), target="onnx")
    for x in (torch.ones(3), -torch.ones(3), torch.tensor([0.5, 0, 0])):
        assert program.verify((x,)).ok


@pytest.mark.parametrize("opset", [18, 22])
@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.flatten(1),
        lambda x: x.transpose(0, 1).reshape(x.shape[0] * x.shape[1], x.shape[2]),
        lambda x: x.unflatten(1, (-1, 1)),
        lambda x: x.flatten(0, 1).softmax(-1),
        lambda x: torch.cat([x, x], 1).sum(1),
    ],
    ids=["flatten", "merge", "unflatten", "softmax", "cat"],
)
def test_dimensions_of_zero_and_one_at_run_time(fn: Any, size: int, opset: int) -> None:
    dims = {0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}
    program = ir.export(Fn(fn), (torch.randn(3, 4, 6),), target="onnx", dynamic_shapes=((dims,),), opset=opset)
    for axis in dims:
        shape = [3, 4, 6]
        shape[axis] = size
        if 0 in shape and axis == 2 and "softmax" in str(fn.__code__.co_names):
            continue  # onnxruntime refuses a softmax over nothing
        assert program.verify((torch.randn(shape),)).ok
