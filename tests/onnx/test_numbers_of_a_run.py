"""Numbers that only a run tells, read out of a tensor or given as an integer, where an operator takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir

DYNAMIC = torch.export.Dim.DYNAMIC


def told(function: Callable[[Tensor, Any], Any], x: Tensor, first: Any, *others: Any) -> None:
    """Export at one number and compare with torch at others."""
    shapes = None if isinstance(first, Tensor) else (None, DYNAMIC)
    program = ir.export(lambda x, n: function(x, n), (x, first), target="onnx", dynamic_shapes=shapes)
    for n in others:
        torch.testing.assert_close(program(x, n), function(x, n), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_powers_of_integers_wrap_around(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, -1, 2, 3, -5, 7, 10]).to(dtype)
    exponents = [0, 1, 2, 8, 9, 18, 41, 63, 127]
    told(lambda x, n: x**n, x, 3, *exponents)
    told(lambda x, n: x ** n.item(), x, torch.tensor(3), *map(torch.tensor, exponents))
    told(lambda x, n: x ** (n + 1), x, 3, *exponents[:-1])
