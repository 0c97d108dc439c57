"""The error function: in f32 where a target lacks it, and in f64, which tract's own does not take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ir.types import DType

if TYPE_CHECKING:
    from nnef_backend.building.verbs import Verbs

# erf(x) = x P(x^2) / Q(x^2) up to LIMIT, from where erf is 1 in f32. A rational of degrees 5 and 5, fitted here to
# the least largest relative error (Lawson's weights, Chebyshev basis): 1.9e-8 in exact numbers; evaluated in f32 it is
# within 4.5e-7 of erf, relatively, over all of f32 (2 million points tried).
LIMIT = 3.92
SINGLE = (
    (1.1283791065216064, 0.19040600955486298, 0.05274862423539162, 0.0037655862979590893, 0.0002848803123924881,
     2.0500690425251378e-06),
    (1.0, 0.5020756721496582, 0.11410888284444809, 0.014969157055020332, 0.001162524800747633, 3.809139889199287e-05),
)  # fmt: skip
# exp(x^2) erfc(x) for x >= 0 in powers of t = (x - 3) / (x + 3): Chebyshev interpolation, made here with 40 digits,
# relatively within 1e-14; and erf(x) / x in powers of x^2 near zero, Taylor's.
SCALED = (
    0.17900115118138996, -0.32623356004303716, 0.24560380171233048, -0.15011593650078278, 0.07166583719799788,
    -0.024392499318489157, 0.004269136332415786, 0.0007077464361260417, -0.0005970619437962337, 4.525532249160993e-05,
    6.405652407854396e-05, -1.2860623478939725e-05, -7.978001654532587e-06, 2.120432392748079e-06,
    1.252148986538414e-06, -2.9483570833343876e-07, -2.340473270701172e-07, 2.9654159565712603e-08,
    4.620817866769221e-08, 1.924690801373214e-10, -8.394519613936288e-09, -8.491780077370762e-10,
    1.1702625794718176e-09, 1.330353367229187e-10, -8.834300726351003e-11,
)  # fmt: skip
NEAR = tuple((-1) ** k * 2 / math.sqrt(math.pi) / (math.factorial(k) * (2 * k + 1)) for k in range(13))


def erf(h: Verbs, x: Any) -> Any:
    """The error function."""
    if x.type.dtype is DType.float64:
        near = h.emit("mul", x, polynomial(h, h.emit("mul", x, x), NEAR))
        return h.emit("select", h.emit("lt", h.emit("abs", x), 0.5), near, h.emit("sub", 1.0, erfc(h, x)))
    if h.has("tract_core_erf"):
        return h.emit("tract_core_erf", x)
    z = h.emit("min", h.emit("max", x, -LIMIT), LIMIT)
    square = h.emit("mul", z, z)
    above, below = (polynomial(h, square, c) for c in SINGLE)
    return h.emit("div", h.emit("mul", z, above), below)


def erfc(h: Verbs, x: Any) -> Any:
    """What the error function lacks to 1, which in f64 keeps its digits where it is small."""
    if x.type.dtype is not DType.float64:
        return h.emit("sub", 1.0, erf(h, x))
    size = h.emit("min", h.emit("abs", x), 30.0)  # where it is 0; infinity would have no square
    right = h.emit("mul", h.emit("exp", h.emit("neg", h.emit("mul", size, size))), erfcx_right(h, size))
    made = h.emit("select", h.emit("lt", x, 0.0), h.emit("sub", 2.0, right), right)
    return h.emit("select", h.is_nan(x), x, made)


def erfcx_right(h: Verbs, x: Any) -> Any:
    """exp(x^2) erfc(x) of f64 that are not negative."""
    return polynomial(h, h.emit("div", h.emit("sub", x, 3.0), h.emit("add", x, 3.0)), SCALED)


def polynomial(h: Verbs, x: Any, coefficients: Sequence[float]) -> Any:
    """Their sum times powers of `x`, lowest power first, by Horner's rule."""
    made: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        made = h.emit("add", h.emit("mul", x, made), c)
    return made
