"""The error function's family and its inverses, and logit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import horner, in_double, result_type

# (1 + 2 x) exp(x^2) erfc(x) for x >= 0 in powers of (x - 4) / (x + 4): Chebyshev interpolation with 60 digits.
_TAIL = (
    4.335744696880128e-11, -1.37212432109558e-10, -5.47796315403793e-10, 1.7887492189077536e-09, 3.979908209935334e-09,
    -1.470518755238763e-08, -2.1917128684776733e-08, 1.1009041560728304e-07, 7.89343963476142e-08,
    -8.249127434964572e-07, 2.909062968371427e-07, 5.709201212226352e-06, -1.1220753452725425e-05,
    -2.4398942309069806e-05, 0.00015062130746391778, -0.0001992567764579197, -0.0007577732195352293,
    0.005031969992810925, -0.01619773406595253, 0.03716751553591141, -0.0663303658116485, 0.09373283499843951,
    -0.10103906603632504, 0.06809705425469036, 0.015379652102620042, -0.1396211168405625, 1.2329951186255526,
)  # fmt: skip
# The normal quantile by Cephes' rational fits, above and below the line: in the middle and on two stretches outside.
_MIDDLE_ABOVE = (
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125,
)  # fmt: skip
_MIDDLE_BELOW = (
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066,
    -82.03722561683334, 15.90562251262117, -1.1833162112133,
)  # fmt: skip
_TAIL_ABOVE = (
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803,
    2.1866330685079025, -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854,
)  # fmt: skip
_TAIL_BELOW = (
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094,
    -0.14218292285478779, -0.03808064076915783, -0.0009332594808954574,
)  # fmt: skip
_FAR_ABOVE = (
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908,
    0.012371663481782003, 0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09,
)  # fmt: skip
_FAR_BELOW = (
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663, 0.013420400608854318,
    0.00032801446468212774, 2.8924786474538068e-06, 6.790194080099813e-09,
)  # fmt: skip


def _scaled_tail(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x) for x >= 0."""
    y = torch.clamp(x, max=1e300)
    return horner((y - 4) / (y + 4), _TAIL) / (1 + 2 * x)


def _stored(number: float, dtype: torch.dtype) -> float:
    """The number as a tensor of this type holds it, up to a subnormal's last bits."""
    if not math.isfinite(number):
        return number
    digits = 2 - math.frexp(torch.finfo(dtype).eps)[1]
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(math.ldexp(fraction, digits)), exponent - digits)


@decomposition("logit", "special_logit")
def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    """As torch's kernel: limits rounded to the element type, the lower one first, for they cross above eps = 0.5."""
    x = x.to(result_type(x))
    if eps is not None and eps >= 0:
        low, high = _stored(eps, x.dtype), _stored(1 - _stored(eps, x.dtype), x.dtype)
        x = torch.where(x < low, low, torch.where(x > high, high, x))
    return torch.log(x / (1 - x))


@decomposition("special_erfcx")
@in_double
def _erfcx(x: Tensor) -> Tensor:
    tail = _scaled_tail(x.abs())
    return torch.where(x < 0, 2 * torch.exp(x * x) - tail, tail)


@decomposition("erfc", "special_erfc")
@in_double
def _erfc(x: Tensor) -> Tensor:
    tail = torch.exp(-x * x) * _scaled_tail(x.abs())
    return torch.where(x < 0, 2 - tail, tail)


@decomposition("special_log_ndtr")
@in_double
def _log_ndtr(x: Tensor) -> Tensor:
    t = x * math.sqrt(0.5)
    left = torch.log(_scaled_tail(t.abs()) / 2) - t * t
    return torch.where(x < -1, left, torch.log1p(-torch.erfc(t) / 2))


def _quantile(middle: Tensor, side: Tensor) -> Tensor:
    """The normal quantile of p, given p - 1/2 and the smaller of p and 1 - p."""
    square = middle * middle
    inner = middle + middle * (square * horner(square, _MIDDLE_ABOVE) / horner(square, _MIDDLE_BELOW))
    x = torch.sqrt(-2 * torch.log(side))
    z = 1 / x
    near, far = horner(z, _TAIL_ABOVE) / horner(z, _TAIL_BELOW), horner(z, _FAR_ABOVE) / horner(z, _FAR_BELOW)
    outer = x - torch.log(x) / x - z * torch.where(x < 8, near, far)
    outer = torch.where(side == 0, math.inf, torch.where(middle < 0, -outer, outer))
    outer = torch.where((side == 0) & (middle < 0), -math.inf, outer)
    return torch.where(side > math.exp(-2), math.sqrt(2 * math.pi) * inner, outer)


@decomposition("special_ndtri")
@in_double
def _ndtri(p: Tensor) -> Tensor:
    return _quantile(p - 0.5, torch.minimum(p, 1 - p))


@decomposition("erfinv", "special_erfinv")
@in_double
def _erfinv(x: Tensor) -> Tensor:
    return _quantile(x / 2, (1 - x.abs()) / 2) * math.sqrt(0.5)
