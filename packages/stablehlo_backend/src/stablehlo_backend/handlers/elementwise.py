"""One element at a time: arithmetic, comparison, activations, conversions."""

import math

from ir.types import DType
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows

HALF = (DType.float16, DType.bfloat16)
LIBM = "IREE has no {} for float64; run this part in float32, or give the op a body that torch can trace"


def wide(h, x):
    """Half precision in float32, which is what torch's kernels compute in."""
    return h.cast(x, DType.float32) if x.type.dtype in HALF else x


def unary(word, has_double=True):
    """The handler of a function of one float tensor; without a kernel for float64 it is refused there."""

    def handler(h, self):
        if self.type.dtype is DType.float64 and not has_double:
            h.refuse(LIBM.format(h.node.op[6:]))
        return h.cast(h.emit(word, wide(h, self)), self.type.dtype)

    return handler


def through(formula):
    """The handler of a formula of one float tensor."""
    return lambda h, self: h.cast(formula(h, wide(h, self)), self.type.dtype)


rows(
    {
        "exp": unary("exponential"), "log": unary("log"), "sqrt": unary("sqrt"), "rsqrt": unary("rsqrt"),
        "sigmoid": unary("logistic"), "erf": unary("chlo.erf"), "erfinv": unary("chlo.erf_inv"),
        "cosh": unary("chlo.cosh"), "acosh": unary("chlo.acosh"), "asinh": unary("chlo.asinh", False),
        "tan": unary("tan", False), "asin": unary("chlo.asin", False), "acos": unary("chlo.acos", False),
        "atan": unary("chlo.atan", False), "lgamma": unary("chlo.lgamma", False),
        "log2": through(lambda h, x: h.emit("multiply", h.emit("log", x), 1 / math.log(2))),
        "log10": through(lambda h, x: h.emit("multiply", h.emit("log", x), 1 / math.log(10))),
        "exp2": through(lambda h, x: power(h, h.const(2, x), x)),
        "square": lambda h, self: h.emit("multiply", self, self),
        "reciprocal": lambda h, self: h.emit("divide", h.const(1, self), self),
        "bitwise_not": lambda h, self: h.emit("not", self),
        "logical_not": lambda h, self: h.emit("not", h.cast(self, DType.bool)),
        "isnan": lambda h, self: h.isnan(self),
        "relu": lambda h, self: h.where(h.compare("LT", self, 0), 0, self),
        "erfc": lambda h, self: h.cast(h.emit("chlo.erfc", wide(h, self)), self.type.dtype),
        "positive": lambda h, self: self,
    }
)  # fmt: skip


def exact(word, formula):
    """The runtime's own function of float32; of float64, where that loses digits near zero, a formula."""

    def handler(h, self):
        return formula(h, self) if self.type.dtype is DType.float64 else unary(word)(h, self)

    return handler


def expm1(h, x):
    """Kahan's form: the rounding of exp(x) cancels in (u - 1) / log(u)."""
    u = h.emit("exponential", x)
    less = h.emit("subtract", u, 1)
    near = h.emit("divide", h.emit("multiply", less, x), h.emit("log", u))
    far = h.emit("not", h.compare("LT", h.emit("abs", x), 30))
    return h.where(h.compare("EQ", u, 1), x, h.where(far, less, near))


def log1p(h, x):
    """Kahan's form: the rounding of 1 + x cancels in log(u) / (u - 1)."""
    u = h.emit("add", x, 1)
    made = h.emit("multiply", h.emit("log", u), h.emit("divide", x, h.emit("subtract", u, 1)))
    return h.where(h.compare("EQ", u, 1), x, h.where(h.compare("LT", u, 1e300), made, h.emit("log", u)))


def tanh(h, x):
    less = expm1(h, h.emit("multiply", h.emit("abs", x), -2))
    return copied(h, h.emit("negate", h.emit("divide", less, h.emit("add", less, 2))), x)


def sinh(h, x):
    return h.emit("multiply", h.emit("subtract", expm1(h, x), expm1(h, h.emit("negate", x))), 0.5)


def atanh(h, x):
    twice = h.emit("divide", h.emit("add", x, x), h.emit("subtract", h.const(1, x), x))
    return h.emit("multiply", log1p(h, twice), 0.5)


rows(
    {
        "expm1": exact("exponential_minus_one", expm1), "log1p": exact("log_plus_one", log1p),
        "tanh": exact("tanh", tanh), "sinh": exact("chlo.sinh", sinh), "atanh": exact("chlo.atanh", atanh),
    }
)  # fmt: skip


# -- rounding and signs ------------------------------------------------------------------------------------------------


def whole(word):
    """A rounding, of which integers need none."""
    return lambda h, self: self if not self.type.dtype.is_float else h.emit(word, self)


rows({"floor": whole("floor"), "ceil": whole("ceil"), "neg": lambda h, self: h.emit("negate", self)})


@op("aten::round")
def round_(h, self, decimals=0):
    if not self.type.dtype.is_float:
        if decimals < 0:
            h.refuse("it rounds integers to tens")
        return self
    if decimals == 0:
        return h.emit("round_nearest_even", self)
    first, second = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    digits = h.const(10.0 ** abs(decimals), self)
    return h.emit(second, h.emit("round_nearest_even", h.emit(first, self, digits)), digits)


@op("aten::trunc")
def trunc(h, self):
    if not self.type.dtype.is_float:
        return self
    return h.where(signbit(h, self), h.emit("ceil", self), h.emit("floor", self))


@op("aten::abs")
def abs_(h, self):
    return self if self.type.dtype.kind in ("uint", "bool") else h.emit("abs", self)


@op("aten::sign", "aten::sgn")
def sign(h, self):
    if self.type.dtype.kind in ("uint", "bool"):
        return h.emit("minimum", self, 1)
    made = h.emit("sign", self)
    return h.where(h.isnan(self), 0, made) if self.type.dtype.is_float else made


@op("aten::signbit")
def signbit(h, self):
    if not self.type.dtype.is_float:
        return h.compare("LT", self, 0)
    bits = self.type.with_dtype(DType[f"int{self.type.dtype.bits}"])
    return h.compare("LT", h.emit("bitcast_convert", self, type=bits), 0)


def copied(h, size, sign):
    """The magnitude of one operand with the sign of another, that of zeros included."""
    size = h.emit("abs", size)
    return h.where(signbit(h, sign), h.emit("negate", size), size)


@op("aten::copysign")
def copysign(h, self, other):
    self, other = h.align(h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype))
    return copied(h, self, other)


@op("aten::isfinite")
def isfinite(h, self):
    if not self.type.dtype.is_float:
        return h.full(True, self.type.shape, DType.bool)
    return h.compare("LT", h.emit("abs", self), math.inf)


@op("aten::isinf")
def isinf(h, self):
    if not self.type.dtype.is_float:
        return h.full(False, self.type.shape, DType.bool)
    return h.compare("EQ", h.emit("abs", self), math.inf)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def scaled(h, other, alpha):
    return other if alpha == 1 else h.emit("multiply", h.tensor(other, h.out.dtype), h.tensor(alpha, h.out.dtype))


def both(h, self, other):
    """The operands in the element type of the result."""
    return h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)


@op("aten::add")
def add(h, self, other, alpha=1):
    word = "or" if h.out.dtype is DType.bool else "add"
    return h.emit(word, *both(h, self, scaled(h, other, alpha)))


@op("aten::sub")
def sub(h, self, other, alpha=1):
    return h.emit("subtract", *both(h, self, scaled(h, other, alpha)))


@op("aten::mul")
def mul(h, self, other):
    return h.emit("and" if h.out.dtype is DType.bool else "multiply", *both(h, self, other))


@op("aten::div", "aten::true_divide")
def div(h, self, other, rounding_mode=None):
    a, b = h.align(*both(h, self, other))
    if rounding_mode == "floor":
        return floored(h, a, b)
    made = h.emit("divide", a, b)
    return trunc(h, made) if rounding_mode == "trunc" else made


@op("aten::floor_divide")
def floor_divide(h, self, other):
    return floored(h, *h.align(*both(h, self, other)))


def opposite(h, a, b):
    """Whether one of two operands is negative and the other is not."""
    return h.compare("NE", h.compare("LT", a, 0), h.compare("LT", b, 0))


def floored(h, a, b):
    """The quotient rounded down; of floats by way of the remainder, as torch's kernel does."""
    rest = remainder_of(h, a, b)
    if not a.type.dtype.is_float:
        over = h.emit("and", opposite(h, a, b), h.compare("NE", rest, 0))
        made = h.emit("divide", a, b)
        return h.where(over, h.emit("subtract", made, 1), made)
    exact = h.emit("divide", h.emit("subtract", a, rest), b)
    over = h.emit("and", opposite(h, b, rest), h.compare("NE", rest, 0))
    exact = h.where(over, h.emit("subtract", exact, 1), exact)
    down = h.emit("floor", exact)
    down = h.where(h.compare("GT", h.emit("subtract", exact, down), 0.5), h.emit("add", down, 1), down)
    plain = h.emit("divide", a, b)
    made = h.where(h.compare("EQ", exact, 0), copied(h, h.full(0, a.type.shape, a.type.dtype), plain), down)
    return h.where(h.compare("EQ", b, 0), plain, made)


def remainder_of(h, a, b):
    """C's fmod."""
    if a.type.dtype is DType.float64:
        h.refuse(LIBM.format("fmod"))
    return h.cast(h.emit("remainder", wide(h, a), wide(h, b)), a.type.dtype)


@op("aten::fmod")
def fmod(h, self, other):
    return remainder_of(h, *h.align(*both(h, self, other)))


@op("aten::remainder")
def remainder(h, self, other):
    a, b = h.align(*both(h, self, other))
    rest = remainder_of(h, a, b)
    over = h.emit("and", h.compare("NE", rest, 0), opposite(h, rest, b))
    return h.where(over, h.emit("add", rest, b), rest)


def power(h, x, exponent):
    """C's pow, out of exp and log, with its answers for zeros, infinities and nan."""
    dtype = x.type.dtype
    if not dtype.is_float:
        return h.emit("power", x, exponent)
    x, y = h.align(wide(h, x), wide(h, exponent))
    size = h.emit("abs", x)
    made = h.emit("exponential", h.emit("multiply", y, h.emit("log", size)))
    even = h.compare("EQ", size, 1)
    made = h.where(h.emit("and", even, h.compare("EQ", h.emit("abs", y), math.inf)), 1, made)
    whole_number = h.compare("EQ", h.emit("floor", y), y)
    half = h.emit("multiply", y, 0.5)
    odd = h.emit("and", whole_number, h.compare("NE", h.emit("floor", half), half))
    made = h.where(h.emit("and", signbit(h, x), odd), h.emit("negate", made), made)
    negative = h.emit("and", h.compare("LT", x, 0), h.compare("LT", size, math.inf))
    made = h.where(h.emit("and", negative, h.emit("not", whole_number)), math.nan, made)
    one = h.emit("or", h.compare("EQ", x, 1), h.compare("EQ", y, 0))
    return h.cast(h.where(one, 1, made), dtype)


@op("aten::pow")
def pow_(h, self, exponent):
    simple = {1: lambda x: x, 2: lambda x: h.emit("multiply", x, x), 0.5: lambda x: h.emit("sqrt", x)}
    simple |= {3: lambda x: h.emit("multiply", x, simple[2](x)), -1: lambda x: h.emit("divide", h.const(1, x), x)}
    if not h.is_value(exponent) and exponent in simple and (h.out.dtype.is_float or exponent in (1, 2, 3)):
        return h.cast(simple[exponent](wide(h, h.tensor(self, h.out.dtype))), h.out.dtype)
    return power(h, *h.align(*both(h, self, exponent)))


@op("aten::atan2")
def atan2(h, self, other):
    if h.out.dtype is DType.float64:
        h.refuse(LIBM.format("atan2"))
    y, x = h.align(*(wide(h, x) for x in both(h, self, other)))
    ends = [h.compare("EQ", h.emit("abs", t), math.inf) for t in (y, x)]
    a, b = (h.where(h.emit("and", *ends), copied(h, h.full(1, t.type.shape, t.type.dtype), t), t) for t in (y, x))
    made = h.emit("atan2", a, b)
    nothing = h.emit("and", h.compare("EQ", y, 0), h.compare("EQ", x, 0))
    made = h.where(nothing, h.where(signbit(h, x), math.pi, h.const(0, x)), made)
    return h.cast(copied(h, made, y), h.out.dtype)


@op("aten::hypot")
def hypot(h, self, other):
    a, b = h.align(*(h.emit("abs", wide(h, x)) for x in both(h, self, other)))
    big, small = h.emit("maximum", a, b), h.emit("minimum", a, b)
    part = h.emit("divide", small, big)
    made = h.emit("multiply", big, h.emit("sqrt", h.emit("add", h.emit("multiply", part, part), 1)))
    made = h.where(h.compare("EQ", big, 0), 0, made)
    endless = h.emit("or", h.compare("EQ", a, math.inf), h.compare("EQ", b, math.inf))
    return h.cast(h.where(endless, math.inf, made), h.out.dtype)


rows(
    {
        "maximum": lambda h, self, other: h.emit("maximum", *both(h, self, other)),
        "minimum": lambda h, self, other: h.emit("minimum", *both(h, self, other)),
        "bitwise_and": lambda h, self, other: h.emit("and", *both(h, self, other)),
        "bitwise_or": lambda h, self, other: h.emit("or", *both(h, self, other)),
        "bitwise_xor": lambda h, self, other: h.emit("xor", *both(h, self, other)),
        "bitwise_left_shift": lambda h, self, other: h.emit("shift_left", *both(h, self, other)),
        "__lshift__": lambda h, self, other: h.emit("shift_left", *both(h, self, other)),
    }
)


@op("aten::bitwise_right_shift", "aten::__rshift__")
def bitwise_right_shift(h, self, other):
    kind = "logical" if h.out.dtype.kind == "uint" else "arithmetic"
    return h.emit(f"shift_right_{kind}", *both(h, self, other))


@op("aten::fmax")
def fmax(h, self, other):
    return h.where(h.isnan(self), other, h.where(h.isnan(other), self, h.emit("maximum", self, other)))


@op("aten::fmin")
def fmin(h, self, other):
    return h.where(h.isnan(self), other, h.where(h.isnan(other), self, h.emit("minimum", self, other)))


@op("aten::clamp", "aten::clamp_min", "aten::clamp_max")
def clamp(h, self, min=None, max=None):
    made = h.cast(self, h.out.dtype)
    made = made if min is None else h.emit("maximum", made, h.tensor(min, h.out.dtype))
    return made if max is None else h.emit("minimum", made, h.tensor(max, h.out.dtype))


# -- comparison and choice ---------------------------------------------------------------------------------------------


def compared(direction):
    def handler(h, self, other):
        return h.compare(direction, self, other)

    return handler


def logical(word):
    def handler(h, self, other):
        return h.emit(word, h.tensor(self, DType.bool), h.tensor(other, DType.bool))

    return handler


rows({name: compared(name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")})
rows({f"logical_{word}": logical(word) for word in ("and", "or", "xor")})


@op("aten::where")
def where(h, condition, self, other):
    a, b = both(h, self, other)
    return h.where(h.cast(condition, DType.bool), a, b)


@op("aten::masked_fill")
def masked_fill(h, self, mask, value):
    return h.where(mask, h.tensor(value, self.type.dtype), self)


@op("aten::to", "aten::_to_copy", "aten::type_as")
def to(h, self, dtype=None, other=None, copy=False, memory_format=None, layout=None, device=None, pin_memory=None,
       non_blocking=False):  # fmt: skip
    return h.cast(self, h.out.dtype)


@op("aten::view.dtype")
def view_dtype(h, self, dtype):
    if DType.bool in (dtype, self.type.dtype) or dtype.bits != self.type.dtype.bits:
        h.refuse("it reads the bits of a tensor as elements of another size")
    return h.emit("bitcast_convert", self, type=self.type.with_dtype(dtype))


@op("aten::copy")
def copy(h, self, src, non_blocking=False):
    return h.broadcast(h.cast(src, self.type.dtype), self.type.shape)


@op("aten::rrelu")
def rrelu(h, self, lower=0.125, upper=1 / 3, training=False, generator=None):
    if training:
        h.refuse("it draws random slopes")
    return h.where(h.compare("LT", self, 0), h.emit("multiply", self, (lower + upper) / 2), self)


@op("aten::threshold")
def threshold(h, self, threshold, value):
    limit, other = (int(v) if self.type.dtype.is_integer else v for v in (threshold, value))
    return h.where(h.compare("LE", self, limit), other, self)


@op("aten::angle")
def angle(h, self):
    x = h.cast(self, h.out.dtype)
    turned = h.where(signbit(h, x) if self.type.dtype.is_float else h.compare("LT", x, 0), math.pi, h.const(0, x))
    return h.where(h.isnan(x), x, h.where(h.compare("EQ", x, 0), 0, turned))
