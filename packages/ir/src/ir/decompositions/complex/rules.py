"""Complex ops on real and imaginary parts: functions of torch, traced for a node's own types when one is met.

A rule takes the op's arguments by schema name; complex tensors come as `Pair`s, and so do they go. It may also return
complex tensors of other, simpler complex ops. What is linear with real coefficients needs no rule: see
`ir.passes.split_complex`. A complex op with neither is expanded through torch's own decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.complex import pairs as p
from ir.decompositions.complex.pairs import Pair, lift, polar, times

RULES: dict[str, Callable[..., Any]] = {}  # op name or overload -> rule


def rule(*ops: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule for these aten ops."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update({f"aten::{op}": fn for op in ops})
        return fn

    return register


def real_type(dtype: torch.dtype | None) -> torch.dtype | None:
    """The element type of a complex type's parts."""
    return dtype.to_real() if dtype is not None and dtype.is_complex else dtype


# -- one tensor --------------------------------------------------------------------------------------------------------

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": lambda z: z.abs(),
    "angle": lambda z: z.angle(),
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "conj": Pair.conj, "_conj": Pair.conj, "conj_physical": Pair.conj, "_conj_physical": Pair.conj,
    "reciprocal": lambda z: 1.0 / z,
    "square": lambda z: z * z,
    "exp": p.exp,
    "exp2": lambda z: p.exp(z * math.log(2)),
    "expm1": lambda z: Pair(torch.expm1(z.re) * torch.cos(z.im) - 2 * torch.sin(z.im / 2) ** 2,
                            torch.exp(z.re) * torch.sin(z.im)),
    "log": p.log,
    "log2": lambda z: p.log(z, 2),
    "log10": lambda z: p.log(z, 10),
    "log1p": p.log1p,
    "sqrt": p.sqrt,
    "rsqrt": lambda z: 1.0 / p.sqrt(z),
    "sinh": p.sinh,
    "cosh": p.cosh,
    "tanh": p.tanh,
    "sin": lambda z: p.sinh(z.turned()).turned_back(),
    "cos": lambda z: p.cosh(z.turned()),
    "tan": lambda z: p.tanh(z.turned()).turned_back(),
    "asin": p.asin,
    "acos": p.acos,
    "atan": lambda z: p.atanh(z.turned()).turned_back(),
    "asinh": lambda z: p.asin(z.turned()).turned_back(),
    "acosh": p.acosh,
    "atanh": p.atanh,
    "sigmoid": p.sigmoid,
    "silu": lambda z: z * p.sigmoid(z),
    "isnan": lambda z: torch.isnan(z.re) | torch.isnan(z.im),
    "isinf": lambda z: torch.isinf(z.re) | torch.isinf(z.im),
    "isfinite": lambda z: torch.isfinite(z.re) & torch.isfinite(z.im),
    "isreal": lambda z: z.im == 0,
    "logical_not": lambda z: ~z.nonzero(),
    "nonzero": lambda z: torch.nonzero(z.nonzero()),
}  # fmt: skip
for _name, _fn in UNARY.items():
    RULES[f"aten::{_name}"] = lambda self, fn=_fn: fn(self)


@rule("sgn", "sign")
def sgn(self: Pair) -> Pair:
    size = self.abs()
    return self / torch.where(size == 0, 1.0, size)


@rule("sinc", "special_sinc")
def sinc(self: Pair) -> Pair:
    at_zero = ~self.nonzero()
    one = Pair(torch.ones_like(self.re), torch.zeros_like(self.im))
    z = p.where(at_zero, one, self * math.pi)
    return p.where(at_zero, one, p.sinh(z.turned()).turned_back() / z)


@rule("to", "_to_copy", "type_as")
def to(self: Any, dtype: torch.dtype | None = None, other: Any = None, **layout: Any) -> Any:
    to_complex = isinstance(other, Pair) if other is not None else dtype is not None and dtype.is_complex
    kind = real_type(dtype) if other is None else other.dtype
    if not isinstance(self, Pair):
        made = self if kind is None else self.to(kind)
        return Pair(made, torch.zeros_like(made)) if to_complex else made
    if dtype is None and other is None:
        return self
    if kind is torch.bool:
        return self.nonzero()
    return self.map(lambda x: x.to(kind)) if to_complex else self.re.to(kind)


RULES["prims::convert_element_type"] = lambda a, dtype: to(a, dtype)


# -- two and more ------------------------------------------------------------------------------------------------------


def first(self: Any, *others: Any) -> Any:
    """The first operand as a Pair, unless another is one: then it is a complex number that makes the result complex."""
    return self if any(isinstance(x, Pair) for x in (self, *others)) else lift(self, self)


@rule("add")
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    return first(self, other) + (other if alpha == 1 else other * alpha)


@rule("sub")
def sub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return first(self, other) - (other if alpha == 1 else other * alpha)


@rule("rsub")
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    self = first(self, other)
    return other - (self if alpha == 1 else self * alpha)


def times_complex_one(x: Any) -> Any:
    """`x * (1 + 0j)`: torch makes a complex number of a real factor, whose part of 0 gives nan beside infinity."""
    return Pair(x.re - x.im * 0.0, x.im + x.re * 0.0) if isinstance(x, Pair) else x


@rule("mul")
def mul(self: Any, other: Any) -> Any:
    self = first(self, other)
    if not (p.is_complex(self) and p.is_complex(other)):
        self, other = times_complex_one(self), times_complex_one(other)
    return times(self, other)


@rule("div")
def div(self: Any, other: Any) -> Any:
    self = first(self, other)
    if p.is_complex(other):
        return self / other
    made = times_complex_one(self) / other
    return p.where(other == 0, self / other, made) if isinstance(other, Tensor) else made


@rule("pow", "float_power")
def pow(self: Any, exponent: Any) -> Any:
    return p.power(first(self, exponent), exponent)


RULES["aten::pow.Scalar"] = lambda self, exponent: p.power(lift(self, exponent.re), exponent)
RULES["aten::complex"] = lambda real, imag: Pair(real, imag)
RULES["aten::polar"] = lambda abs, angle: polar(abs, angle)


@rule("addcmul")
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return first(self, tensor1, tensor2) + times(times(tensor1, tensor2), value)


@rule("addcdiv")
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return first(self, tensor1, tensor2) + times(tensor1 / tensor2, value)


@rule("eq")
def eq(self: Any, other: Any) -> Tensor:
    (a, b), (c, d) = p.parts(self), p.parts(other)
    equal: Tensor = (a == c) & ((0.0 if b is None else b) == (0.0 if d is None else d))
    return equal


@rule("ne")
def ne(self: Any, other: Any) -> Tensor:
    differs: Tensor = ~eq(self, other)
    return differs


@rule("isclose")
def isclose(self: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    near = (self - other).abs() <= atol + rtol * other.abs()
    finite = torch.isfinite(self.re) & torch.isfinite(self.im) & torch.isfinite(other.re) & torch.isfinite(other.im)
    same = eq(self, other) | (near & finite)
    equal: Tensor = same | (UNARY["isnan"](self) & UNARY["isnan"](other)) if equal_nan else same
    return equal


def truth(x: Any) -> Any:
    """A complex tensor as bool, others as they are."""
    return x.nonzero() if isinstance(x, Pair) else x


for _logic in (torch.logical_and, torch.logical_or, torch.logical_xor):
    RULES[f"aten::{_logic.__name__}"] = lambda self, other, fn=_logic: fn(truth(self), truth(other))
for _truth in (torch.any, torch.all, torch.count_nonzero):
    RULES[f"aten::{_truth.__name__}"] = lambda self, fn=_truth, **dims: fn(self.nonzero(), **given(dims))


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are given: None would select no overload."""
    return {k: v for k, v in arguments.items() if v is not None}


@rule("masked_scatter")
def masked_scatter(self: Pair, mask: Tensor, source: Pair) -> Pair:
    return Pair(self.re.masked_scatter(mask, source.re), self.im.masked_scatter(mask, source.im))


# -- reductions --------------------------------------------------------------------------------------------------------


@rule("prod")
def prod(self: Pair, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Pair:
    """By magnitudes and angles."""
    if dim is None:
        return polar(torch.prod(self.abs()), torch.sum(self.angle()))
    return polar(torch.prod(self.abs(), dim, keepdim), torch.sum(self.angle(), dim, keepdim))


@rule("cumprod")
def cumprod(self: Pair, dim: int, dtype: Any = None) -> Pair:
    return polar(torch.cumprod(self.abs(), dim), torch.cumsum(self.angle(), dim))


@rule("logsumexp")
def logsumexp(self: Pair, dim: Any, keepdim: bool = False) -> Pair:
    most = torch.amax(self.re, dim, keepdim=True)
    most = torch.where(torch.isfinite(most), most, 0.0)
    total = p.log(p.exp(self - most).map(lambda x: torch.sum(x, dim, keepdim)))
    return total + (most if keepdim else torch.sum(most, dim))


@rule("logcumsumexp")
def logcumsumexp(self: Pair, dim: int) -> Pair:
    most = torch.amax(self.re, dim, keepdim=True)
    return p.log(p.exp(self - most).map(lambda x: torch.cumsum(x, dim))) + most


@rule("var")
def var(self: Pair, **how: Any) -> Tensor:
    return torch.var(self.re, **given(how)) + torch.var(self.im, **given(how))


@rule("std")
def std(self: Pair, **how: Any) -> Tensor:
    return torch.sqrt(var(self, **how))


@rule("linalg_vector_norm")
def vector_norm(self: Pair, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    made: Tensor = torch.linalg.vector_norm(self.abs(), ord, dim, keepdim, dtype=real_type(dtype))
    return made


# -- products: linear in each operand ----------------------------------------------------------------------------------


def bilinear(fn: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Pair:
    """A product that is linear in both operands, from the products of the parts."""
    (a, b_), (c, d) = p.parts(a), p.parts(b)
    if d is None:
        return Pair(fn(a, c), fn(b_, c))
    if b_ is None:
        return Pair(fn(a, c), fn(a, d))
    return Pair(fn(a, c) - fn(b_, d), fn(a, d) + fn(b_, c))


@rule("vdot")
def vdot(self: Pair, other: Pair) -> Pair:
    return bilinear(torch.dot, self.conj(), other)


@rule("addbmm")
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Pair:
    product = bilinear(lambda a, b: torch.bmm(a, b).sum(0), first(batch1, batch2), batch2)
    made: Pair = product * alpha + times(self, beta)
    return made


# -- random numbers: the variance is shared by the parts ---------------------------------------------------------------


@rule("randn_like")
def randn_like(self: Pair, **layout: Any) -> Pair:
    return Pair(torch.randn_like(self.re), torch.randn_like(self.im)) * math.sqrt(0.5)


def _normal(shape: Any, mean: Any, std: Any, **layout: Any) -> Pair:
    made: Pair = Pair(torch.randn(shape), torch.randn(shape)) * (std * math.sqrt(0.5)) + mean
    return made


RULES["prims::normal"] = _normal
