"""Numbers that only a run tells, read out of a tensor or given as an integer, where an operator takes one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir

inf, nan = math.inf, math.nan
DYNAMIC = torch.export.Dim.DYNAMIC


def told(function: Callable[[Tensor, Any], Any], x: Tensor, first: Any, *others: Any, close: bool = False) -> None:
    """Export at one number and compare with torch at others."""
    bounds = {} if close else {"rtol": 0.0, "atol": 0.0}
    shapes = None if isinstance(first, Tensor) else (None, DYNAMIC)
    program = ir.export(lambda x, n: function(x, n), (x, first), target="onnx", dynamic_shapes=shapes)
    for n in others:
        torch.testing.assert_close(program(x, n), function(x, n), equal_nan=True, **bounds)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_powers_of_integers_wrap_around(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, -1, 2, 3, -5, 7, 10]).to(dtype)
    exponents = [0, 1, 2, 8, 9, 18, 41, 63, 127]
    told(lambda x, n: x**n, x, 3, *exponents)
    told(lambda x, n: x ** n.item(), x, torch.tensor(3), *map(torch.tensor, exponents))
    told(lambda x, n: x ** (n + 1), x, 3, *exponents[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_a_bound_that_is_nan_makes_all_of_it_nan(dtype: torch.dtype) -> None:
    def clamped(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return x.clamp(max=n.item()), x.clamp(min=n.item()), x.clamp(0, n.item()), x.clamp(n.item(), 0)

    told(clamped, torch.arange(-2, 3).to(dtype), torch.tensor(0.5), *map(torch.tensor, (nan, inf, -inf, -1.5, 1.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32], ids=str)
def test_thresholds(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.2, 0.7, -0.3, 3.0, -2.0, 1.0, 4.0]).to(dtype)
    told(lambda x, n: F.threshold(x, n, 20.0), x, 3, 0, 1, 4)
    told(
        lambda x, n: (F.threshold(x, n.item(), 5.0), F.threshold(x, 1.0, n.item())), x, torch.tensor(3), torch.tensor(1)
    )
    if dtype.is_floating_point:
        read = (lambda x, n: F.threshold(x, n.item(), 20.0)), x, torch.tensor(3.0, dtype=torch.float64)
        told(*read, *(torch.tensor(n, dtype=torch.float64) for n in (0.1, 0.2, 0.7, -0.3, nan, inf)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, -1, 2, 3, -5, 7, 100]).to(dtype)
    shifts = [0, 1, 6, 7, 8, 31, 32, 63, 64, 100]
    told(lambda x, n: (x << n, x >> n), x, 3, *shifts)
    told(lambda x, n: (x << n.item(), x >> n.item()), x, torch.tensor(3), *map(torch.tensor, [*shifts, -1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_way_between_two_ends(dtype: torch.dtype) -> None:
    x = torch.tensor([0.25, -0.5, 3.5, inf, nan]).to(dtype)
    told(lambda x, n: torch.lerp(x, x.flip(0) * 2, n / 8.0), x, 3, 0, 1, 4, 5, 8, 20)
    weights = map(torch.tensor, (0.0, 0.25, 1.0, inf, nan))
    told(lambda x, n: torch.lerp(x, x + 1, n.item()), x, torch.tensor(0.5), *weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_activations(dtype: torch.dtype) -> None:
    def activated(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        a = n.item()
        return F.leaky_relu(x, a), F.celu(x, a), F.softplus(x, a), F.softplus(x, 1.0, a), F.elu(x, a)

    x = torch.tensor([0.0, -0.0, 0.5, -1.5, 3.0, 30.0, -40.0, inf, nan]).to(dtype)
    told(activated, x, torch.tensor(2.0), *map(torch.tensor, (0.25, 1.0, 0.75, 4.0)), close=True)
