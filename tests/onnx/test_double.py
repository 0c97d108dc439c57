"""float64 keeps its digits: every op is computed in it, or refused, or asked for in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir

nan, inf = float("nan"), float("inf")
NUMBERS = torch.cat([
    torch.tensor([nan, inf, -inf, -0.0, 0.0, 1.0, -1.0, 2.5, 0.1, 1e30, -1e-30, 1e-8, 0.9999999, -20.0, 1e160, -1e300]),
    torch.linspace(-6, 6, 203, dtype=torch.float64), torch.linspace(-1, 1, 101, dtype=torch.float64),
]).double()  # fmt: skip


def _close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype is torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=4e-15, equal_nan=True)


FUNCTIONS = {
    "tan": lambda x: torch.tan(x.clamp(-1e5, 1e5)), "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "atan": torch.atan, "asin": torch.asin, "acos": torch.acos,
    "erf": torch.erf, "erfc": torch.erfc, "erfcx": torch.special.erfcx, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "elu": lambda x: F.elu(x, 0.3),
    "selu": F.selu, "celu": lambda x: F.celu(x, 3.5), "leaky_relu": lambda x: F.leaky_relu(x, 0.3), "mish": F.mish,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "softsign": F.softsign, "logsigmoid": F.logsigmoid,
    "ndtr": torch.special.ndtr, "atan2": lambda x: torch.atan2(x, x.flip(0)), "rrelu": F.rrelu,
    "prelu": lambda x: F.prelu(x, x.new_tensor([0.3])), "layer_norm": lambda x: F.layer_norm(x[16:], (304,)),
    "attention": lambda x: F.scaled_dot_product_attention(*x[20:140].view(3, 1, 5, 8), scale=0.3),
    "addmm": lambda x: torch.addmm(x[20:22, None], x[16:40].view(2, 12), x[40:64].view(12, 2), beta=0.3, alpha=0.7),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_good_to_the_last_digits(name: str) -> None:
    function = FUNCTIONS[name]
    program = ir.export(lambda x: function(x), (NUMBERS,), target="onnx")
    _close(program(NUMBERS), function(NUMBERS))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_beside_their_zeros_circular_functions_keep_their_digits(name: str) -> None:
    """onnxruntime's Sin of the number nearest to pi is 0, torch's is 1.2e-16."""
    x = torch.cat([torch.arange(-40, 41) * (torch.pi / 2) + gap for gap in (0.0, 1e-12, -1e-7, 0.3)]).double()
    x = torch.cat([x, x * 1000, torch.tensor([-0.0, 0.0, inf, -inf, nan, 1e6, 1e15, 1e300, 1.0, -1.0])])
    function = getattr(torch, name)
    actual = ir.export(lambda x: function(x), (x,), target="onnx")(x)
    torch.testing.assert_close(actual, function(x), rtol=1e-15, atol=0.0, equal_nan=True)
    assert torch.equal(actual[x == 0].signbit(), function(x)[x == 0].signbit())


def _d(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


WINDOWS = {
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2), _d(2, 4, 9, 8), _d(6, 4, 3, 3)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], groups=2), _d(2, 4, 9, 8), _d(6, 2, 3, 2)),
    "conv1d_same": (lambda x, w: F.conv1d(x, w, padding="same"), _d(2, 4, 9), _d(6, 4, 4)),
    "conv3d": (lambda x, w: F.conv3d(x, w), _d(2, 4, 5, 5, 5), _d(6, 4, 2, 2, 2)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
        _d(2, 4, 5, 6), _d(4, 3, 3, 2),
    ),
    "avg_pool": (lambda x, w: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), _d(2, 4, 9, 8), _d(1)),
    "avg_pool_ceil": (lambda x, w: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), _d(2, 4, 9, 8), _d(1)),
    "group_norm": (lambda x, w: F.group_norm(x, 2), _d(2, 4, 9, 8), _d(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_summed_in_float64(name: str) -> None:
    function, *args = WINDOWS[name]
    program = ir.export(function, tuple(args), target="onnx", dynamic_shapes=({0: "n"}, None))
    _close(program(*args), function(*args))
    half = args[0][1:]
    _close(program(half, args[1]), function(half, args[1]))


def test_float32_is_computed_in_where_that_is_allowed() -> None:
    x = NUMBERS[16:].abs() + 0.1
    narrowed = ir.export(lambda x: torch.erf(x), (x,), target="onnx", allow_narrowing=True)
    assert [n.op_type for n in narrowed.artifact.graph] == ["Cast", "Erf", "Cast"]


def test_a_kernel_may_have_sizes_of_its_own_at_every_call() -> None:
    x = torch.randn(2, 3, 12, 12)
    for padding in (0, 1, "same"):
        convolution = lambda x, w, p=padding: F.conv2d(x, w, padding=p, dilation=2)  # noqa: E731
        shapes = (None, {2: "h", 3: "w"}, None)
        program = ir.export(convolution, (x, torch.randn(4, 3, 3, 5)), target="onnx", dynamic_shapes=shapes[:2])
        for size in ((3, 5), (2, 4), (1, 1)):
            w = torch.randn(4, 3, *size)
            torch.testing.assert_close(program(x, w), convolution(x, w), rtol=1e-4, atol=1e-5)


def test_a_relu_keeps_the_sign_of_zero() -> None:
    x = torch.tensor([-0.0, 0.0, -1.0, 2.0], dtype=torch.float64)
    program = ir.export(lambda x: (1 / x.relu(), x.relu().clamp(0, 1)), (x,), target="onnx")
    assert program(x)[0].tolist() == [-inf, inf, inf, 0.5]
    assert program(x)[1].tolist() == [0, 0, 0, 1]
