"""Digits and signs of single ops, in all floating types: as exact as torch's own, of numbers great and little."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir

inf, nan = math.inf, math.nan
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUMBERS = torch.tensor(
    [0.0, -0.0, inf, -inf, nan, 1e-30, -1e-30, 1e-6, -1e-6, -1e-3, -2e-3, 0.015, 0.3, -0.3, 1.0, -1.0, 2.5, -2.75, 3.25,
     -12.5, 40.0, 4e3, 2e37, -3e38], dtype=torch.float64,
)  # fmt: skip

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "elu_2": lambda x: F.elu(x, 2.0),
    "celu": F.celu,
    "celu_3.5": lambda x: F.celu(x, 3.5),
    "selu": F.selu,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "log_sigmoid": F.logsigmoid,
    "atan2": lambda x: torch.atan2(x[:, None], x),
    "root": lambda x: x**0.5,
    "root_of_reciprocal": lambda x: x**-0.5,
    **{
        f"threshold_{n}": lambda x, n=n: F.threshold(torch.cat([x, x.new_tensor([n])]), n, 20.0)
        for n in (0.1, 0.2, 0.7, -0.3, 1 / 3, 0.6, nan, inf)
    },
    **{f"round_{n}": lambda x, n=n: torch.round(x, decimals=n) for n in (-2, 1, 2, 5, 8)},
    **{f"norm_{p}": lambda x, p=p: torch.linalg.vector_norm(x, p) for p in (1e-5, 0.1, 2.5, -1)},
    **{f"norm_of_one_{p}": lambda x, p=p: torch.linalg.vector_norm(x[:, None], p, 1) for p in (1e-5, 0, 1, 2, 3, inf)},
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_digits_and_signs(name: str, dtype: torch.dtype) -> None:
    x = NUMBERS[5:].to(dtype) if name.startswith("norm_") and "one" not in name else NUMBERS.to(dtype)
    function = ROWS[name]
    actual, expected = ir.export(lambda x: function(x), (x,), target="onnx")(x), function(x)
    digits = 1e-12 if dtype is torch.float64 else 4 * float(torch.finfo(dtype).eps)
    torch.testing.assert_close(actual, expected, rtol=digits, atol=0, equal_nan=True)
    zero = expected == 0
    assert torch.equal(actual[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_as_many_numbers_as_there_are_at_run_time(dtype: torch.dtype, size: int) -> None:
    def norms(x):
        return [torch.linalg.vector_norm(x, p, dim=1) for p in (1e-3, 3, 2, 1, 0)]

    example, x = torch.ones(2, 4, dtype=dtype), torch.tensor([[3.0, 2.0, 0.5], [2e4, 0.0, 1.0]], dtype=dtype)[:, :size]
    program = ir.export(norms, (example,), target="onnx", dynamic_shapes=({1: torch.export.Dim.AUTO},))
    digits = 1e-12 if dtype is torch.float64 else 1e-3 if dtype is torch.float32 else 4 * float(torch.finfo(dtype).eps)
    torch.testing.assert_close(program(x), norms(x), rtol=digits, atol=0)


def test_quantiles_of_what_is_near_0() -> None:
    x = torch.tensor([0.0, 1e-38, 1e-20, 1e-8, 0.5, 1.0, -1e-20, -1.0, 2.0, nan])
    ndtri = torch.special.ndtri
    torch.testing.assert_close(ir.export(ndtri, (x,), target="onnx")(x), ndtri(x), equal_nan=True)


def test_a_zero_keeps_its_sign_in_what_is_written_out_for_float64() -> None:
    def odd(x):
        return torch.erf(x), torch.asin(x), torch.tan(x), torch.sinh(x), torch.special.expm1(x)

    x = torch.tensor([0.0, -0.0], dtype=torch.float64)
    assert all(r.signbit().tolist() == [False, True] for r in ir.export(odd, (x,), target="onnx")(x))


def test_a_zero_behind_a_negated_condition_keeps_its_sign() -> None:
    x = torch.tensor([0.0, -0.0, 1.0])
    program = ir.export(lambda x: x.masked_fill(x != 0, 0.5), (x,), target="onnx")
    assert program(x).signbit().tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(3, 5, 2), (3, 0, 2), (64,), ()], ids=str)
def test_products_of_int64_wrap_around(shape: tuple[int, ...]) -> None:
    def products(x):
        return [x.prod(), *(x.prod(d, keepdim=True) for d in range(-1, len(shape)))]

    x = torch.randint(3, 9, shape) * 2 + 1
    for actual, expected in zip(ir.export(products, (x,), target="onnx")(x), products(x), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_what_is_scattered_over_may_be_nan(reduce: str) -> None:
    x, index = torch.tensor([1.0, nan, 3.0, -inf, 2.0]), torch.tensor([0, 0, 1, 2, 2])

    def scattered(x, start):
        return [start.scatter_reduce(0, index, x, reduce, include_self=s) for s in (True, False)]

    start = torch.tensor([0.0, 1.0, 2.0, nan])
    actual = ir.export(scattered, (x, start), target="onnx")(x, start)
    torch.testing.assert_close(actual, scattered(x, start), equal_nan=True)


def test_polynomials_of_no_numbers() -> None:
    function, x = torch.special.legendre_polynomial_p, torch.ones(0, 2)
    assert ir.export(lambda x: function(x, x), (x,), target="onnx")(x).shape == (0, 2)


def test_padding_by_a_negative_zero():
    x = torch.tensor([1.0, -2.0])
    pad = ir.export(lambda x: torch.nn.functional.pad(x, (1, 0), value=-0.0), (x,), target="onnx")
    assert pad(x)[0].signbit()


BFLOAT16: dict[str, Callable[[Tensor], Tensor]] = {
    "mul": lambda x: x * 1.3,
    "div": lambda x: x / 1.3,
    "reciprocal": lambda x: 1.3 / x,
    "add": lambda x: x + 1.3,
    "softplus": lambda x: F.softplus(x, beta=1.3),
    "softshrink": lambda x: F.softshrink(x, 0.3),
}


@pytest.mark.parametrize("name", BFLOAT16)
def test_numbers_beside_bfloat16_are_rounded_where_torch_rounds_them(name: str) -> None:
    x, function = torch.linspace(-3, 3, 301).bfloat16(), BFLOAT16[name]
    assert torch.equal(ir.export(lambda x: function(x), (x,), target="onnx")(x), function(x))
