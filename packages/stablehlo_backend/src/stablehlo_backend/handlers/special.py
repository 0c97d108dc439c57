"""Functions that the runtime has not, or not for float64: sines, digamma."""

import math

from ir.types import DType
from stablehlo_backend.handlers.elementwise import copied
from stablehlo_backend.registry import rows

_SIN = (1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
        -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01)  # fmt: skip
_COS = (-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
        2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02)  # fmt: skip
_QUARTER = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624871116645580e-21)  # pi / 2 in three parts


def turning(quarters):
    """The handler of the sine of so many quarter turns more, in float64 with a polynomial on an eighth of a turn.

    The runtime has none for float64, and one for float32 that loses digits; beyond a million this one does.
    """

    def formula(h, x):
        turns = h.emit("round_nearest_even", h.emit("multiply", x, 2 / math.pi))
        for part in _QUARTER:
            x = h.emit("subtract", x, h.emit("multiply", turns, part))
        z = h.emit("multiply", x, x)

        def series(factors):
            made = h.const(factors[0], z)
            for factor in factors[1:]:
                made = h.emit("add", h.emit("multiply", made, z), factor)
            return h.emit("multiply", made, z)

        sine = h.emit("add", x, h.emit("multiply", x, series(_SIN)))
        cosine = h.emit("add", h.emit("multiply", h.emit("subtract", series(_COS), 0.5), z), 1)
        turns = h.emit("add", turns, quarters)
        quarter = h.emit("subtract", turns, h.emit("multiply", h.emit("floor", h.emit("multiply", turns, 0.25)), 4))
        odd = h.emit("or", h.compare("EQ", quarter, 1), h.compare("EQ", quarter, 3))
        made = h.where(odd, cosine, sine)
        return h.where(h.compare("GE", quarter, 2), h.emit("negate", made), made)

    return lambda h, self: h.cast(formula(h, h.cast(self, DType.float64)), self.type.dtype)


def digamma(h, x):
    """Its recurrence up to 10, the asymptotic series from there, and its reflection below zero."""
    x = h.cast(x, DType.float64)
    y = h.where(h.compare("LT", x, 0), h.emit("subtract", h.const(1, x), x), x)
    made = h.const(0, x)
    for _ in range(10):
        low = h.compare("LT", y, 10)
        made = h.emit("subtract", made, h.where(low, h.emit("divide", h.const(1, y), y), 0))
        y = h.where(low, h.emit("add", y, 1), y)
    z = h.emit("divide", h.const(1, y), h.emit("multiply", y, y))
    series = h.const(691 / 32760, z)
    for factor in (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12):
        series = h.emit("add", h.emit("multiply", series, z), factor)
    made = h.emit("add", made, h.emit("subtract", h.emit("log", y), h.emit("divide", h.const(0.5, y), y)))
    made = h.emit("add", made, h.emit("multiply", series, z))
    part = h.emit("multiply", h.emit("subtract", x, h.emit("round_nearest_even", x)), math.pi)
    tangent = h.emit("divide", turning(0)(h, part), turning(1)(h, part))
    turned = h.emit("subtract", made, h.emit("divide", h.const(math.pi, x), tangent))
    turned = h.where(h.compare("EQ", part, 0), math.nan, turned)
    made = h.where(h.compare("LT", x, 0), turned, made)
    return h.where(h.compare("EQ", x, 0), copied(h, h.const(math.inf, x), h.emit("negate", x)), made)


rows({"sin": turning(0), "cos": turning(1), "digamma": lambda h, self: h.cast(digamma(h, self), self.type.dtype)})
