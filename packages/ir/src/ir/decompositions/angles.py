"""Circular and hyperbolic functions, their inverses, powers: for runtimes without them, or without float64 ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import horner, in_double, own, promoted, result_type

# (sin(x) - x) / x^3 and (cos(x) - 1 + x^2 / 2) / x^4 in powers of x^2, up to an eighth of a turn (Cephes)
_SINE = (1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573136213857245213e-06,
         -1.98412698295895385996e-04, 8.33333333332211858878e-03, -1.66666666666666307295e-01)  # fmt: skip
_COSINE = (-1.13585365213876817300e-11, 2.08757008419747316778e-09, -2.75573141792967388112e-07,
           2.48015872888517045348e-05, -1.38888888888730564116e-03, 4.16666666666665929218e-02)  # fmt: skip
PI = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)  # two parts of 33 bits and the rest
# atan(x) = x + x z P(z) / Q(z) with z = x^2, for |x| <= 0.66 (Cephes)
_ATAN_ABOVE = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
               -1.228866684490136173410e2, -6.485021904942025371773e1)  # fmt: skip
_ATAN_BELOW = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
               4.853903996359136964868e2, 1.945506571482613964425e2)  # fmt: skip


def _turned(x: Tensor, quarters: int) -> Tensor:
    """The sine of so many quarter turns more. The parts of pi / 2 are exact up to a million turns or so."""
    turns = torch.round(x * (2 / math.pi))
    for part in PI:
        x = x - turns * (part / 2)
    z = x * x
    sine = x + x * z * horner(z, _SINE)
    cosine = 1 - (0.5 * z - z * z * horner(z, _COSINE))
    turns = turns + quarters
    quarter = turns - 4 * torch.floor(turns * 0.25)
    made = torch.where((quarter == 1) | (quarter == 3), cosine, sine)
    return torch.where(quarter >= 2, -made, made)


@decomposition("sin")
@in_double
def _sin(x: Tensor) -> Tensor:
    return _turned(x, 0)


@decomposition("cos")
@in_double
def _cos(x: Tensor) -> Tensor:
    return _turned(x, 1)


@decomposition("tan")
@in_double
def _tan(x: Tensor) -> Tensor:
    return _turned(x, 0) / _turned(x, 1)


def _arc(x: Tensor) -> Tensor:
    """The angle of a tangent, by one within 0.66 of it."""
    size = x.abs()
    far, middle = size > math.tan(3 * math.pi / 8), size > 0.66
    near = torch.where(far, -1 / size, torch.where(middle, (size - 1) / (size + 1), size))
    z = near * near
    near = near + near * z * horner(z, _ATAN_ABOVE) / horner(z, _ATAN_BELOW)
    made = near + torch.where(far, math.pi / 2, torch.where(middle, math.pi / 4, torch.zeros_like(x)))
    return torch.where(x > 0, made, torch.where(x < 0, -made, x))


@decomposition("atan")
@in_double
def _atan(x: Tensor) -> Tensor:
    return _arc(x)


@decomposition("asin")
@in_double
def _asin(x: Tensor) -> Tensor:
    return torch.where(x == 0, x, 2 * _arc(x / (1 + torch.sqrt((1 - x) * (1 + x)))))


@decomposition("acos")
@in_double
def _acos(x: Tensor) -> Tensor:
    return torch.where(x == -1, math.pi, 2 * _arc(torch.sqrt((1 - x) / (1 + x))))


@decomposition("tanh")
def _tanh(self: Tensor) -> Tensor:
    """Of e^-2|x| - 1 in Kahan's form, (u - 1) log(e^y) / log(u), where the rounding of u cancels."""
    x = own(self)
    y = -2 * x.abs()
    u = torch.exp(y)
    less = torch.where(u == 1, y, torch.where(y < -40, -1.0, (u - 1) * (y / torch.log(u))))
    made = -less / (less + 2)
    return torch.where(x > 0, made, torch.where(x < 0, -made, x)).to(result_type(self))


@decomposition("sinh")
def _sinh(self: Tensor) -> Tensor:
    """Of half the size where the whole would overflow."""
    x = own(self)
    half = torch.expm1(x.abs() / 2)
    power = half + 1
    made = torch.where(
        x.abs() < 1, (torch.expm1(x.abs()) - torch.expm1(-x.abs())) / 2, power * (power / 2) - 0.5 / (power * power)
    )
    return torch.where(x > 0, made, torch.where(x < 0, -made, x)).to(result_type(self))


@decomposition("asinh")
def _asinh(self: Tensor) -> Tensor:
    x = own(self)
    size = x.abs()
    near = torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))
    made = torch.where(size < 1e9, near, torch.log(size) + math.log(2))
    return torch.where(x > 0, made, torch.where(x < 0, -made, x)).to(result_type(self))


@decomposition("atanh")
def _atanh(self: Tensor) -> Tensor:
    x = own(self)
    return (0.5 * (torch.log1p(x) - torch.log1p(-x))).to(result_type(self))


# -- powers ------------------------------------------------------------------------------------------------------------


@decomposition("log2")
def _log2(self: Tensor) -> Tensor:
    return (torch.log(own(self)) / math.log(2)).to(result_type(self))


@decomposition("log10")
def _log10(self: Tensor) -> Tensor:
    return (torch.log(own(self)) / math.log(10)).to(result_type(self))


@decomposition("exp2")
def _exp2(self: Tensor) -> Tensor:
    return torch.pow(torch.full_like(own(self), 2), own(self)).to(result_type(self))


_SIMPLE: dict[float, Callable[[Tensor], Tensor]] = {
    1: lambda x: x, 2: lambda x: x * x, 3: lambda x: x * (x * x), -1: torch.reciprocal, 0.5: torch.sqrt
}  # fmt: skip


@decomposition("pow")
def _pow(self: Any, exponent: Any) -> Tensor:
    """C's pow out of exp and log, with its answers for zeros, infinities and nan; small powers are products."""
    dtype = torch.result_type(self, exponent)
    x, y = map(own, promoted(self, exponent))
    if isinstance(exponent, int | float) and exponent in _SIMPLE:
        return _SIMPLE[exponent](x).to(dtype)
    size = x.abs()
    made = torch.exp(y * torch.log(size))
    made = torch.where((size == 1) & (y.abs() == math.inf), 1.0, made)
    even = torch.floor(y * 0.5) * 2 == y
    whole = torch.floor(y) == y
    made = torch.where(torch.signbit(x) & whole & ~even, -made, made)
    made = torch.where((x < 0) & (size < math.inf) & ~whole, math.nan, made)
    return torch.where((x == 1) | (y == 0), 1.0, made).to(dtype)
