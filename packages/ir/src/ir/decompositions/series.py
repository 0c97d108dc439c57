"""What the special functions are made of: polynomials, and arithmetic in float64 that is rounded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def in_double(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function of tensors in float64, rounded to the type that torch gives its result."""

    @functools.wraps(fn)
    def computed(*args: Any) -> Tensor:
        dtype = result_type(*args)
        return fn(*(double(a) for a in args)).to(dtype)

    return computed


def result_type(*args: Any) -> torch.dtype:
    """The type of a floating-point function's result."""
    dtype = torch.result_type(*args) if len(args) == 2 else args[0].dtype
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def double(x: Any) -> Tensor:
    """A tensor or number in float64."""
    return x.to(torch.float64) if isinstance(x, Tensor) else torch.scalar_tensor(x, dtype=torch.float64)


def own(x: Tensor) -> Tensor:
    """A tensor in the type that torch's kernel computes in: float64, or else float32."""
    return x if x.dtype is torch.float64 else x.to(torch.float32)


def horner(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A polynomial, highest power first."""
    first, second, *rest = coefficients
    total = x * first + second
    for c in rest:
        total = total * x + c
    return total


def chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A sum of Chebyshev polynomials of x / 2, highest degree first, the last one halved (C. Clenshaw, 1955)."""
    before: Tensor | float = 0.0
    last: Tensor | float = coefficients[0]
    total = x * last + coefficients[1]
    for c in coefficients[2:]:
        before, last, total = last, total, x * total - last + c
    return 0.5 * (total - before)


def promoted(*operands: Any) -> list[Tensor]:
    """Tensors and numbers as tensors of the element type that torch computes with."""
    dtype = torch.result_type(*operands)
    return [x.to(dtype) if isinstance(x, Tensor) else torch.scalar_tensor(x, dtype=dtype) for x in operands]
