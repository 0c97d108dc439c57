"""Special functions and where to try them: everywhere, at their poles and far out. For both backends' tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ir

S = torch.special
INF, NAN = math.inf, math.nan


def _numbers(*parts: Tensor | list[float]) -> Tensor:
    return torch.cat([torch.as_tensor(p, dtype=torch.float64) for p in parts])


def _far(high: float, low: float = -8) -> Tensor:
    return torch.logspace(low, math.log10(high), 60, dtype=torch.float64)


ODD = [0.0, -0.0, 1.0, 2.0, -1.0, -2.0, -7.0, INF, -INF, NAN]
LINE = _numbers(torch.linspace(-30.3, 30, 403), _far(1e7), -_far(555.5), ODD)
WAVE = _numbers(torch.linspace(-30.3, 30, 403), _far(1e6), -_far(1e6), ODD)
UNIT = _numbers(torch.linspace(-1, 1, 301), _far(1e-2, -300), 1 - _far(0.1, -15), [0.0, -0.0, 1.5, INF, NAN])
SIZES = _numbers([0.0, 1e-3, 0.1, 0.5, 1.0, 1.1, 3.0, 7.5, 21.0, 60.0, 199.0, 800.0, 1e4, 3e6, INF, NAN, -1.0])
RIGHT, UP = (t.reshape(-1) for t in torch.meshgrid(SIZES, SIZES, indexing="ij"))
NEAR = _numbers(SIZES[1:14].repeat(5))
AROUND = NEAR + torch.linspace(-4, 4, 5).repeat_interleave(13) * NEAR.sqrt()
ORDERS = _numbers([0.0, 1, 2, 3, 5, 8, 9, 10, 17, 40, 100, -1, 2.5])
WIDE = _numbers(torch.linspace(-1.2, 1.2, 25), [1.0, -1.0, 0.0, 40.0, -40.0, 1 + 1e-9, INF])
X, N = (t.reshape(-1) for t in torch.meshgrid(WIDE, ORDERS, indexing="ij"))
S_, Q = (
    t.reshape(-1)
    for t in torch.meshgrid(
        _numbers([0.5, 1.0, 1.25, 2.0, 3.0, 4.5, 10.0, 33.0, NAN]),
        _numbers(torch.linspace(-60, 60, 41) + 0.013, _far(1e6, -3), [0.0, -1.0, -30.0, NAN]), indexing="ij",
    )
)  # fmt: skip

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "lgamma": (torch.lgamma, (LINE,)),
    "digamma": (torch.digamma, (LINE,)),
    "trigamma": (lambda x: torch.polygamma(1, x), (LINE[LINE > 0],)),
    "polygamma_2": (lambda x: torch.polygamma(2, x), (LINE[LINE.abs() < 1e6],)),
    "polygamma_5": (lambda x: torch.polygamma(5, x), (LINE[LINE.abs() < 1e4],)),
    "zeta": (S.zeta, (S_, Q)),
    "gammainc": (S.gammainc, (RIGHT, UP)),
    "gammaincc": (S.gammaincc, (RIGHT, UP)),
    "gammainc_near": (S.gammainc, (NEAR, AROUND)),
    "gammaincc_near": (S.gammaincc, (NEAR, AROUND)),
    "erfc": (torch.erfc, (LINE,)),
    "erfcx": (S.erfcx, (LINE,)),
    "log_ndtr": (S.log_ndtr, (LINE,)),
    "ndtri": (S.ndtri, (UNIT,)),
    "erfinv": (torch.erfinv, (UNIT,)),
    "airy_ai": (S.airy_ai, (WAVE[WAVE.abs() < 1e4],)),
    "spherical_bessel_j0": (S.spherical_bessel_j0, (WAVE,)),
    **{name: (getattr(S, name), (WAVE,)) for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")},
    **{name: (getattr(S, name), (LINE[LINE.abs() < 700],)) for name in ("i0", "i1", "i0e", "i1e")},
    **{
        f"{scaled}modified_bessel_k{order}": (getattr(S, f"{scaled}modified_bessel_k{order}"), (LINE,))
        for scaled in ("", "scaled_")
        for order in (0, 1)
    },
    **{
        f"{shifted}chebyshev_polynomial_{kind}": (getattr(S, f"{shifted}chebyshev_polynomial_{kind}"), (X, N))
        for shifted in ("", "shifted_")
        for kind in "tuvw"
    },
    "hermite_polynomial_h": (S.hermite_polynomial_h, (X, N)),
    "hermite_polynomial_he": (S.hermite_polynomial_he, (X, N)),
    "legendre_polynomial_p_17": (lambda x: S.legendre_polynomial_p(x, 17), (WIDE,)),
    "laguerre_polynomial_l_17": (lambda x: S.laguerre_polynomial_l(x, 17), (WIDE,)),
    "hypot": (torch.hypot, (RIGHT, UP * 1e160)),
    "atan2": (torch.atan2, (RIGHT - 5, 5 - UP)),
    "log1p": (torch.log1p, (LINE,)),
    "expm1": (torch.expm1, (LINE,)),
    "nextafter": (torch.nextafter, (RIGHT - 1, 1 - UP)),
}
OWN_DIGITS = dict.fromkeys((n for n in FUNCTIONS if n.startswith("gammainc")), 1e-9)  # torch's kernel has pi in float32


def check(name: str, target: str, dtype: torch.dtype) -> None:
    """The function's program against torch, at all numbers and at one.

    Of float32 either as torch computes it or as it does in float64: some of its kernels lose digits.
    """
    function, args = FUNCTIONS[name]
    args = tuple(a.to(dtype) for a in args)
    shapes = ({0: torch.export.Dim("n")},) * len(args)
    program = ir.export(lambda *x: function(*x), args, target=target, dynamic_shapes=(shapes,))
    for given in (args, tuple(a[5:6] for a in args)):
        actual, expected = program(*given), function(*given)
        if dtype is torch.float64:
            torch.testing.assert_close(actual, expected, equal_nan=True, rtol=2e-12, atol=OWN_DIGITS.get(name, 1e-13))
            continue
        close = actual.isclose(expected, 2e-5, 2e-6, equal_nan=True)
        wide = function(*(a.double() for a in given)).to(dtype)
        torch.testing.assert_close(actual, torch.where(close, actual, wide), equal_nan=True, rtol=2e-5, atol=2e-6)


def precisions(first: torch.dtype) -> pytest.MarkDecorator:
    """Both; CI runs the first alone, another on each target, for the mathematics is written once."""
    other = {torch.float64: torch.float32, torch.float32: torch.float64}[first]
    return pytest.mark.parametrize("dtype", [first, pytest.param(other, marks=pytest.mark.slow)], ids=str)
