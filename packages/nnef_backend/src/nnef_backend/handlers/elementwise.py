"""Element-wise maths, arithmetic, signs and casts.

tract drops NaN in `max`, `min`, `relu`, `tanh` and `sigmoid`, and its sigmoid never falls below 4e-7; torch does
neither, so that these are written with operations that keep it.
"""

from __future__ import annotations

import math

import numpy as np

from ir.types import DType
from nnef_backend.building.exact import divided, integer_power, integers, powers_above, quotient, reduced, scaled
from nnef_backend.handlers.erf import NEAR, erf, erfc, polynomial
from nnef_backend.registry import register as op
from nnef_backend.registry import rows

rows(
    {
        "neg": "neg", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
        "reciprocal": "recip", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan",
        "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
        "hardswish": "tract_core_hard_swish",
    }
)  # fmt: skip


# -- maths of one tensor ---------------------------------------------------------------------------------------------


@op("aten::abs", "aten::absolute")
def abs_(h, self):
    return self if self.type.dtype.kind in ("uint", "bool") else h.emit("abs", self)


@op("aten::sign", "aten::sgn")
def sign(h, self):
    if self.type.dtype is DType.bool:
        return self
    made = h.emit("sign", self)
    return h.emit("select", h.is_nan(self), 0, made) if self.type.dtype.is_float else made


@op("aten::trunc", "aten::fix")
def trunc(h, self):
    if not self.type.dtype.is_float:
        return self
    return h.emit("select", h.emit("lt", self, 0.0), h.emit("ceil", self), h.emit("floor", self))


@op("aten::round")
def round_(h, self, decimals=0):
    if not self.type.dtype.is_float:
        return self if decimals >= 0 else h.refuse("tract rounds floats only; cast the integers first")
    ten = 10.0 ** abs(decimals)
    if decimals == 0:
        return _round(h, self)
    x = h.floating(self)
    ten = h.tensor(ten, x)
    if decimals > 0:
        return h.cast(quotient(h, _round(h, h.emit("mul", x, ten)), ten), self.type.dtype)
    return h.cast(h.emit("mul", _round(h, quotient(h, x, ten)), ten), self.type.dtype)


def _round(h, x):
    if x.type.dtype is not DType.float64:
        return h.emit("tract_core_round_even", x)
    # f64 only rounds halves away from zero: where it was a half, take the even neighbour instead
    even = h.emit("mul", h.emit("round", h.emit("mul", x, 0.5)), 2.0)
    half = h.emit("eq", h.emit("abs", h.emit("sub", x, trunc(h, x))), 0.5)
    return h.emit("select", half, even, h.emit("round", x))


@op("aten::expm1", "aten::special_expm1")
def expm1(h, self):
    half = h.emit("mul", self, 0.5)
    small = h.emit("mul", h.emit("mul", h.emit("exp", half), h.emit("sinh", half)), 2.0)
    return h.emit("select", h.emit("lt", h.emit("abs", self), 1.0), small, h.emit("sub", h.emit("exp", self), 1.0))


@op("aten::log1p", "aten::special_log1p")
def log1p(h, self):
    small = h.emit("mul", h.emit("atanh", h.emit("div", self, h.emit("add", self, 2.0))), 2.0)
    return h.emit("select", h.emit("lt", h.emit("abs", self), 0.5), small, h.emit("log", h.emit("add", self, 1.0)))


@op("aten::sinc", "aten::special_sinc")
def sinc(h, self):
    angle = h.emit("mul", h.floating(self), math.pi)
    made = h.emit("select", h.emit("eq", angle, 0.0), 1.0, h.emit("div", h.emit("sin", angle), angle))
    return h.cast(made, self.type.dtype)


@op("aten::signbit")
def signbit(h, self):
    dtype = self.type.dtype
    if not dtype.is_float:
        return h.full(self.type.shape, False, DType.bool) if dtype.kind in ("uint", "bool") else h.emit("lt", self, 0)
    if self.array is not None and h.target.tract:  # which takes the reciprocals of 0.0 and -0.0 for one
        return h.constant(np.signbit(self.array))
    return h.emit("or", h.emit("lt", self, 0.0), h.emit("lt", h.emit("recip", self), 0.0))


rows({
    "positive": lambda h, self: self,
    "floor": lambda h, self: h.emit("floor", self) if self.type.dtype.is_float else self,
    "ceil": lambda h, self: h.emit("ceil", self) if self.type.dtype.is_float else self,
    "frac": lambda h, self: h.emit("sub", self, trunc(h, self)),
    "square": lambda h, self: h.emit("mul", *both(h, self, self)),
    "exp2": lambda h, self: h.emit("pow", 2.0, h.cast(self, h.out.dtype)),
    "special_exp2": lambda h, self: h.emit("pow", 2.0, h.cast(self, h.out.dtype)),
    "log10": lambda h, self: h.emit("mul", h.emit("log", self), 1 / math.log(10)),
    "log2": lambda h, self: h.emit("log2", self) if self.type.dtype is not DType.float64  # which tract does in f32
    else h.emit("mul", h.emit("log", self), 1 / math.log(2)),
    "erf": lambda h, self: _erf(h, self),
    "special_erf": lambda h, self: _erf(h, self),
    "erfc": lambda h, self: _erfc(h, self),
    "special_erfc": lambda h, self: _erfc(h, self),
    "deg2rad": lambda h, self: h.emit("mul", self, math.pi / 180),
    "rad2deg": lambda h, self: h.emit("mul", self, 180 / math.pi),
})  # fmt: skip


def _erf(h, x):
    """tract's own has no digits of x left near 0, which only a sum with a number does not show."""
    work = h.cast(x, h.out.dtype)
    uses = h.graph.uses.get(h.node.outputs[0], ())
    summed = bool(uses) and all(n.op == "aten::add" and not h.is_value(n.args["other"]) for n in uses)
    if summed or h.out.dtype is not DType.float32 or not h.target.tract:
        return erf(h, work)
    near = h.emit("mul", work, polynomial(h, h.emit("mul", work, work), NEAR[:4]))
    return h.emit("select", h.emit("lt", h.emit("abs", work), 0.25), near, erf(h, work))


def _erfc(h, x):
    """In f64, where 1 - erf(x) of f32 has no digits left."""
    work = DType.float64 if h.target.tract else DType.float32
    return h.cast(erfc(h, h.cast(x, work)), h.out.dtype)


# -- arithmetic of two -----------------------------------------------------------------------------------------------


@op("aten::add")
def add(h, self, other, alpha=1):
    return h.emit("add", *whole_first(h, *both(h, self, times(h, other, alpha))))


@op("aten::sub", "aten::subtract")
def sub(h, self, other, alpha=1):
    return h.emit("sub", *both(h, self, times(h, other, alpha)))


@op("aten::rsub")
def rsub(h, self, other, alpha=1):
    return h.emit("sub", *both(h, other, times(h, self, alpha)))


def times(h, x, alpha):
    if isinstance(alpha, (bool, int, float)) and alpha == 1:
        return x
    return h.emit("mul", h.tensor(x, h.out.dtype), h.tensor(alpha, h.out.dtype))


def both(h, x, y):
    return h.tensor(x, h.out.dtype), h.tensor(y, h.out.dtype)


def whole_first(h, x, y):
    """Operands in either order: the one with the result's shape first, in whose place tract then computes."""
    return (y, x) if x.type.shape != h.out.shape and y.type.shape == h.out.shape else (x, y)


@op("aten::div", "aten::divide", "aten::true_divide")
def div(h, self, other, rounding_mode=None):
    if not h.out.dtype.is_float:
        x, y = both(h, self, other)
        return h.emit("div", x, y) if rounding_mode == "trunc" else h.floor_division(x, y)[0]
    if rounding_mode == "floor":
        number = DType.float32 if h.out.dtype is DType.float16 else None
        return _float_division(h, *(_in_double(h, v, number) for v in (self, other)))[0]
    made = _quotient(h, self, other)
    if rounding_mode is None:
        return h.cast(made, h.out.dtype)
    row = h.is_value(other) and other.type.rank  # by a number torch divides halves in f32, and cuts that off
    return h.cast(trunc(h, h.cast(made, h.out.dtype) if row else made), h.out.dtype)


def _quotient(h, x, y):
    """The quotient in the type that torch divides in: halves in f32."""
    work = DType.float32 if h.out.dtype is DType.float16 else h.out.dtype
    return quotient(h, h.tensor(x, work), h.tensor(y, work))


@op("aten::remainder")
def remainder(h, self, other):
    if not h.out.dtype.is_float:
        return h.floor_division(*both(h, self, other))[1]
    return _float_division(h, _in_double(h, self), _in_double(h, other))[1]


def _float_division(h, x, y):
    """(x // y, x % y) of floats, in f64."""
    powers, up, divisor = powers_above(y, h.out.dtype), None, y
    if powers and h.out.dtype is DType.float64:
        x, y, up = scaled(h, x, y)
    less = reduced(h, x, y, powers)
    cut, left = divided(h, less, y)
    if less is not x:
        cut = h.emit("select", h.emit("eq", less, x), cut, h.emit("div", x, y))
    endless = _endless_divisor(h, x, y)
    if endless:
        cut, left = h.emit("select", endless, 0.0, cut), h.emit("select", endless, x, left)
    apart = h.emit("lt", h.emit("mul", h.emit("sign", left), h.emit("sign", y)), 0.0)
    floor, left = (h.emit("select", apart, h.emit(o, a, b), a) for o, a, b in (("sub", cut, 1.0), ("add", left, y)))
    odd = h.emit("and", h.emit("eq", h.emit("abs", x), math.inf), h.emit("ne", divisor, 0.0))
    floor = h.emit("select", odd, h.const(math.nan, x), floor)
    left = _by_zero(h, divisor, left)
    left = left if up is None else h.emit("mul", left, up)
    return h.cast(floor, h.out.dtype), h.cast(left, h.out.dtype)


def _in_double(h, x, number=None):
    """An operand of what is computed in f64; a Python number is rounded to `number` or to the result's type before."""
    return h.cast(h.tensor(x, h.out.dtype if h.is_value(x) else number or h.out.dtype), DType.float64)


def _by_zero(h, y, left):
    """nan where the divisor is zero: tract takes products with what it folds to zero for zero, and loses it."""
    return left if y.array is not None else h.emit("select", h.emit("eq", y, 0.0), h.const(math.nan, left), left)


def _endless_divisor(h, x, y):
    """Where a finite number is divided by infinity, so that all of it is left; None where no divisor is infinite."""
    if y.array is not None and np.isfinite(y.array).all():
        return None
    return h.emit("and", h.emit("eq", h.emit("abs", y), math.inf), h.emit("lt", h.emit("abs", x), math.inf))


@op("aten::fmod")
def fmod(h, self, other):
    if not h.out.dtype.is_float:
        x, y = both(h, self, other)
        return h.emit("sub", x, h.emit("mul", h.emit("div", x, y), y))
    x, y = _in_double(h, self), _in_double(h, other)
    powers, up = powers_above(y, h.out.dtype), None
    endless = _endless_divisor(h, x, y)
    if powers and h.out.dtype is DType.float64:
        x, y, up = scaled(h, x, y)
    left = divided(h, reduced(h, x, y, powers), y)[1]
    left = _by_zero(h, y, h.emit("select", endless, x, left) if endless else left)
    return h.cast(left if up is None else h.emit("mul", left, up), h.out.dtype)


@op("aten::pow", "aten::float_power")
def pow_(h, self, exponent):
    if isinstance(exponent, (int, float)):
        return _pow_number(h, h.tensor(self, h.out.dtype), exponent)
    x, y = h.tensor(self, h.out.dtype), h.tensor(exponent, h.out.dtype)
    if h.out.dtype.is_float:  # tract takes a uniform exponent for one number, and the base's shape for the result's
        return h.emit("pow", h.expand(x, h.out.shape), y)
    # tract's integer powers know no negative exponent: there torch gives 0, and 1 or -1 for a base of 1 or -1
    odd = h.emit("sub", y, h.emit("mul", h.emit("div", y, 2), 2))
    unit = h.emit("select", h.emit("ne", odd, 0), x, 1)
    inverse = h.emit("select", h.emit("eq", h.emit("abs", x), 1), unit, 0)
    return h.emit("select", h.emit("lt", y, 0), inverse, integer_power(h, x, h.emit("max", y, 0)))


# torch computes these exponents by the same short cuts
_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1: "recip"}


def _pow_number(h, x, exponent):
    if exponent == 0:
        return h.full(x.type.shape, 1, h.out.dtype)
    if h.out.dtype is DType.float16 and exponent == 0.5:  # by C's pow: -inf ** 0.5 is inf
        return h.emit("abs", h.emit("sqrt", h.emit("select", h.emit("eq", x, -math.inf), math.inf, x)))
    if h.out.dtype.is_float and exponent in _POWERS and (exponent == -1 or h.out.dtype is not DType.float16):
        return h.emit(_POWERS[exponent], x)
    if exponent in (1, 2, 3) or (not h.out.dtype.is_float and exponent == int(exponent) and 0 < exponent <= 64):
        return _repeated(h, x, int(exponent))
    if not h.out.dtype.is_float:
        h.refuse(f"tract has no power {exponent} of {h.out.dtype}")
    return h.emit("pow", x, float(exponent))


def _repeated(h, x, n):
    """x ** n by squaring, exact on integers."""
    if n == 1:
        return x
    half = _repeated(h, x, n // 2)
    whole = h.emit("mul", half, half)
    return h.emit("mul", whole, x) if n % 2 else whole


rows({
    "mul": lambda h, self, other: h.emit("mul", *whole_first(h, *both(h, self, other))),
    "multiply": lambda h, self, other: h.emit("mul", *whole_first(h, *both(h, self, other))),
    "floor_divide": lambda h, self, other: div(h, self, other, "floor"),
    "maximum": lambda h, self, other: h.extreme("max", *both(h, self, other)),
    "minimum": lambda h, self, other: h.extreme("min", *both(h, self, other)),
    "max.other": lambda h, self, other: h.extreme("max", *both(h, self, other)),
    "min.other": lambda h, self, other: h.extreme("min", *both(h, self, other)),
})  # fmt: skip


@op("aten::addcmul")
def addcmul(h, self, tensor1, tensor2, value=1):
    x, y, z = (h.floating(h.cast(v, h.out.dtype)) for v in (self, tensor1, tensor2))
    y = y if value == 1 else h.emit("mul", y, h.tensor(value, y))
    return h.cast(h.emit("add", x, h.emit("mul", y, z)), h.out.dtype)


@op("aten::addcdiv")
def addcdiv(h, self, tensor1, tensor2, value=1):
    x, y, z = (h.floating(h.cast(v, h.out.dtype)) for v in (self, tensor1, tensor2))
    y = y if value == 1 else h.emit("mul", y, h.tensor(value, y))
    return h.cast(h.emit("add", x, quotient(h, y, z)), h.out.dtype)


@op("aten::lerp")
def lerp(h, self, end, weight):
    """From the nearer end, as torch does; halves in f32."""
    x, y = h.floating(self), h.floating(end)
    apart, number = h.emit("sub", y, x), not h.is_value(weight)
    w = h.tensor(weight, x)
    first = h.emit("add", x, h.emit("mul", apart, w)) if not number or abs(weight) < 0.5 else None
    if first is None or not number:
        second = h.emit("sub", y, h.emit("mul", apart, h.emit("sub", 1.0, w)))
        near = None if first is None else h.emit("lt", h.emit("abs", w), 0.5)
        first = second if first is None else h.emit("select", near, first, second)
    return h.cast(first, h.out.dtype)


@op("aten::copysign")
def copysign(h, self, other):
    size = h.emit("abs", h.tensor(self, h.out.dtype))
    return h.emit("select", signbit(h, h.tensor(other, h.out.dtype)), h.emit("neg", size), size)


# -- nan, infinities and extremes ----------------------------------------------------------------------------------

rows({
    "fmax": lambda h, self, other: _of_numbers(h, "max", self, other),
    "fmin": lambda h, self, other: _of_numbers(h, "min", self, other),
    "isnan": lambda h, self: h.is_nan(self) if self.type.dtype.is_float else h.full(self.type.shape, False, DType.bool),
    "isinf": lambda h, self: _endless(h, "eq", h.emit("abs", self), math.inf, False),
    "isfinite": lambda h, self: _endless(h, "lt", h.emit("abs", self), math.inf, True),
    "isposinf": lambda h, self: _endless(h, "eq", self, math.inf, False),
    "isneginf": lambda h, self: _endless(h, "eq", self, -math.inf, False),
})  # fmt: skip


def _of_numbers(h, op, x, y):
    """The larger or smaller of two, NaN only where both are: tract's own drops NaN, of which the standard is silent."""
    made = h.emit(op, x, y)
    if h.target.tract or not h.is_value(x) or not h.is_value(y) or not x.type.dtype.is_float:
        return made
    return h.emit("select", h.is_nan(x), y, h.emit("select", h.is_nan(y), x, made))


def _endless(h, comparison, x, limit, otherwise):
    """A comparison with infinity, which integers never reach."""
    return h.emit(comparison, x, limit) if x.type.dtype.is_float else h.full(x.type.shape, otherwise, DType.bool)


@op("aten::nan_to_num")
def nan_to_num(h, self, nan=None, posinf=None, neginf=None):
    if not self.type.dtype.is_float:
        return self
    limit = float(np.finfo(self.type.dtype.name).max)
    x = h.emit("select", h.is_nan(self), 0.0 if nan is None else nan, self)
    x = h.emit("select", h.emit("eq", x, math.inf), limit if posinf is None else posinf, x)
    return h.emit("select", h.emit("eq", x, -math.inf), -limit if neginf is None else neginf, x)


@op("aten::heaviside")
def heaviside(h, self, values):
    positive = h.emit("select", h.emit("gt", self, 0), h.const(1, self), h.const(0, self))
    return h.emit("select", h.emit("eq", self, 0), values, positive)


# -- casts -----------------------------------------------------------------------------------------------------------


@op("aten::to", "aten::_to_copy", "aten::type_as", "aten::clone", "aten::lift_fresh_copy")
def to(h, self, **options):
    return convert_element_type(h, self, h.out.dtype)  # where the tensor lies and its strides mean nothing here


@op("prims::convert_element_type")
def convert_element_type(h, a, dtype):
    return integers(h, a, dtype) if a.type.dtype.is_float and dtype.is_integer and h.target.tract else h.cast(a, dtype)
