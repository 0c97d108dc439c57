"""The gamma function's family: its logarithm, the derivatives of that, Hurwitz' zeta function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ir.decompositions.angles import PI
from ir.decompositions.registry import decomposition
from ir.decompositions.series import double, horner, in_double, own, result_type

# log Gamma(x) / ((x - 1) (x - 2)) for x from 0.5 to 3 in powers of (x - 1.5) / (x + 1.5): Chebyshev interpolation, made
# here with 60 digits.
_NEAR = (
    0.5903951363288873, 0.6188234799016256, -0.051340801969304434, -0.3908300377567717, -0.05692943716783985,
    0.06154954834905291, 0.05810671742971232, -0.0396939828965413, 0.022160327179779248, -0.03166614577153371,
    0.03225633409727157, -0.03729434073803426, 0.03616895551954629, -0.0438269802839834, 0.04232856485940459,
    -0.05319463525137768, 0.050915707095028885, -0.06769490617708257, 0.06382812110514063, -0.09321052267250109,
    0.08530564280874374, -0.15080363092818358, 0.12832292192818498, -0.437879687742918, 0.4831289505409809,
)  # fmt: skip
_STIRLING = (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
# (2 k)! / B(2 k), with Bernoulli's numbers
_ZETA = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1892437580.3183792, 74724249600.0, -2950130727918.1642,
    116467828143500.67, -4597978722407472.0, 1.8152105401943546e17, -7.166165256175667e18,
)  # fmt: skip


def _sine_pi(x: Tensor) -> Tensor:
    """sin(pi x), up to its sign, of the distance to the nearest whole number."""
    return torch.sin(math.pi * (x - torch.round(x)))


def log_gamma(x: Tensor) -> Tensor:
    """log |Gamma(x)| of float64 numbers."""
    left = x < 0.5
    y = torch.where(left, 1 - x, x)
    shift = torch.clamp(torch.floor(y) - 2, 0, 11)  # down to where the fit holds
    u = y - shift
    steps = torch.arange(1, 12, dtype=torch.float64, device=x.device)
    factors = torch.where(steps <= shift.unsqueeze(-1), y.unsqueeze(-1) - steps, 1.0)
    near = (u - 1) * (u - 2) * horner((u - 1.5) / (u + 1.5), _NEAR) + torch.log(factors.prod(-1))
    z = 1 / y
    far = (y - 0.5) * (torch.log(y) - 1) + (0.5 * math.log(2 * math.pi) - 0.5) + z * horner(z * z, _STIRLING)
    right = torch.where(y < 13, near, far)
    mirrored = math.log(math.pi) - torch.log(_sine_pi(x).abs()) - right
    pole = ((x <= 0) & (x == torch.floor(x))) | (x == -math.inf)
    return torch.where(pole, math.inf, torch.where(left, mirrored, right))


decomposition("lgamma", "special_gammaln")(in_double(log_gamma))


def _digamma(x: Tensor) -> Tensor:
    """Ten steps up the recurrence, then the asymptotic series; mirrored on the left."""
    left = x < 0
    y = torch.where(left, 1 - x, x)
    low = y < 10
    steps = torch.arange(10, dtype=torch.float64, device=x.device)
    below = torch.where(low, (1 / (y.unsqueeze(-1) + steps)).sum(-1), 0.0)
    z = torch.where(low, y + 10, y)
    u = 1 / (z * z)
    right = torch.log(z) - 0.5 / z - u * horner(u, _DIGAMMA) - below
    part = math.pi * (x - torch.trunc(x))
    mirrored = torch.where(part == 0, math.nan, right - math.pi * torch.cos(part) / torch.sin(part))
    pole = torch.copysign(torch.full_like(x, math.inf), -x)
    return torch.where(x == 0, pole, torch.where(left, mirrored, right))


decomposition("digamma", "special_digamma", "special_psi")(in_double(_digamma))


def _trigamma(self: Tensor) -> Tensor:
    """As torch's kernel, with its six steps and four terms (good to 9 digits)."""
    x = self.double()
    left = x < 0.5
    y = torch.where(left, 1 - x, x)
    total = 1 / (y * y)
    for k in range(1, 6):
        total = total + 1 / ((y + k) * (y + k))
    z = 1 / (y + 6)
    u = z * z
    total = total + (1 + 0.5 * z + u * (1 / 6 - u * (1 / 30 - u / 42))) * z
    # the angle is rounded as torch rounds it, so that the poles are finite as torch's are
    sine = _sine_up_to_sign((math.pi * own(self)).double()).to(own(self).dtype).double()
    return torch.where(left, math.pi**2 / (sine * sine) - total, total)


def _sine_up_to_sign(angle: Tensor) -> Tensor:
    """sin(angle) but for its sign: exact beside the multiples of pi, where runtimes' sines may give 0.

    The multiple is taken off in three parts of pi, exact for 2**20 of them (Cody and Waite, 1980).
    """
    n = torch.round(angle / math.pi)
    for part in PI:
        angle = angle - n * part
    return torch.sin(angle)


def _hurwitz(s: Tensor, q: Tensor) -> Tensor:
    """Hurwitz' zeta function for q > 0, s > 1, by Euler and Maclaurin's sum after ten terms."""
    steps = torch.arange(10, dtype=torch.float64, device=q.device)
    first = (q.unsqueeze(-1) + steps).pow(-s.unsqueeze(-1)).sum(-1)
    w = q + 9
    last = w.pow(-s)
    total = first + last * w / (s - 1) - 0.5 * last
    factor, power = s, last / w
    for k, a in enumerate(_ZETA):
        total = total + factor * power / a
        factor = factor * (s + (2 * k + 1)) * (s + (2 * k + 2))
        power = power / (w * w)
    return total


def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """Hurwitz' zeta function of float64 numbers.

    Left of 0, for whole s: the terms below 0 are those of two other sums, which lack what lies beyond 1 - q.
    """
    left = q < 0
    up, down = q - torch.floor(q), torch.ceil(q) - q
    right = _hurwitz(s, torch.where(left, up, q))
    lacking = _hurwitz(s, down) - _hurwitz(s, 1 - q)
    odd = torch.fmod(s, 2) != 0
    value = torch.where(left, right + torch.where(odd, -lacking, lacking), right)
    value = torch.where(left & (s != torch.floor(s)), math.nan, value)
    value = torch.where((s == math.inf) & (q <= 1), torch.where(q < 1, math.inf, 1.0), value)
    value = torch.where((q <= 0) & (q == torch.floor(q)), math.inf, value)
    return torch.where(s == 1, math.inf, torch.where(s < 1, math.nan, value))


decomposition("special_zeta")(in_double(_zeta))


@decomposition("polygamma", "special_polygamma")
def _polygamma(n: int, self: Tensor) -> Tensor:
    if n == 0:
        value = _digamma(double(self))
    elif n == 1:
        value = _trigamma(self)
    else:
        value = (-1) ** (n + 1) * math.factorial(n) * _zeta(torch.full_like(double(self), n + 1), double(self))
    return value.to(result_type(self))
