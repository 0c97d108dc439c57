"""Airy's function Ai, by Cephes' rational fits left and right and the Maclaurin series between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import horner, own, result_type

_RIGHT_ABOVE = (
    0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058, 159.75639135016442,
    70.53609068404442, 14.026469116338967, 1.0,
)  # fmt: skip
_RIGHT_BELOW = (
    0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045, 164.2346928715297, 71.47784008255756,
    14.095913560783403, 1.0,
)  # fmt: skip
_SINE_ABOVE = (
    -0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191, -0.04919001326095003,
    -0.004062659235948854, -0.0001592764962392621, -2.776491081552329e-06, -1.6778769848911465e-08,
)  # fmt: skip
_SINE_BELOW = (
    13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596, 1.4752914677166642,
    0.11568717379518804, 0.004402916416152112, 7.547203482874142e-05, 4.5185009297058035e-07,
)  # fmt: skip
_COSINE_ABOVE = (
    0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502, 0.35146565610554764,
    0.06338889196289255, 0.005858041130483885, 0.000282851600836737, 6.98793669997261e-06, 8.117892395543892e-08,
    3.415517847659236e-10,
)  # fmt: skip
_COSINE_BELOW = (
    9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755, 0.9542936116189619,
    0.08645808263523921, 0.004126565238242226, 0.00010125908511650914, 1.1716673321441352e-06, 4.9183457006293e-09,
)  # fmt: skip
_ORIGIN, _SLOPE = 0.355028053887817239260, 0.258819403792806798405  # Ai(0) and -Ai'(0)


def _series(first: int) -> list[float]:
    """1 + z / (a (a + 1)) + z^2 / (a (a + 1) (a + 3) (a + 4)) + ..., with a = `first`, highest power first."""
    terms = [1.0]
    for k in range(16):
        terms.append(terms[-1] / ((first + 3 * k) * (first + 3 * k + 1)))
    return terms[::-1]


@decomposition("special_airy_ai")
def _airy_ai(self: Tensor) -> Tensor:
    x = own(self)
    wide, size = x.double(), x.abs()
    root = torch.sqrt(wide.abs())
    zeta = 2 * wide.abs() * root / 3
    scale = 1 / math.sqrt(math.pi) / torch.sqrt(root)

    z = 1 / zeta
    phase = (2 * size * torch.sqrt(size) / 3 + 0.25 * math.pi).double()  # rounded as in torch's kernel
    f = 1 + z * z * horner(z * z, _SINE_ABOVE) / horner(z * z, _SINE_BELOW)
    g = z * horner(z * z, _COSINE_ABOVE) / horner(z * z, _COSINE_BELOW)
    left = scale * (torch.sin(phase) * f - torch.cos(phase) * g)
    right = scale * horner(z, _RIGHT_ABOVE) / horner(z, _RIGHT_BELOW) / (2 * torch.exp(zeta))

    cube = wide * wide * wide
    middle = _ORIGIN * horner(cube, _series(2)) - _SLOPE * wide * horner(cube, _series(3))
    value = torch.where(x < -2.09, left, torch.where(x >= 2.09, right, middle))
    value = torch.where(x > 103.892, 0.0, value)
    return torch.where(size == math.inf, math.nan, value).to(result_type(self))
