"""Bessel functions and orthogonal polynomials.

The former are the polynomial fits of Abramowitz and Stegun, 9.4 and 9.8, and of Numerical Recipes, 6.5 and 6.6:
relative errors are below 3e-7 for the modified ones; the others have absolute errors below 1e-7. The latter are
recurrences.
"""

from __future__ import annotations

import math

import numpy as np

from ir.types import DType
from onnx_backend.handlers.index import flat
from onnx_backend.handlers.special import choose, double, polynomial
from onnx_backend.registry import register as op

SMALL_I = {0: (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813),
           1: (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411)}  # fmt: skip
LARGE_I = {0: (0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633,
               0.00392377),
           1: (0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654,
               -0.00420059)}  # fmt: skip
SMALL_K = {0: (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740),
           1: (1.0, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686)}  # fmt: skip
LARGE_K = {0: (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208),
           1: (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245)}  # fmt: skip
SMALL_J = {0: ((57568490574.0, -13362590354.0, 651619640.7, -11214424.18, 77392.33017, -184.9052456),
               (57568490411.0, 1029532985.0, 9494680.718, 59272.64853, 267.8532712, 1.0)),
           1: ((72362614232.0, -7895059235.0, 242396853.1, -2972611.439, 15704.48260, -30.16036606),
               (144725228442.0, 2300535178.0, 18583304.74, 99447.43394, 376.9991397, 1.0))}  # fmt: skip
SMALL_Y = {0: ((-2957821389.0, 7062834065.0, -512359803.6, 10879881.29, -86327.92757, 228.4622733),
               (40076544269.0, 745249964.8, 7189466.438, 47447.26470, 226.1030244, 1.0)),
           1: ((-0.4900604943e13, 0.1275274390e13, -0.5153438139e11, 0.7349264551e9, -0.4237922726e7, 0.8511937935e4),
               (0.2499580570e14, 0.4244419664e12, 0.3733650367e10, 0.2245904002e8, 0.1020426050e6, 0.3549632885e3,
                1.0))}  # fmt: skip
PHASE = {0: ((1.0, -0.1098628627e-2, 0.2734510407e-4, -0.2073370639e-5, 0.2093887211e-6),
             (-0.1562499995e-1, 0.1430488765e-3, -0.6911147651e-5, 0.7621095161e-6, -0.934935152e-7)),
         1: ((1.0, 0.183105e-2, -0.3516396496e-4, 0.2457520174e-5, -0.240337019e-6),
             (0.04687499995, -0.2002690873e-3, 0.8449199096e-5, -0.88228987e-6, 0.105787412e-6))}  # fmt: skip


def over(h, a, x):
    return h.emit("Div", h.const(a, x), x)


def modified_i(h, x, order, scaled):
    """I of order 0 or 1, times e^-|x| where scaled; x >= 0 is not needed."""
    size = h.emit("Abs", x)
    ratio = h.emit("Div", size, 3.75)
    small = polynomial(h, h.emit("Mul", ratio, ratio), *SMALL_I[order])
    small = h.emit("Mul", small, size) if order else small
    bound = h.emit("Max", size, 3.75)
    large = h.emit("Div", polynomial(h, over(h, 3.75, bound), *LARGE_I[order]), h.emit("Sqrt", bound))
    near = h.emit("Less", size, 3.75)
    if scaled:
        value = h.emit("Where", near, h.emit("Mul", small, h.emit("Exp", h.emit("Neg", size))), large)
    else:
        value = h.emit("Where", near, small, h.emit("Mul", large, h.emit("Exp", size)))
    return h.emit("Where", h.emit("Less", x, 0), h.emit("Neg", value), value) if order else value


def modified_k(h, x, order, scaled):
    """K of order 0 or 1 for x > 0, times e^x where scaled."""
    half = h.emit("Mul", x, 0.5)
    fit = polynomial(h, h.emit("Mul", half, half), *SMALL_K[order])
    product = h.emit("Mul", h.emit("Log", half), modified_i(h, x, order, False))
    small = h.emit("Add", product, h.emit("Div", fit, x)) if order else h.emit("Sub", fit, product)
    bound = h.emit("Max", x, 2.0)
    large = h.emit("Div", polynomial(h, over(h, 2.0, bound), *LARGE_K[order]), h.emit("Sqrt", bound))
    near = h.emit("LessOrEqual", x, 2.0)
    if scaled:
        value = h.emit("Where", near, h.emit("Mul", small, h.emit("Exp", x)), large)
    else:
        value = h.emit("Where", near, small, h.emit("Mul", large, h.emit("Exp", h.emit("Neg", bound))))
    value = choose(h, h.emit("Equal", x, 0), math.inf, value)
    return choose(h, h.emit("Less", x, 0), math.nan, value)


def oscillating(h, size, order, second):
    """J (or Y, where `second`) far out: a sine with slowly changing phase."""
    bound = h.emit("Max", size, 8.0)
    z = over(h, 8.0, bound)
    y = h.emit("Mul", z, z)
    p, q = (polynomial(h, y, *c) for c in PHASE[order])
    angle = h.emit("Sub", bound, math.pi / 4 * (1 + 2 * order))
    cosine, sine = h.emit("Cos", angle), h.emit("Sin", angle)
    qz = h.emit("Mul", q, z)
    if second:
        wave = h.emit("Add", h.emit("Mul", sine, p), h.emit("Mul", cosine, qz))
    else:
        wave = h.emit("Sub", h.emit("Mul", cosine, p), h.emit("Mul", sine, qz))
    return h.emit("Mul", h.emit("Sqrt", over(h, 2 / math.pi, bound)), wave)


def ratio(h, x, fits):
    y = h.emit("Mul", x, x)
    return h.emit("Div", polynomial(h, y, *fits[0]), polynomial(h, y, *fits[1]))


def bessel_j(h, x, order):
    size = h.emit("Abs", x)
    bound = h.emit("Min", size, 8.0)
    small = ratio(h, bound, SMALL_J[order])
    small = h.emit("Mul", small, bound) if order else small
    value = h.emit("Where", h.emit("Less", size, 8.0), small, oscillating(h, size, order, False))
    return h.emit("Where", h.emit("Less", x, 0), h.emit("Neg", value), value) if order else value


def bessel_y(h, x, order):
    bound = h.emit("Min", x, 8.0)
    small = ratio(h, bound, SMALL_Y[order])
    inner = h.emit("Mul", bessel_j(h, bound, order), h.emit("Log", bound))
    if order:
        small, inner = h.emit("Mul", small, bound), h.emit("Sub", inner, h.emit("Reciprocal", bound))
    small = h.emit("Add", small, h.emit("Mul", inner, 2 / math.pi))
    value = h.emit("Where", h.emit("Less", x, 8.0), small, oscillating(h, x, order, True))
    value = choose(h, h.emit("Equal", x, 0), -math.inf, value)
    return choose(h, h.emit("Less", x, 0), math.nan, value)


for _order in (0, 1):
    _both = (f"aten::special_i{_order}", f"aten::special_modified_bessel_i{_order}")
    double(*_both, *(("aten::i0",) if _order == 0 else ()), exact=False)(
        lambda h, x, n=_order: modified_i(h, x, n, False)
    )
    double(f"aten::special_i{_order}e", exact=False)(lambda h, x, n=_order: modified_i(h, x, n, True))
    double(f"aten::special_modified_bessel_k{_order}", exact=False)(lambda h, x, n=_order: modified_k(h, x, n, False))
    double(f"aten::special_scaled_modified_bessel_k{_order}", exact=False)(
        lambda h, x, n=_order: modified_k(h, x, n, True)
    )
    double(f"aten::special_bessel_j{_order}", exact=False)(lambda h, x, n=_order: bessel_j(h, x, n))
    double(f"aten::special_bessel_y{_order}", exact=False)(lambda h, x, n=_order: bessel_y(h, x, n))


@double("aten::special_spherical_bessel_j0")
def spherical_bessel_j0(h, x):
    finite = h.emit("Clip", x, -1e300, 1e300)  # the limit is 0
    return choose(h, h.emit("Equal", x, 0), 1, h.emit("Div", h.emit("Sin", finite), finite))


# -- orthogonal polynomials --------------------------------------------------------------------------------------------

# name -> degree 1 as (factor of x, constant), then (a, b, c, e), (f, g) and (i, j) of
# p[k + 1] = ((a + b k + c x + e k x) p[k] - (f + g k) p[k - 1]) / (i + j k)
RECURRENCES = {
    "chebyshev_polynomial_t": ((1, 0), (0, 0, 2, 0), (1, 0), (1, 0)),
    "chebyshev_polynomial_u": ((2, 0), (0, 0, 2, 0), (1, 0), (1, 0)),
    "chebyshev_polynomial_v": ((2, -1), (0, 0, 2, 0), (1, 0), (1, 0)),
    "chebyshev_polynomial_w": ((2, 1), (0, 0, 2, 0), (1, 0), (1, 0)),
    "hermite_polynomial_h": ((2, 0), (0, 0, 2, 0), (0, 2), (1, 0)),
    "hermite_polynomial_he": ((1, 0), (0, 0, 1, 0), (0, 1), (1, 0)),
    "laguerre_polynomial_l": ((-1, 1), (1, 2, -1, 0), (0, 1), (1, 1)),
    "legendre_polynomial_p": ((1, 0), (0, 0, 1, 2), (0, 1), (1, 1)),
}


def orthogonal(name, shifted):
    (slope, start), (a, b, c, e), (f, g), (i, j) = RECURRENCES[name]

    def handler(h, x, n):
        x, n = (h.expand(h.cast(h.tensor(t, h.out.dtype), DType.float64), h.out.shape) for t in (x, n))
        x = h.emit("Sub", h.emit("Mul", x, 2.0), 1.0) if shifted else x
        n = h.cast(n, DType.int64)
        low = h.full(h.out.shape, 1.0, DType.float64)
        high = h.emit("Add", h.emit("Mul", x, float(slope)), float(start))
        found = h.emit("Where", h.emit("Equal", n, 0), low, high)

        def line(k, constant, factor):
            return h.emit("Add", h.emit("Mul", k, float(factor)), float(constant))

        def step(k, low, high, found):
            k = h.cast(h.emit("Add", k, 1), DType.float64)
            factor = h.emit("Add", line(k, a, b), h.emit("Mul", x, line(k, c, e)))
            new = h.emit("Sub", h.emit("Mul", factor, high), h.emit("Mul", low, line(k, f, g)))
            new = h.emit("Div", new, line(k, i, j))
            if h.out.dtype is DType.float32:  # what overflows there makes NaN two steps later
                over = h.emit("Greater", h.emit("Abs", new), float(np.finfo(np.float32).max))
                new = h.emit("Where", over, h.emit("Mul", new, math.inf), new)
            here = h.emit("Equal", n, h.emit("Add", h.cast(k, DType.int64), 1))
            return [high, new, h.emit("Where", here, new, found)]

        highest = h.reduce("ReduceMax", h.concat([flat(h, n), h.const([1])], 0))
        found = h.loop(h.emit("Sub", highest, 1), [low, high, found], step)[2]
        return h.cast(choose(h, h.emit("Less", n, 0), 0, found), h.out.dtype)

    return handler


for _name in RECURRENCES:
    op(f"aten::special_{_name}")(orthogonal(_name, False))
    if _name.startswith("chebyshev"):
        op(f"aten::special_shifted_{_name}")(orthogonal(_name, True))
