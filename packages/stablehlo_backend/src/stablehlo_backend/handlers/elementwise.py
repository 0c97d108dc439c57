"""One element at a time: what StableHLO has an operation for. Other functions are made of these by decompositions."""

from ir.types import DType
from stablehlo_backend.building.values import is_zero
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows

HALF = (DType.float16, DType.bfloat16)


def wide(h, x):
    """Half precision in float32, which is what torch's kernels compute in."""
    return h.cast(x, DType.float32) if x.type.dtype in HALF else x


def unary(word, has_double=True):
    """The handler of a function of one float tensor; where IREE's own loses digits of float64, it is decomposed."""

    def handler(h, self):
        if self.type.dtype is DType.float64 and not has_double:
            h.refuse("IREE's kernel of it is less precise than float64")
        return h.cast(h.emit(word, wide(h, self)), self.type.dtype)

    return handler


def whole(word):
    """A rounding, of which integers need none."""
    return lambda h, self: h.emit(word, self) if self.type.dtype.is_float else self


rows(
    {
        "exp": unary("exponential"), "log": unary("log"), "sqrt": unary("sqrt"), "rsqrt": unary("rsqrt"),
        "sigmoid": unary("logistic"), "erf": unary("chlo.erf"), "cosh": unary("chlo.cosh"),
        "acosh": unary("chlo.acosh"), "tanh": unary("tanh", False), "expm1": unary("exponential_minus_one", False),
        "log1p": unary("log_plus_one", False), "floor": whole("floor"), "ceil": whole("ceil"),
        "neg": lambda h, self: h.emit("negate", self),
        "reciprocal": lambda h, self: h.emit("divide", h.const(1, self), self),
        "bitwise_not": lambda h, self: h.emit("not", self),
        "relu": lambda h, self: h.where(h.compare("LT", self, 0), 0, self),
        "copy": lambda h, self, src, non_blocking=False: h.broadcast(h.cast(src, self.type.dtype), self.type.shape),
    }
)  # fmt: skip


@op("aten::round")
def round_(h, self, decimals=0):
    if decimals != 0:
        h.refuse("StableHLO rounds to integers only, not to decimals")
    return whole("round_nearest_even")(h, self)


@op("aten::trunc")
def trunc(h, self):
    if not self.type.dtype.is_float:
        return self
    return h.where(h.compare("LT", self, 0), h.emit("ceil", self), h.emit("floor", self))


@op("aten::abs")
def abs_(h, self):
    return self if self.type.dtype.kind in ("uint", "bool") else h.emit("abs", self)


@op("aten::signbit")
def signbit(h, self):
    if self.type.dtype.is_float:
        bits = self.type.with_dtype(DType[f"int{self.type.dtype.bits}"])
        self = h.emit("bitcast_convert", self, type=bits)
    return h.compare("LT", self, 0)


# -- two operands, in the element type of the result -------------------------------------------------------------------


def both(h, self, other):
    return h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype)


def binary(word, of_truth=""):
    """The handler of an operation, of truth values by another."""

    def handler(h, self, other):
        op = of_truth if of_truth and h.out.dtype is DType.bool else word
        a, b = h.align(*both(h, self, other))
        if vanishes(op, a, b):
            op, a, b = "and", b if is_zero(a.name) else a, h.held(h.const(0, a))
        return h.emit(op, a, b)

    return handler


def vanishes(op, a, b):
    """Whether integers come to 0 by the operation alone: IREE writes a 0 for them, and does not compile its sums."""
    if a.type.is_static or a.type.dtype.is_float:
        return False
    if op in ("multiply", "and"):
        return is_zero(a.name) or is_zero(b.name)
    return op in ("subtract", "xor") and a.name == b.name


def scaled(h, other, alpha):
    return other if alpha == 1 else h.emit("multiply", *both(h, other, alpha))


def compared(direction):
    return lambda h, self, other: h.compare(direction, self, other)


rows({name: compared(name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")})
rows({f"bitwise_{word}": binary(word) for word in ("and", "or", "xor")})
rows(
    {
        "add": lambda h, self, other, alpha=1: binary("add", "or")(h, self, scaled(h, other, alpha)),
        "sub": lambda h, self, other, alpha=1: binary("subtract")(h, self, scaled(h, other, alpha)),
        "rsub": lambda h, self, other, alpha=1: binary("subtract")(h, other, scaled(h, self, alpha)),
        "mul": binary("multiply", "and"), "maximum": binary("maximum"), "minimum": binary("minimum"),
        "bitwise_left_shift": binary("shift_left"), "__lshift__": binary("shift_left"),
    }
)  # fmt: skip


@op("aten::div", "aten::true_divide", "prims::div")
def div(h, self, other, rounding_mode=None):
    a, b = h.align(*both(h, self, other))
    made = h.emit("divide", a, b)
    if rounding_mode != "floor":
        return trunc(h, made) if rounding_mode else made
    if a.type.dtype.is_float:
        h.refuse("division of floats with rounding_mode='floor' is computed by its decomposition")
    rest = h.emit("remainder", a, b)
    apart = h.compare("NE", h.compare("LT", rest, 0), h.compare("LT", b, 0))
    return h.where(h.emit("and", apart, h.compare("NE", rest, 0)), h.emit("subtract", made, 1), made)


@op("aten::fmod")
def fmod(h, self, other):
    if h.out.dtype is DType.float64:
        h.refuse("IREE has no fmod for float64; run this part in float32")
    return h.cast(h.emit("remainder", *(wide(h, x) for x in both(h, self, other))), h.out.dtype)


@op("aten::pow")
def pow_(h, self, exponent):
    if h.out.dtype.is_float:
        h.refuse("IREE's power differs from C's at zeros, infinities and nan")
    return binary("power")(h, self, exponent)


@op("aten::bitwise_right_shift", "aten::__rshift__")
def bitwise_right_shift(h, self, other):
    kind = "logical" if h.out.dtype.kind == "uint" else "arithmetic"
    return binary(f"shift_right_{kind}")(h, self, other)


# -- choice and conversion ---------------------------------------------------------------------------------------------


@op("aten::where")
def where(h, condition, self=None, other=None):
    if self is None:
        h.refuse("torch.where(condition) gives indices; use torch.where(condition, a, b)")
    return h.where(h.cast(condition, DType.bool), *both(h, self, other))


@op("aten::to", "aten::_to_copy", "aten::type_as")
def to(h, self, **_):
    return h.cast(self, h.out.dtype)


@op("aten::view.dtype")
def view_dtype(h, self, dtype):
    if DType.bool in (dtype, self.type.dtype) or dtype.bits != self.type.dtype.bits:
        h.refuse("it reads the bits of a tensor as elements of another size")
    return h.emit("bitcast_convert", self, type=self.type.with_dtype(dtype))
