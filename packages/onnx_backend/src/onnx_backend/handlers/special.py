"""Functions that ONNX has no op for: approximations with their sources, good to about 1e-7 unless said otherwise."""

from __future__ import annotations

import math

from ir.types import DType
from onnx_backend import double as double_form
from onnx_backend.emission import WAY_OUT
from onnx_backend.handlers.elementwise import LARGEST, signbit
from onnx_backend.registry import register as op


def polynomial(h, x, *coefficients):
    """Horner's rule, from the lowest power on."""
    *rest, total = coefficients
    for c in reversed(rest):
        total = h.emit("Add", h.emit("Mul", x, total), c)
    return total


def refuse_double(h):
    """Refuse float64 where the form that follows is not good to its last digits."""
    if h.out.dtype is DType.float64 and not h.target.allow_narrowing:
        h.refuse(f"its approximation is good to 7 digits or some more{WAY_OUT[DType.float64]}")


def in_double(fn, exact=True):
    """A handler that computes in float64: onnxruntime has kernels for the plain maths of it."""

    def handler(h, self=None, x=None):  # some schemas name their operand x
        if not exact:
            refuse_double(h)
        return h.cast(fn(h, h.cast(x if self is None else self, DType.float64)), h.out.dtype)

    return handler


def double(*names, exact=True):
    """Register a function of one tensor that computes in float64, and is `exact` to its last digits or is not."""

    def register(fn):
        op(*names)(in_double(fn, exact))
        return fn

    return register


def choose(h, condition, yes, no):
    """Where; one of the two may be a number."""
    yes = yes if h.is_value(yes) else h.const(yes, no)
    return h.emit("Where", condition, yes, no if h.is_value(no) else h.const(no, yes))


def whole(h, x):
    return h.emit("Equal", x, h.emit("Floor", x))


# -- exponentials and logarithms ---------------------------------------------------------------------------------------


@op("aten::expm1", "aten::special_expm1")
def expm1(h, self):
    """e^x - 1 = tanh(x / 2) (e^x + 1), which loses nothing near 0, and is x itself there."""
    half = h.emit("Tanh", h.emit("Mul", self, 0.5))
    made = h.emit("Mul", half, h.emit("Add", h.emit("Exp", self), 1))
    return h.emit("Where", h.emit("Less", h.emit("Abs", self), 2.0**-24), self, made)


@op("aten::log1p", "aten::special_log1p")
def log1p(h, self):
    """What 1 + x rounds off comes back as a factor (Higham, Accuracy and Stability, problem 1.5)."""
    one = h.emit("Add", self, 1)
    kept = h.emit("Min", h.emit("Sub", one, 1), LARGEST[self.type.dtype])  # infinity over itself is nan
    exact = h.emit("Mul", h.emit("Log", one), h.emit("Div", self, kept))
    return h.emit("Where", h.emit("Equal", kept, 0), self, exact)


@op("aten::logaddexp")
def logaddexp(h, self, other):
    gap = h.emit("Abs", h.emit("Sub", self, other))
    apart = h.emit("Add", h.emit("Max", self, other), h.emit("Softplus", h.emit("Neg", gap)))
    return h.emit("Where", h.emit("Equal", self, other), h.emit("Add", self, math.log(2)), apart)  # inf - inf is nan


@op("aten::logaddexp2")
def logaddexp2(h, self, other):
    factor = math.log(2)
    return h.emit("Div", logaddexp(h, h.emit("Mul", self, factor), h.emit("Mul", other, factor)), factor)


@op("aten::xlogy", "aten::special_xlogy")
def xlogy(h, self, other, log=None):
    self, other = h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)
    logarithm = log(h, other) if log else h.emit("Log", other)
    nothing = h.emit("And", h.emit("Equal", self, 0), h.emit("Not", h.emit("IsNaN", other)))
    return choose(h, nothing, 0, h.emit("Mul", self, logarithm))


@op("aten::special_xlog1py")
def special_xlog1py(h, self, other):
    return xlogy(h, self, other, log1p)


@op("aten::special_entr")
def special_entr(h, self):
    value = h.emit("Neg", h.emit("Mul", self, h.emit("Log", self)))
    return choose(h, h.emit("Equal", self, 0), 0, choose(h, h.emit("Less", self, 0), -math.inf, value))


# -- of two sides ------------------------------------------------------------------------------------------------------


@op("aten::hypot")
def hypot(h, self, other):
    """In float64, where the squares of float32 do not overflow."""
    a, b = (h.cast(h.tensor(x, h.out.dtype), DType.float64) for x in (self, other))
    square = h.emit("Add", h.emit("Mul", a, a), h.emit("Mul", b, b))
    endless = h.emit("Or", h.emit("IsInf", a), h.emit("IsInf", b))  # also beside NaN
    return h.cast(h.emit("Where", endless, h.const(math.inf, a), h.emit("Sqrt", square)), h.out.dtype)


@op("aten::atan2", "aten::arctan2")
def atan2(h, self, other):
    """atan(y / x), plus or minus pi on the left; clipping makes infinity over infinity 1, as in C."""
    dtype = h.out.dtype if h.out.dtype.bits >= 32 else DType.float32
    far = 1e307 if dtype is DType.float64 else 1e37
    y, x = (h.emit("Clip", h.cast(t, dtype), -far, far) for t in (self, other))
    origin = h.emit("And", h.emit("Equal", y, 0), h.emit("Equal", x, 0))
    angle = h.emit("Atan", h.emit("Where", origin, y, h.emit("Div", y, x)))
    turn = h.emit("Where", signbit(h, y), h.const(-math.pi, x), h.const(math.pi, x))
    return h.cast(h.emit("Where", signbit(h, x), h.emit("Add", angle, turn), angle), h.out.dtype)


@op("aten::gcd")
def gcd(h, self, other):
    """Euclid's algorithm on all elements at once, until the last one is done."""
    a, b = (h.expand(h.emit("Abs", h.tensor(x, h.out.dtype)), h.out.shape) for x in (self, other))
    formals = [h.formal("i", a.type.with_shape(()).with_dtype(DType.int64)),
               h.formal("more", a.type.with_shape(()).with_dtype(DType.bool)),
               h.formal("a", a.type), h.formal("b", b.type)]  # fmt: skip

    def left(b):
        return h.cast(h.reduce("ReduceSum", h.cast(h.cast(b, DType.bool), DType.int64)), DType.bool)

    def step(i, more, a, b):
        open_ = h.cast(b, DType.bool)
        rest = h.emit("Mod", a, choose(h, open_, b, 1))
        done = [h.emit("Where", open_, b, a), choose(h, open_, rest, 0)]
        return [left(done[1]), *done]

    body = h.graph_of("gcd", formals, step)
    made = h.emit("Loop", None, left(b), a, b, body=body, outputs=2, shape=h.out.shape, dtype=[h.out.dtype] * 2)
    return made[0]


@op("aten::lcm")
def lcm(h, self, other):
    a, b = h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)
    return h.emit("Abs", h.emit("Mul", h.emit("Div", a, h.emit("Max", gcd(h, a, b), 1)), b))


def binade(h, size):
    """The exponent e and the power 2^e with 2^e <= size < 2^(e + 1), exactly, of float64 numbers above 2^-1000."""
    guess = h.emit("Floor", h.emit("Div", h.emit("Log", size), math.log(2)))
    power = h.emit("Pow", h.const(2.0, size), guess)
    less = h.cast(h.emit("Greater", power, size), DType.float64)
    more = h.cast(h.emit("LessOrEqual", h.emit("Mul", power, 2.0), size), DType.float64)
    exponent = h.emit("Add", h.emit("Sub", guess, less), more)
    return exponent, h.emit("Pow", h.const(2.0, size), exponent)


@op("aten::frexp")
def frexp(h, self):
    x = h.cast(self, DType.float64)
    size = h.emit("Abs", x)
    plain = h.emit("And", h.emit("Greater", size, 0), h.emit("Less", size, math.inf))
    exponent, power = binade(h, choose(h, plain, size, 1))
    mantissa = h.emit("Where", plain, h.emit("Mul", h.emit("Div", x, power), 0.5), x)
    exponent = choose(h, plain, h.emit("Add", exponent, 1), 0)
    return h.cast(mantissa, self.type.dtype), h.cast(exponent, DType.int32)


_FRACTION = {DType.float32: (23, -149), DType.float16: (10, -24), DType.bfloat16: (7, -133)}


@op("aten::nextafter")
def nextafter(h, self, other):
    """The step is a power of two, found and taken exactly in float64."""
    if h.out.dtype not in _FRACTION:
        h.refuse(f"{h.out.dtype} has no wider type to compute the step in")
    bits, least = _FRACTION[h.out.dtype]
    x, y = h.cast(self, DType.float64), h.cast(other, DType.float64)
    x, y = h.expand(x, h.out.shape), h.expand(y, h.out.shape)
    size = h.emit("Abs", x)
    power = binade(h, h.emit("Clip", size, 2.0**-160, 2.0**200))[1]
    up = h.emit("Less", x, y)
    outward = h.emit("Equal", up, h.emit("GreaterOrEqual", x, 0))
    edge = h.emit("And", h.emit("Equal", size, power), h.emit("Not", outward))
    share = h.emit("Where", edge, h.const(2.0 ** -(bits + 1), x), h.const(2.0**-bits, x))
    step = h.emit("Max", h.emit("Mul", power, share), 2.0**least)
    moved = h.emit("Add", x, h.emit("Where", up, step, h.emit("Neg", step)))
    largest = h.emit("Mul", h.emit("Sign", x), LARGEST[h.out.dtype])
    moved = h.emit("Where", h.emit("IsInf", x), largest, moved)
    result = h.emit("Where", h.emit("Equal", x, y), y, moved)
    return h.cast(choose(h, h.emit("IsNaN", y), math.nan, result), h.out.dtype)


# -- the error function's family ---------------------------------------------------------------------------------------


def scaled_tail(h, size):
    """erfc(x) e^(x^2) for x >= 0 (Numerical Recipes, erfcc: fractional error below 1.2e-7)."""
    if size.type.dtype is DType.float64 and h.out.dtype is DType.float64:
        return double_form.scaled_tail(h, size)
    t = h.emit("Div", h.const(1, size), h.emit("Add", h.emit("Mul", size, 0.5), 1))
    fit = polynomial(h, t, -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
                     1.48851587, -0.82215223, 0.17087277)  # fmt: skip
    return h.emit("Mul", t, h.emit("Exp", fit))


@op("aten::erfc", "aten::special_erfc")
def erfc(h, self):
    size = h.emit("Abs", self)
    tail = h.emit("Mul", h.emit("Exp", h.emit("Neg", h.emit("Mul", self, self))), scaled_tail(h, size))
    return h.emit("Where", h.emit("Less", self, 0), h.emit("Sub", h.const(2, self), tail), tail)


@op("aten::special_erfcx")
def special_erfcx(h, self):
    tail = scaled_tail(h, h.emit("Abs", self))
    whole = h.emit("Sub", h.emit("Mul", h.emit("Exp", h.emit("Mul", self, self)), 2), tail)
    return h.emit("Where", h.emit("Less", self, 0), whole, tail)


@double("aten::special_ndtri", exact=False)
def ndtri(h, p):
    """The normal quantile (P. Acklam's rational fits, relative error below 1.2e-9)."""
    q = h.emit("Sub", p, 0.5)
    r = h.emit("Mul", q, q)
    middle = h.emit("Div", h.emit("Mul", q, polynomial(
        h, r, 2.506628277459239, -30.66479806614716, 138.3577518672690, -275.9285104469687, 220.9460984245205,
        -39.69683028665376)), polynomial(h, r, 1.0, -13.28068155288572, 66.80131188771972, -155.6989798598866,
                                         161.5858368580409, -54.47609879822406))  # fmt: skip
    side = h.emit("Min", p, h.emit("Sub", h.const(1, p), p))
    s = h.emit("Sqrt", h.emit("Mul", h.emit("Log", side), -2))
    tail = h.emit("Div", polynomial(h, s, 2.938163982698783, 4.374664141464968, -2.549732539343734, -2.400758277161838,
                                    -0.3223964580411365, -0.007784894002430293),
                  polynomial(h, s, 1.0, 3.754408661907416, 2.445134137142996, 0.3224671290700398,
                             0.007784695709041462))  # fmt: skip
    tail = h.emit("Where", h.emit("Greater", q, 0), h.emit("Neg", tail), tail)
    inner = h.emit("GreaterOrEqual", side, 0.02425)
    found = h.emit("Where", inner, middle, tail)
    return h.emit("Where", h.emit("Equal", h.emit("Abs", q), 0.5), h.emit("Mul", q, math.inf), found)


@double("aten::erfinv", "aten::special_erfinv", exact=False)
def erfinv(h, x):
    near = h.emit("Mul", x, math.sqrt(math.pi) / 2)  # where (x + 1) / 2 rounds x off
    found = h.emit("Div", ndtri(h, h.emit("Mul", h.emit("Add", x, 1), 0.5)), math.sqrt(2))
    return h.emit("Where", h.emit("Less", h.emit("Abs", x), 1e-5), near, found)
