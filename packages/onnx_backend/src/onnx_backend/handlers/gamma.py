"""The gamma function and its family, in float64."""

from __future__ import annotations

import math

from ir.types import DType
from onnx_backend.handlers.special import choose, double, polynomial, refuse_double, whole
from onnx_backend.registry import register as op


def terms(h, x, count):
    """x, x + 1, ... along a new last axis."""
    return h.emit("Add", h.unsqueeze(x, [x.type.rank]), h.const([float(i) for i in range(count)], x))


def total(h, x):
    return h.reduce("ReduceSum", x, [x.type.rank - 1])


LANCZOS = (676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
           -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)  # fmt: skip


def log_gamma_positive(h, x):
    """Lanczos' approximation with g = 7 and 9 terms, for x > 0."""
    series = total(h, h.emit("Div", h.const(LANCZOS, x), terms(h, x, len(LANCZOS))))
    series = h.emit("Log", h.emit("Add", series, 0.99999999999980993))
    t = h.emit("Add", x, 6.5)
    power = h.emit("Mul", h.emit("Sub", x, 0.5), h.emit("Log", t))
    return h.emit("Add", h.emit("Sub", power, t), h.emit("Add", series, 0.5 * math.log(2 * math.pi)))


@double("aten::lgamma", "aten::special_gammaln")
def lgamma(h, x):
    left = h.emit("Less", x, 0.5)
    right = log_gamma_positive(h, h.emit("Where", left, h.emit("Sub", h.const(1, x), x), x))
    sine = h.emit("Abs", h.emit("Sin", h.emit("Mul", x, math.pi)))
    mirrored = h.emit("Sub", h.emit("Sub", h.const(math.log(math.pi), x), h.emit("Log", sine)), right)
    pole = h.emit("And", h.emit("LessOrEqual", x, 0), whole(h, x))
    pole = h.emit("Or", pole, h.emit("IsInf", x))
    found = choose(h, pole, math.inf, h.emit("Where", left, mirrored, right))
    roots = h.emit("Equal", h.emit("Mul", h.emit("Sub", x, 1), h.emit("Sub", x, 2)), 0)  # which rounding would lose
    return choose(h, roots, 0, found)


@double("aten::digamma", "aten::special_digamma", "aten::special_psi")
def digamma(h, x):
    """Eight steps up the recurrence, then the asymptotic series; mirrored on the left."""
    left = h.emit("Less", x, 0)
    z = h.emit("Where", left, h.emit("Sub", h.const(1, x), x), x)
    below = total(h, h.emit("Reciprocal", terms(h, z, 8)))
    y = h.emit("Add", z, 8)
    u = h.emit("Reciprocal", h.emit("Mul", y, y))
    series = h.emit("Mul", u, polynomial(h, u, 1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132))
    far = h.emit("Sub", h.emit("Log", y), h.emit("Add", h.emit("Div", h.const(0.5, y), y), series))
    right = h.emit("Sub", far, below)
    angle = h.emit("Mul", x, math.pi)
    slope = h.emit("Div", h.emit("Mul", h.emit("Cos", angle), math.pi), h.emit("Sin", angle))
    mirrored = choose(h, whole(h, x), math.nan, h.emit("Sub", right, slope))
    pole = h.emit("Neg", h.emit("Reciprocal", x))  # which knows both zeros
    return h.emit("Where", h.emit("Equal", x, 0), pole, h.emit("Where", left, mirrored, right))


def hurwitz(h, s, q, count=30):
    """The Hurwitz zeta function for s > 1 by Euler and Maclaurin; nan left of -20, where `count` terms do not reach."""
    low = h.emit("Neg", s)
    first = total(h, h.emit("Pow", terms(h, q, count), h.unsqueeze(low, [s.type.rank]) if s.type.rank else low))
    y = h.emit("Add", q, float(count))
    u = h.emit("Reciprocal", h.emit("Mul", y, y))
    factor, tail = h.emit("Div", s, y), None
    for i, bernoulli in enumerate((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)):
        term = h.emit("Mul", factor, bernoulli)
        tail = term if tail is None else h.emit("Add", tail, term)
        rising = h.emit("Mul", h.emit("Add", s, 2 * i + 1), h.emit("Add", s, 2 * i + 2))
        factor = h.emit("Mul", h.emit("Mul", factor, rising), u)
    rest = h.emit("Add", h.emit("Add", h.emit("Div", y, h.emit("Sub", s, 1)), 0.5), tail)
    value = h.emit("Add", first, h.emit("Mul", h.emit("Pow", y, low), rest))
    pole = h.emit("And", h.emit("LessOrEqual", q, 0), whole(h, q))
    value = choose(h, pole, math.inf, choose(h, h.emit("Less", q, -20), math.nan, value))
    return value


@op("aten::special_zeta")
def special_zeta(h, self, other):
    s, q = (h.cast(h.tensor(x, h.out.dtype), DType.float64) for x in (self, other))
    s, q = h.expand(s, h.out.shape), h.expand(q, h.out.shape)
    value = hurwitz(h, s, q)
    undefined = h.emit("And", h.emit("Less", q, 0), h.emit("Not", h.emit("Or", whole(h, s), whole(h, q))))
    value = choose(h, h.emit("Or", undefined, h.emit("Less", s, 1)), math.nan, value)
    return h.cast(choose(h, h.emit("Equal", s, 1), math.inf, value), h.out.dtype)


@op("aten::polygamma", "aten::special_polygamma")
def polygamma(h, n, self):
    x = h.cast(h.cast(self, h.out.dtype), DType.float64)
    if n == 0:
        return h.cast(digamma(h, x), h.out.dtype)
    refuse_double(h)
    left = h.emit("Less", x, 0.5)
    z = h.emit("Where", left, h.emit("Sub", h.const(1, x), x), x) if n == 1 else x
    z = h.emit("Min", z, 1e300) if n == 1 else z  # 0 at infinity, where torch has nan for the others
    value = h.emit("Mul", hurwitz(h, h.const(float(n + 1), x), z), (-1.0) ** (n + 1) * math.factorial(n))
    if n == 1:
        angle = h.cast(x, x.type.dtype if h.out.dtype is DType.float64 else DType.float32)  # as torch: poles are finite
        sine = h.cast(h.emit("Sin", h.emit("Mul", angle, math.pi)), x.type.dtype)
        mirrored = h.emit("Sub", h.emit("Div", h.const(math.pi**2, x), h.emit("Mul", sine, sine)), value)
        value = h.emit("Where", left, mirrored, value)
    return h.cast(value, h.out.dtype)


TERMS = 200  # of the incomplete gamma functions: enough for arguments up to some thousands


def incomplete_gamma(h, a, x):
    """P(a, x) and Q(a, x): the series left of a + 1, the continued fraction right of it (Numerical Recipes, 6.2)."""
    a, x = (h.expand(h.cast(h.tensor(t, h.out.dtype), DType.float64), h.out.shape) for t in (a, x))
    endless = h.emit("And", h.emit("IsInf", a), h.emit("IsInf", x))
    a, tiny = h.emit("Min", a, 1e300), 1e-300
    left = h.emit("Less", x, h.emit("Add", a, 1))
    near, far = h.emit("Where", left, x, h.const(0, x)), h.emit("Where", left, h.emit("Add", a, 2), x)
    far = h.emit("Min", far, 1e300)
    scale = h.emit("Sub", h.emit("Mul", a, h.emit("Log", x)), h.emit("Add", x, log_gamma(h, a)))
    scale = h.emit("Exp", scale)

    def series(i, term, total):
        term = h.emit("Div", h.emit("Mul", term, near), h.emit("Add", a, h.cast(h.emit("Add", i, 1), DType.float64)))
        return [term, h.emit("Add", total, term)]

    def fraction(i, b, c, d, value):
        i = h.cast(h.emit("Add", i, 1), DType.float64)
        step = h.emit("Mul", h.emit("Sub", a, i), i)
        b = h.emit("Add", b, 2.0)
        d = h.emit("Add", h.emit("Mul", step, d), b)
        d = h.emit("Reciprocal", choose(h, h.emit("Less", h.emit("Abs", d), tiny), tiny, d))
        c = h.emit("Add", b, h.emit("Div", step, c))
        c = choose(h, h.emit("Less", h.emit("Abs", c), tiny), tiny, c)
        return [b, c, d, h.emit("Mul", value, h.emit("Mul", d, c))]

    first = h.emit("Reciprocal", a)
    total = h.loop(TERMS, [first, first], series)[1]
    b = h.emit("Add", h.emit("Sub", far, a), 1)
    d = h.emit("Reciprocal", b)
    start = [b, h.full(h.out.shape, 1 / tiny, DType.float64), d, d]
    value = h.loop(TERMS, start, fraction)[3]
    lower = choose(h, h.emit("Equal", x, 0), 0, h.emit("Mul", scale, total))
    upper = choose(h, h.emit("IsInf", x), 0, h.emit("Mul", scale, value))
    one = h.const(1, a)
    p = h.emit("Where", left, lower, h.emit("Sub", one, upper))
    q = h.emit("Where", left, h.emit("Sub", one, lower), upper)
    zero = h.emit("Equal", a, 0)
    p, q = choose(h, zero, 1, p), choose(h, zero, 0, q)
    wrong = h.emit("Or", h.emit("Less", a, 0), h.emit("Less", x, 0))
    wrong = h.emit("Or", wrong, endless)
    wrong = h.emit("Or", wrong, h.emit("And", zero, h.emit("Equal", x, 0)))
    return [h.cast(choose(h, wrong, math.nan, t), h.out.dtype) for t in (p, q)]


def log_gamma(h, a):
    """log Gamma of a >= 0; below 0.5, of a + 1 less the logarithm of a."""
    small = h.emit("Less", a, 0.5)
    value = log_gamma_positive(h, h.emit("Where", small, h.emit("Add", a, 1), a))
    return h.emit("Where", small, h.emit("Sub", value, h.emit("Log", a)), value)


@op("aten::igamma", "aten::special_gammainc")
def igamma(h, self, other):
    return incomplete_gamma(h, self, other)[0]


@op("aten::igammac", "aten::special_gammaincc")
def igammac(h, self, other):
    return incomplete_gamma(h, self, other)[1]
