"""float64 for the ops that onnxruntime computes in float32 only: each written in those that it has a float64 kernel of.

`h` is the helper; every form is good to a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ir.decompositions.angles import PI
from ir.types import DType
from onnx_backend.building.double_windows import average_pool, conv, conv_transpose

# log(erfc(x) e^(x^2) / t) with t = 2 / (2 + x), as a polynomial in 2t - 1: interpolated at 40 Chebyshev nodes
_TAIL = (
    -0.6717940840566923, 0.6726432239776567, 0.04734330684190443, -0.0468956102311753, -0.009872689366389959,
    0.008824938557060623, 0.001758933557799016, -0.002345812500482853, -0.00014624686337800336, 0.000673678795580235,
    -9.37350311709817e-05, -0.0001743029472030762, 7.14010141275703e-05, 3.17451797494374e-05, -3.018788455139425e-05,
    1.3772664134465196e-07, 8.562623420121296e-06, -2.9479868769982756e-06, -1.2723119048688858e-06,
    1.2500276612569984e-06, -1.684980072065172e-07, -2.4958327617198894e-07, 1.5334345920907176e-07,
    1.4448658046390689e-09, -3.917182051026819e-08, 1.1172352263618782e-08, 4.060882146969129e-09,
    -1.8902306008936625e-09,
)  # fmt: skip
_SERIES = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(14))


def _horner(h: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    total: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = h.emit("Add", h.emit("Mul", x, total), c)
    return total


def expm1(h: Any, x: Any) -> Any:
    """tanh(x / 2) (e^x + 1), which loses nothing near 0."""
    return h.emit("Mul", h.emit("Tanh", h.emit("Mul", x, 0.5)), h.emit("Add", h.emit("Exp", x), 1.0))


def log1p(h: Any, x: Any) -> Any:
    """log(w) x / (w - 1) with w = 1 + x as it is rounded."""
    w = h.emit("Add", x, 1.0)
    gap = h.emit("Sub", w, 1.0)
    exact = h.emit("Or", h.emit("Equal", gap, 0.0), h.emit("IsInf", w))
    scaled = h.emit("Div", h.emit("Mul", h.emit("Log", w), x), h.emit("Where", exact, h.const(1.0, x), gap))
    return h.emit("Where", exact, x, scaled)


def _signed(h: Any, x: Any, size: Any) -> Any:
    return h.emit("Where", h.emit("Less", x, 0.0), h.emit("Neg", size), size)


def _odd(h: Any, x: Any, size: Any) -> Any:
    """`size` with the sign of x, and x where that is 0: last in Where, whose first choice loses the sign of -0.0."""
    return h.emit("Where", h.emit("Greater", h.emit("Abs", x), 0.0), _signed(h, x, size), x)


def _off_zero(h: Any, op: str, x: Any, zero: Any, count: Any) -> Any:
    """The sine of x - zero * pi, negated where `count` is odd; `op` of x itself where that loses nothing.

    onnxruntime's kernels are off by 1e-16 beside their zeros: Sin of the number nearest to pi is 0, torch's is 1.2e-16.
    The zero is taken off in three parts (Cody and Waite, 1980). Where x is large, they call the C library.
    """
    size = h.emit("Abs", x)
    within = h.emit("And", h.emit("Greater", size, 1.0), h.emit("Less", size, 1e6))
    half = h.emit("Mul", count, 0.5)
    sign = h.emit("Sub", h.const(1.0, x), h.emit("Mul", h.emit("Sub", half, h.emit("Floor", half)), 4.0))
    gap = x
    for part in PI:
        gap = h.emit("Sub", gap, h.emit("Mul", zero, part))
    return h.emit("Where", within, h.emit_kernel("Sin", h.emit("Mul", gap, sign)), h.emit_kernel(op, x))


def _sin(h: Any, x: Any) -> Any:
    turns = h.emit("Round", h.emit("Mul", x, 1 / math.pi))
    return _off_zero(h, "Sin", x, turns, turns)


def _cos(h: Any, x: Any) -> Any:
    zero = h.emit("Add", h.emit("Floor", h.emit("Mul", x, 1 / math.pi)), 0.5)
    return _off_zero(h, "Cos", x, zero, h.emit("Add", zero, 0.5))


def _tan(h: Any, x: Any) -> Any:
    return h.emit("Div", h.emit("Sin", x), h.emit("Cos", x))


def _sinh(h: Any, x: Any) -> Any:
    return h.emit("Mul", h.emit("Sub", expm1(h, x), expm1(h, h.emit("Neg", x))), 0.5)


def _cosh(h: Any, x: Any) -> Any:
    return h.emit("Mul", h.emit("Add", h.emit("Exp", x), h.emit("Exp", h.emit("Neg", x))), 0.5)


def _beyond(h: Any, size: Any, near: Any) -> Any:
    """Where the square is all that counts: log(2 size)."""
    far = h.emit("Add", h.emit("Log", size), math.log(2))
    return h.emit("Where", h.emit("Greater", size, 1e9), far, near)


def _asinh(h: Any, x: Any) -> Any:
    size = h.emit("Abs", x)
    square = h.emit("Mul", size, size)
    more = h.emit("Div", square, h.emit("Add", h.emit("Sqrt", h.emit("Add", square, 1.0)), 1.0))
    found = _beyond(h, size, log1p(h, h.emit("Add", size, more)))
    return _odd(h, x, found)


def _acosh(h: Any, x: Any) -> Any:
    over = h.emit("Sub", x, 1.0)
    root = h.emit("Mul", h.emit("Sqrt", over), h.emit("Sqrt", h.emit("Add", x, 1.0)))
    return _beyond(h, x, log1p(h, h.emit("Add", over, root)))


def _atanh(h: Any, x: Any) -> Any:
    size = h.emit("Abs", x)
    ratio = h.emit("Div", h.emit("Mul", size, 2.0), h.emit("Sub", h.const(1.0, x), size))
    return _odd(h, x, h.emit("Mul", log1p(h, ratio), 0.5))


def _atan(h: Any, x: Any) -> Any:
    """float32's arc tangent y, and the rest: atan((x - tan y) / (1 + x tan y)), of which the first term is enough."""
    size = h.emit("Abs", x)
    steep = h.emit("Greater", size, 1.0)
    slope = h.emit("Where", steep, h.emit("Reciprocal", size), size)
    y = h.cast(h.emit("Atan", h.cast(slope, DType.float32)), DType.float64)
    sine, cosine = h.emit("Sin", y), h.emit("Cos", y)
    rest = h.emit(
        "Div",
        h.emit("Sub", h.emit("Mul", slope, cosine), sine),
        h.emit("Add", cosine, h.emit("Mul", slope, sine)),
    )
    y = h.emit("Add", y, rest)
    y = h.emit("Where", steep, h.emit("Sub", h.const(math.pi / 2, x), y), y)
    return _odd(h, x, y)


def _asin(h: Any, x: Any) -> Any:
    rest = h.emit("Mul", h.emit("Sub", h.const(1.0, x), x), h.emit("Add", x, 1.0))
    return h.emit("Atan", h.emit("Div", x, h.emit("Sqrt", rest)))


def _acos(h: Any, x: Any) -> Any:
    ratio = h.emit("Div", h.emit("Sub", h.const(1.0, x), x), h.emit("Add", x, 1.0))
    return h.emit("Mul", h.emit("Atan", h.emit("Sqrt", ratio)), 2.0)


def scaled_tail(h: Any, size: Any) -> Any:
    """erfc(x) e^(x^2) for x >= 0."""
    t = h.emit("Div", h.const(2.0, size), h.emit("Add", size, 2.0))
    fit = _horner(h, h.emit("Sub", h.emit("Mul", t, 2.0), 1.0), _TAIL)
    return h.emit("Mul", t, h.emit("Exp", fit))


def _erf(h: Any, x: Any) -> Any:
    size = h.emit("Abs", x)
    square = h.emit("Mul", x, x)
    near = h.emit("Mul", x, _horner(h, square, _SERIES))
    tail = h.emit("Mul", h.emit("Exp", h.emit("Neg", square)), scaled_tail(h, size))
    far = _signed(h, x, h.emit("Sub", h.const(1.0, x), tail))
    far = h.emit("Where", h.emit("Greater", size, 6.0), h.emit("Sign", x), far)
    return h.emit("Where", h.emit("GreaterOrEqual", size, 0.5), far, near)


def _gelu(h: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        cubed = h.emit("Mul", h.emit("Mul", h.emit("Mul", x, x), x), 0.044715)
        gate = h.emit("Tanh", h.emit("Mul", h.emit("Add", x, cubed), math.sqrt(2 / math.pi)))
    else:
        gate = h.emit("Erf", h.emit("Mul", x, math.sqrt(0.5)))
    return h.emit("Mul", h.emit("Mul", x, 0.5), h.emit("Add", gate, 1.0))


def _softplus(h: Any, x: Any) -> Any:
    return h.emit("Add", h.emit("Max", x, 0.0), log1p(h, h.emit("Exp", h.emit("Neg", h.emit("Abs", x)))))


def _elu(h: Any, x: Any, alpha: float = 1.0) -> Any:
    bent = h.emit("Mul", expm1(h, x), alpha)
    return h.emit("Where", h.emit("Greater", x, 0.0), x, bent)


def _selu(h: Any, x: Any, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    return h.emit("Mul", _elu(h, x, alpha), gamma)


def _leaky_relu(h: Any, x: Any, alpha: float = 0.01) -> Any:
    return h.emit("Where", h.emit("Greater", x, 0.0), x, h.emit("Mul", x, alpha))


def _prelu(h: Any, x: Any, slope: Any) -> Any:
    return h.emit("Where", h.emit("Greater", x, 0.0), x, h.emit("Mul", x, slope))


def _hard_sigmoid(h: Any, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return h.emit("Clip", h.emit("Add", h.emit("Mul", x, alpha), beta), 0.0, 1.0)


def _hard_swish(h: Any, x: Any) -> Any:
    return h.emit("Mul", x, _hard_sigmoid(h, x, 1 / 6))


def _mish(h: Any, x: Any) -> Any:
    return h.emit("Mul", x, h.emit("Tanh", h.emit("Softplus", x)))


def _softsign(h: Any, x: Any) -> Any:
    return h.emit("Div", x, h.emit("Add", h.emit("Abs", x), 1.0))


def _log_softmax(h: Any, x: Any, axis: int = -1) -> Any:
    """onnxruntime's own gives numbers beside nan and infinity, where all of a row is nan."""
    axes = [axis % x.type.rank]
    gap = h.emit("Sub", x, h.reduce("ReduceMax", x, axes, True))
    return h.emit("Sub", gap, h.emit("Log", h.reduce("ReduceSum", h.emit("Exp", gap), axes, True)))


def _instance_norm(h: Any, x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    axes = list(range(2, x.type.rank))
    gap = h.emit("Sub", x, h.reduce("ReduceMean", x, axes, True))
    variance = h.reduce("ReduceMean", h.emit("Mul", gap, gap), axes, True)
    normal = h.emit("Div", gap, h.emit("Sqrt", h.emit("Add", variance, epsilon)))
    scale, bias = (h.unsqueeze(v, [0, *axes]) for v in (scale, bias))
    return h.emit("Add", h.emit("Mul", normal, scale), bias)


def apart(h: Any, op: str, values: list[Any]) -> list[Any]:
    """The operands, kept out of onnxruntime's fusion of products with factors: it has the factor in float32."""
    if op == "MatMul":
        return [h.emit("Sum", v) if _is_scaled(v) else v for v in values]
    if op in ("Mul", "Div") and any(v.array is not None for v in values):
        return [h.emit("Sum", v) if _made(v).made_by("MatMul") is not None else v for v in values]
    return values


def _made(x: Any) -> Any:
    return x.before if x.before is not None and x.made_by("Transpose") is not None else x


def _is_scaled(x: Any) -> bool:
    """True of a product or quotient with one number."""
    node = _made(x).made_by("Mul") or _made(x).made_by("Div")
    return node is not None and any(i.const_value is not None and i.const_value.size == 1 for i in node.inputs)


FORMS: Mapping[str, Callable[..., Any]] = {
    "Sin": _sin, "Cos": _cos,
    "Tan": _tan, "Sinh": _sinh, "Cosh": _cosh, "Asinh": _asinh, "Acosh": _acosh, "Atanh": _atanh, "Atan": _atan,
    "Asin": _asin, "Acos": _acos, "Erf": _erf, "Gelu": _gelu, "Softplus": _softplus, "Elu": _elu, "Selu": _selu,
    "LeakyRelu": _leaky_relu, "PRelu": _prelu, "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish, "Mish": _mish,
    "Softsign": _softsign, "InstanceNormalization": _instance_norm, "Conv": conv, "ConvTranspose": conv_transpose,
    "AveragePool": average_pool, "LogSoftmax": _log_softmax,
}  # fmt: skip
