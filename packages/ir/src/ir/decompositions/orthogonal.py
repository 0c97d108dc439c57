"""Orthogonal polynomials, of a degree that may be a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.loops import repeat, repeat_until
from ir.decompositions.registry import decomposition
from ir.decompositions.series import double, result_type


def _overflowing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Infinite where the type that torch computes in ends, which makes NaN two steps of a recurrence later."""
    if dtype is torch.float64:
        return x
    return torch.where(x.abs() > torch.finfo(dtype).max, x * math.inf, x)


def _degree(n: Any) -> Tensor:
    """A whole number; what is none in int64 is negative."""
    n = double(n)
    return torch.where(n.abs() < 2.0**63, torch.trunc(n), -1.0)


# -- Chebyshev's -------------------------------------------------------------------------------------------------------


_SHORT = 8  # up to this degree by the recurrence, as in torch's kernels; in closed form beyond
_FIRST = {"t": (1, 0), "u": (2, 0), "v": (2, -1), "w": (2, 1)}  # degree 1 as a factor of x and a constant


def _logarithm(kind: str, m: Tensor, angle: Tensor, right: Tensor) -> Tensor:
    """The logarithm of the size of a polynomial outside of [-1, 1], of degree `m` and x = +-cosh(angle)."""
    if kind == "t":
        return m * angle + torch.log((1 + torch.exp(-2 * m * angle)) / 2)
    if kind == "u":
        return m * angle + torch.log(torch.expm1(-2 * (m + 1) * angle) / torch.expm1(-2 * angle))
    even = torch.log((1 + torch.exp(-(2 * m + 1) * angle)) / (1 + torch.exp(-angle)))
    odd = torch.log(torch.expm1(-(2 * m + 1) * angle) / torch.expm1(-angle))
    return m * angle + torch.where(right, *((even, odd) if kind == "v" else (odd, even)))


def _inside(kind: str, n: Tensor, x: Tensor) -> Tensor:
    """A polynomial on (-1, 1), of cosines and sines."""
    angle = torch.acos(x)
    if kind == "t":
        return torch.cos(n * angle)
    if kind == "u":
        return torch.sin((n + 1) * angle) / torch.sin(angle)
    of = torch.cos if kind == "v" else torch.sin
    return of((n + 0.5) * angle) / of(angle / 2)


def _chebyshev(kind: str, x: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    odd = torch.fmod(n, 2) != 0
    slope, constant = _FIRST[kind]
    before, last = torch.ones_like(x), _overflowing(slope * x + constant, dtype)
    short = torch.where(n == 0, before, last)
    for k in range(2, _SHORT + 1):
        before, last = last, _overflowing(2 * x * last - before, dtype)
        short = torch.where(n == k, last, short)

    size = torch.clamp(x.abs(), min=1.0)
    angle = torch.log1p((size - 1) + torch.sqrt((size - 1) * (size + 1)))  # the area cosine
    outside = torch.exp(_logarithm(kind, n, angle, x > 0))
    earlier = _logarithm(kind, n - 2, angle, x > 0)  # infinity less infinity in the recurrence
    outside = torch.where(earlier > math.log(torch.finfo(dtype).max), math.nan, outside)
    outside = torch.where(odd & (x < 0), -outside, outside)
    value = torch.where(n <= _SHORT, short, torch.where(x.abs() < 1, _inside(kind, n, x), outside))

    up = {"t": torch.ones_like(n), "u": n + 1, "v": torch.ones_like(n), "w": 2 * n + 1}[kind]
    down = {"t": torch.ones_like(n), "u": n + 1, "v": 2 * n + 1, "w": torch.ones_like(n)}[kind]
    down = torch.where(odd, -down, down)
    value = torch.where(x == 1, up, torch.where(x == -1, down, value))
    return torch.where(n < 0, 0.0, value)


def _chebyshev_row(kind: str, shifted: bool) -> None:
    def polynomial(x: Any, n: Any) -> Tensor:
        dtype = result_type(x, n)
        wide = 2 * double(x) - 1 if shifted else double(x)
        return _chebyshev(kind, wide, _degree(n), dtype).to(dtype)

    decomposition(f"special_{'shifted_' if shifted else ''}chebyshev_polynomial_{kind}")(polynomial)


for _kind in _FIRST:
    for _shifted in (False, True):
        _chebyshev_row(_kind, _shifted)


# -- by their recurrences ----------------------------------------------------------------------------------------------


Recurrence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | float]]  # x and k to a, b and c, for
# p[k + 1] = (a p[k] - b p[k - 1]) / c
_BOUNDED = {
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k: (2 * x, 2 * k, 1.0)),
    "hermite_polynomial_he": (lambda x: x, lambda x, k: (x, k, 1.0)),
}
_UNBOUNDED = {
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda x, k: (2 * k + (1 - x), k, k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda x, k: ((2 * k + 1) * x, k, k + 1)),
}


def _by_recurrence(first: Callable[[Tensor], Tensor], following: Recurrence, bounded: bool, x: Any, n: Any) -> Tensor:
    """A polynomial of degree `n`. Torch's kernels for those of Hermite have nan beyond a bound."""
    dtype = result_type(x, n)
    limit = 512 if dtype is torch.float64 else 128
    wide, degree = torch.broadcast_tensors(double(x), _degree(n))
    low, high = torch.ones_like(wide), _overflowing(first(wide), dtype)

    def step(i: Tensor, low: Tensor, high: Tensor, found: Tensor, wide: Tensor, degree: Tensor) -> list[Tensor]:
        k = (i + 1).to(torch.float64)
        a, b, c = following(wide, k)
        new = _overflowing((_overflowing(a * high, dtype) - _overflowing(b * low, dtype)) / c, dtype)
        return [high, new, torch.where(degree == k + 1, new, found)]

    state = [low, high, torch.where(degree == 0, low, high)]
    if isinstance(n, Tensor) and not bounded:
        most = torch.cat([degree.flatten(), torch.ones(1, dtype=torch.float64)]).max()  # also of none
        found = repeat_until(most.to(torch.int64) - 1, step, state, wide, degree)[2]
    else:
        highest = limit if isinstance(n, Tensor) else min(int(n), limit) if bounded else int(n)
        found = repeat(highest - 1, step, state, wide, degree)[2] if highest > 1 else state[2]
    found = torch.where(degree > limit, math.nan, found) if bounded else found
    return torch.where(degree < 0, 0.0, found).to(dtype)


for _table in (_BOUNDED, _UNBOUNDED):
    for _name, (_first, _following) in _table.items():
        decomposition(f"special_{_name}")(partial(_by_recurrence, _first, _following, _table is _BOUNDED))
