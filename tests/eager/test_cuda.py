"""What can be said of CUDA programs without a GPU: refusals, and what the passes for CUDA write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

import ir
from eager_backend import Eager, EagerHelper
from eager_backend.building.steps import Block
from eager_backend.passes.cublas import fuse_activations
from eager_backend.passes.cudnn import fuse_relu, put_channels_last
from eager_backend.runtime.cuda_graphs import obstacles

from .test_program import compiled

VECTOR = torch.randn(6)


def reads_a_number(x: Tensor) -> Tensor:
    return x * x.sum().item()


def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))


def loops(x: Tensor) -> Tensor:
    (result,) = while_loop(lambda v: v.sum() < 10, lambda v: (v.abs() + 1,), (x,))
    return result


def chooses(x: Tensor) -> Tensor:
    return x.nonzero().sum(0)


@pytest.mark.parametrize(
    "model, reason",
    [
        (reads_a_number, "reads a number out of"),
        (branches, "chooses a branch"),
        (loops, "loops by"),
        (chooses, r"nonzero makes a tensor whose size u\w* depends"),
    ],
)
def test_what_waits_for_the_gpu_is_no_graph(model: object, reason: str) -> None:
    (found, *_) = obstacles(compiled(model, VECTOR).artifact)
    assert re.search(reason, found)
    assert "\n  at " in found


def test_dynamic_sizes_and_random_numbers_are_no_obstacle() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.rand_like(x).view(-1, 1)[: x.shape[0] // 2] + x.shape[0]

    program = ir.export(model, (VECTOR,), target="eager", dynamic_shapes=({0: "n"},))
    assert list(obstacles(program.artifact)) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there(device: str) -> None:
    with pytest.raises(ir.ExportError, match=rf"finds 0 GPUs, there is no {device}: Eager\(device='cpu'\)"):
        ir.export(nn.Linear(2, 2), (torch.randn(1, 2),), target=Eager(device=device))


# -- passes: what they do to the steps, without the question whether the device is a GPU ---------------------------


class Rewriting(Eager):
    """The eager target with one rewriting of its steps, on the CPU."""

    def __init__(self, rewrite: Callable[[Any, Block], None]) -> None:
        super().__init__(optimize=False)
        self.rewrite = rewrite

    def helper(self, graph: ir.Graph) -> EagerHelper:
        return RewritingHelper(self, graph)


class RewritingHelper(EagerHelper):
    def _compile(self, block: Block) -> str:
        self.target.rewrite(self, block)  # type: ignore[attr-defined]
        return super()._compile(block)


def rewritten(model: Any, *args: Tensor, by: Callable[[Any, Block], None]) -> ir.Exported:
    return ir.export(model, args, target=Rewriting(by))


def calls(program: ir.Exported) -> list[str]:
    """Each step as a line, without comments and deletions."""
    lines = (line.partition("#")[0].strip() for line in program.artifact.source.splitlines())
    return [line for line in lines if " = " in line]


IMAGE = torch.randn(2, 4, 9, 9)


class Residual(nn.Module):
    def __init__(self, bias: bool = True, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, bias=bias, **{"padding": 1, **options})

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv(x)) * 2


def test_relu_in_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=(1, 0)), nn.ReLU())
    (line,) = calls(rewritten(model, IMAGE, by=fuse_relu))
    assert line.endswith("torch_cudnn_convolution_relu(input, w_0_weight, w_0_bias, (2, 2), (1, 0), (1, 1), 1)")
    assert line.startswith("relu = ")


@pytest.mark.parametrize("bias", [False, True])
def test_relu_of_a_sum(bias: bool) -> None:
    program = rewritten(Residual(bias), IMAGE, by=fuse_relu)
    line, times = calls(program)
    offset = "w_conv_bias" if bias else "w_conv_weight_no_bias"
    how = f"torch_cudnn_convolution_add_relu(x, w_conv_weight, x, None, {offset}, (1, 1), (1, 1), (1, 1), 1)"
    assert line == f"relu = {how}"
    assert times.startswith("mul = torch_mul(relu, 2")
    if not bias:
        assert program.artifact.constants.derived[offset].equal(torch.zeros(4))


class Tail(nn.Module):
    """Something behind a convolution of the input."""

    def __init__(self, tail: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.tail = nn.Conv2d(4, 4, 3, padding=1), tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.conv(x), x)


@pytest.mark.parametrize(
    "model",
    [
        Tail(lambda y, x: y.relu() + y),
        Tail(lambda y, x: (y + x).relu() + y),
        Tail(lambda y, x: torch.add(y, x, alpha=2).relu()),
        Tail(lambda y, x: (y + x[:, :1]).relu()),
        Tail(lambda y, x: (y + y).relu()),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU()),
        nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 2, padding="same"), nn.ReLU()),  # one more behind than before
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.SiLU()),
        Residual(groups=2),
        lambda x: nn.functional.conv2d(x, x[:, :, :3, :3].sum(0, keepdim=True)).relu(),  # a weight that varies
        lambda x: torch.relu(x + 1),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()).double(),
    ],
)
def test_other_convolutions_stay(model: Any) -> None:
    double = isinstance(model, nn.Module) and next(model.parameters()).dtype is torch.float64
    image = IMAGE.double() if double else IMAGE
    program = rewritten(model, image, by=fuse_relu)
    assert "cudnn" not in program.artifact.source
    assert torch.equal(program(image), model(image))


class HalfNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(self.first(x).relu())
        return y, y.view(2, -1)


def test_channels_last_in_half() -> None:
    model, image = HalfNet().bfloat16(), IMAGE.bfloat16()
    program = rewritten(model, image, by=put_channels_last)
    derived = program.artifact.constants.derived
    assert [t.is_contiguous(memory_format=torch.channels_last) for t in derived.values()] == [True, True]
    assert sum(".contiguous(memory_format=channels_last)" in line for line in calls(program)) == 1  # of the input
    with torch.no_grad():
        for actual, expected in zip(program(image), model(image), strict=True):
            torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2, check_stride=True)
    assert calls(rewritten(HalfNet(), IMAGE, by=put_channels_last)) == calls(compiled(HalfNet(), IMAGE, optimize=False))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_relu_in_a_linear_layer(shape: tuple[int, ...]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), torch.randn(shape)
    program = rewritten(model, x, by=fuse_activations)
    (line,) = calls(program)
    call = "torch_addmm_activation" if len(shape) == 2 else "cublas_activated"
    assert line == f"relu = {call}(w_0_bias, input, w_0_weight_t, use_gelu=False)"
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))


def test_gelu_in_its_tanh_form_alone() -> None:
    x = torch.randn(3, 4)
    for approximate, fused in (("tanh", True), ("none", False)):
        model = nn.Sequential(nn.Linear(4, 5), nn.GELU(approximate))
        source = rewritten(model, x, by=fuse_activations).artifact.source
        assert ("use_gelu=True" in source) is fused
    for other in (nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU()), nn.Sequential(nn.Linear(4, 5), nn.SiLU())):
        program = rewritten(other, x, by=fuse_activations)
        assert "_t, use_gelu" not in program.artifact.source
        with torch.no_grad():
            assert torch.equal(program(x), other(x))


def test_programs_on_the_cpu_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Linear(7, 7), nn.ReLU())
    plain, both = (compiled(model, IMAGE, optimize=o).artifact for o in ((), ("cudnn", "cublas")))
    assert plain.source == both.source


@pytest.mark.parametrize(
    "ratios, error, failing",
    [
        ({"ours": 1.6, "ours as CUDA graph": 3.0, "torch.compile reduce-overhead": 2.9}, 1e-3, []),
        ({"ours": 0.9, "ours as CUDA graph": 2.0}, 0.2, ["differ by 0.2", "0.90 times as fast"]),
        ({"ours": 1.6}, 0.0, ["not recorded"]),
        (
            {"ours": 1.6, "ours as CUDA graph": 1.2, "torch.compile reduce-overhead": 2.9},
            0.0,
            ["at least the", "compile"],
        ),
    ],
)
def test_the_benchmark_says_what_holds_and_what_fails(
    ratios: dict[str, float], error: float, failing: list[str]
) -> None:
    from benchmarks.eager_cuda import Row, verdicts

    lines = list(verdicts(Row("resnet50", {}, ratios, {}, error)))
    wrong = [line for holds, line in lines if not holds]
    assert len(wrong) == len(failing) and all(f in w for f, w in zip(failing, wrong, strict=True))
    assert all(line.startswith("FAILS  resnet50: ") for line in wrong)
