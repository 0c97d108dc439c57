"""The incomplete gamma functions P and Q.

Where x is near a large a: N. Temme's uniform expansion (DLMF 8.12); left of it the power series (8.11.4), right of it
Legendre's continued fraction (8.9.2), both from their far end on, and for little a and x the series 8.7.3.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.gamma import log_gamma
from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition
from ir.decompositions.series import double, horner, result_type

_G = 6.024680040776729583740234375  # of Lanczos' sum of 13 terms, in the form of J. Maddock (Boost)
_LANCZOS_ABOVE = (
    0.006061842346248907, 0.5098416655656676, 19.519927882476175, 449.9445569063168, 6955.999602515376,
    75999.29304014542, 601859.6171681099, 3481712.154980646, 14605578.087685067, 43338889.32467614, 86363131.28813859,
    103794043.11634454, 56906521.9134716,
)  # fmt: skip
_LANCZOS_BELOW = (
    1.0, 66.0, 1925.0, 32670.0, 357423.0, 2637558.0, 13339535.0, 45995730.0, 105258076.0, 150917976.0, 120543840.0,
    39916800.0, 0.0,
)  # fmt: skip
_STEPS = 150  # of the series and of the fraction
_LITTLE = 26  # terms of the series for little a and x
_ROWS, _POWERS = 14, 18  # of Temme's expansion for a > 20 and |x - a| < 0.3 a


@functools.cache
def temme() -> tuple[tuple[float, ...], ...]:
    """The coefficients of Temme's expansion: a row for each power of eta, a column for each of 1 / a (DLMF 8.12.12)."""
    last = 2 * _ROWS + _POWERS
    alpha = [Fraction(0), Fraction(1)]
    for k in range(2, last + 2):
        alpha.append((alpha[k - 1] - sum(j * alpha[j] * alpha[k - j + 1] for j in range(2, k))) / (k + 1))
    first = [Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, last))]
    columns, stirling = [first], Fraction(1)  # of Gamma's series: 1 / 12, 1 / 288, ...
    for k in range(1, _ROWS):
        stirling = math.prod(range(3, 2 * k + 2, 2)) * alpha[2 * k + 1] * (-1) ** k
        columns.append(
            [stirling * a + (n + 2) * b for n, (a, b) in enumerate(zip(first, columns[-1][2:], strict=False))]
        )
    return tuple(tuple(float(column[n]) for column in columns) for n in range(_POWERS))


def _log_rest(x: Tensor, a: Tensor) -> Tensor:
    """log(x / a) - s with s = x / a - 1, where that is small by the series of an area tangent."""
    s = (x - a) / a
    r = s / (2 + s)
    u = r * r
    near = 2 * r * u * horner(u, [1 / (2 * k + 3) for k in range(12, -1, -1)]) - s * r
    return torch.where(s.abs() < 0.35, near, torch.log(x / a) - s)


def _uniform(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q for large `a` and `x` close to it."""
    eta = torch.sign(x - a) * torch.sqrt(-2 * _log_rest(x, a))
    power, (*rows, row) = eta.unsqueeze(-1), (torch.tensor(row, dtype=torch.float64) for row in temme())
    for lower in reversed(rows):
        row = row * power + lower
    total = (row * (1 / a).unsqueeze(-1).pow(torch.arange(_ROWS, dtype=torch.float64))).sum(-1)
    rest = torch.exp(-0.5 * a * eta * eta) * total / torch.sqrt(2 * math.pi * a)
    edge = eta * torch.sqrt(a / 2)
    return 0.5 * torch.erfc(-edge) - rest, 0.5 * torch.erfc(edge) + rest


def _factor(a: Tensor, x: Tensor) -> Tensor:
    """x^a e^-x / Gamma(a)."""
    z = 1 / a
    above = torch.where(a > 1, horner(z, _LANCZOS_ABOVE[::-1]), horner(a, _LANCZOS_ABOVE))
    below = torch.where(a > 1, horner(z, _LANCZOS_BELOW[::-1]), horner(a, _LANCZOS_BELOW))
    base = a + (_G - 0.5)
    exponent = a * _log_rest(x, base) + x * (0.5 - _G) / base
    return torch.sqrt(base / math.e) * below / above * torch.exp(exponent)


def _series(i: Tensor, total: Tensor, a: Tensor, x: Tensor) -> list[Tensor]:
    return [1 + x / (a + (_STEPS - i).double()) * total]


def _fraction(i: Tensor, below: Tensor, a: Tensor, x: Tensor) -> list[Tensor]:
    k = (_STEPS - i).double()
    return [x - a + (2 * k - 1) - k * (k - a) / below]


def _little(a: Tensor, x: Tensor) -> Tensor:
    """Q by the series for little arguments."""
    n = torch.arange(1, _LITTLE, dtype=torch.float64)
    signs = torch.tensor([(-1) ** k / math.factorial(k) for k in range(1, _LITTLE)], dtype=torch.float64)
    total = (x.unsqueeze(-1).pow(n) * signs / (a.unsqueeze(-1) + n)).sum(-1)
    exponent = a * torch.log(x) - log_gamma(1 + a)
    return -torch.expm1(exponent) - a * torch.exp(exponent) * total


def _both(self: Any, other: Any) -> tuple[Tensor, Tensor]:
    a, x = torch.broadcast_tensors(double(self), double(other))
    factor = _factor(a, x)
    (total,) = repeat(_STEPS, _series, [torch.ones_like(a)], a, x)
    (below,) = repeat(_STEPS, _fraction, [x - a + (2 * _STEPS + 1)], a, x)
    lower, upper = factor * total / a, factor / below
    by_series = torch.where(x <= 0.5, -0.4 / torch.log(x) < a, 1.1 * x < a)
    q = torch.where(x > 1.1, torch.where(x < a, 1 - lower, upper), torch.where(by_series, 1 - lower, _little(a, x)))
    p = torch.where((x > 1) & (x > a), 1 - q, lower)
    near = (a > 20) & ((x - a).abs() < 0.3 * a)
    p, q = (torch.where(near, u, v) for u, v in zip(_uniform(a, x), (p, q), strict=True))

    none = (x == 0) | (a == math.inf)
    all_ = (a == 0) | (x == math.inf)
    wrong = (a < 0) | (x < 0) | (none & all_) | ((a == 0) & x.isnan())
    p, q = (torch.where(none, low, torch.where(all_, 1.0 - low, t)) for low, t in ((0.0, p), (1.0, q)))
    return torch.where(wrong, math.nan, p), torch.where(wrong, math.nan, q)


@decomposition("igamma", "special_gammainc")
def _igamma(self: Any, other: Any) -> Tensor:
    return _both(self, other)[0].to(result_type(self, other))


@decomposition("igammac", "special_gammaincc")
def _igammac(self: Any, other: Any) -> Tensor:
    return _both(self, other)[1].to(result_type(self, other))
