"""Functions of each element: in place of torch's decompositions, which round otherwise than its kernels, or of none."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.loops import repeat
from ir.decompositions.registry import decomposition
from ir.decompositions.series import double, in_double, own, promoted, result_type


@decomposition("ldexp.Tensor")
def _ldexp(self: Tensor, other: Tensor) -> Tensor:
    """`self * 2**other`, exact where a power by itself would overflow or vanish (C's ldexp)."""
    if other.dtype.is_floating_point or not self.dtype.is_floating_point:
        return self * torch.pow(2.0, other)
    exponent = other.to(torch.float64).clamp(-2040, 2040)  # from the least float64 to the largest and back
    half = torch.trunc(exponent / 2)
    return (self.to(torch.float64) * torch.exp2(half) * torch.exp2(exponent - half)).to(self.dtype)


# -- exponentials, logarithms and angles -------------------------------------------------------------------------------


@decomposition("expm1", "special_expm1")
def _expm1(self: Tensor) -> Tensor:
    """e^x - 1 = tanh(x / 2) (e^x + 1), which loses nothing near 0, and is x itself there."""
    x = own(self)
    made = torch.tanh(x * 0.5) * (torch.exp(x) + 1)
    # the number itself stands last, behind no negation: onnxruntime's Where makes 0.0 of a -0.0 that stands first
    return torch.where(x.abs() >= torch.finfo(x.dtype).eps / 2, made, x).to(result_type(self))


@decomposition("log1p", "special_log1p")
def _log1p(self: Tensor) -> Tensor:
    """What 1 + x rounds off comes back as a factor (Higham, Accuracy and Stability, problem 1.5)."""
    x = own(self)
    one = x + 1
    kept = torch.clamp(one - 1, max=torch.finfo(x.dtype).max)  # infinity over itself is nan
    return torch.where(kept.abs() > 0, torch.log(one) * (x / kept), x).to(result_type(self))


@decomposition("hypot")
@in_double
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """By the larger side, whose square might overflow; infinite also beside nan."""
    x, y = x.abs(), y.abs()
    larger = torch.maximum(x, y)
    ratio = torch.minimum(x, y) / torch.where(larger == 0, 1.0, larger)
    endless = (x == math.inf) | (y == math.inf)
    return torch.where(endless, math.inf, larger * torch.sqrt(1 + ratio * ratio))


@decomposition("atan2", "arctan2")
def _atan2(self: Tensor, other: Tensor) -> Tensor:
    """atan(y / x), plus or minus pi on the left; infinity over infinity is 1, as in C."""
    dtype = result_type(self, other)
    y, x = (own(t.to(dtype)) for t in (self, other))
    endless = (y.abs() == math.inf) & (x.abs() == math.inf)
    y, x = (torch.where(endless, torch.sign(t), t) for t in (y, x))
    flat = torch.where(y.abs() > 0, torch.atan(y / x), y)
    turn = torch.where(torch.signbit(y), -math.pi, torch.where(y.isnan(), y, math.pi))
    turned = torch.where(torch.signbit(x), flat + turn, flat)
    return torch.where(x.isnan(), x, turned).to(dtype)


@decomposition("angle")
def _angle(self: Tensor) -> Tensor:
    """Of real numbers."""
    x = self.to(result_type(self))
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, torch.zeros_like(x)))


@decomposition("sign")
def _sign(self: Tensor) -> Tensor:
    return self if self.dtype is torch.bool else torch.where(self > 0, 1, torch.where(self < 0, -1, 0)).to(self.dtype)


@decomposition("copysign")
def _copysign(self: Any, other: Any) -> Tensor:
    """The magnitude of one with the sign of the other, that of zeros included."""
    a, b = (x.to(result_type(x)) for x in promoted(self, other))
    return torch.where(torch.signbit(a) == torch.signbit(b), a, -a)


@decomposition("threshold")
def _threshold(self: Tensor, threshold: float, value: float) -> Tensor:
    """Numbers beside integers are cut to some."""
    low, other = (v if self.dtype.is_floating_point else int(v) for v in (threshold, value))
    return torch.where(self <= low, other, self)


@decomposition("rrelu")
def _rrelu(
    self: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor:
    if training:
        raise NotImplementedError("it draws random slopes")
    return torch.where(self < 0, self * ((lower + upper) / 2), self)


@decomposition("round.decimals")
def _round(self: Tensor, *, decimals: int) -> Tensor:
    if not self.dtype.is_floating_point:
        raise NotImplementedError("integers rounded to tens")
    scale = torch.full_like(self, 10.0 ** abs(decimals))
    return torch.round(self * scale) / scale if decimals > 0 else torch.round(self / scale) * scale


@decomposition("fmax")
def _fmax(self: Tensor, other: Tensor) -> Tensor:
    """The larger one, or the one that is a number."""
    return torch.where(self.isnan(), other, torch.where(other.isnan(), self, torch.maximum(self, other)))


@decomposition("fmin")
def _fmin(self: Tensor, other: Tensor) -> Tensor:
    return torch.where(self.isnan(), other, torch.where(other.isnan(), self, torch.minimum(self, other)))


# -- division ---------------------------------------------------------------------------------------------------------


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Whether one is negative and the other is not."""
    return (a < 0) != (b < 0)


@decomposition("remainder")
def _remainder(self: Any, other: Any) -> Tensor:
    """Of the divisor's sign."""
    a, b = promoted(self, other)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & _apart(rest, b), rest + b, rest)


@decomposition("floor_divide")
def _floor_divide(self: Any, other: Any) -> Tensor:
    return torch.div(self, other, rounding_mode="floor")


@decomposition("div.Tensor_mode", "div.Scalar_mode")
def _divide(self: Tensor, other: Any, *, rounding_mode: str | None) -> Tensor:
    """Floats rounded down by way of the remainder, as torch's kernel does."""
    dtype = torch.result_type(self, other)
    if rounding_mode != "floor" or not dtype.is_floating_point:
        raise NotImplementedError("a quotient of integers, or cut")
    a, b = promoted(self, other)
    rest = torch.fmod(a, b)
    exact = (a - rest) / b - torch.where((rest != 0) & _apart(rest, b), 1, torch.zeros_like(rest))
    down = torch.floor(exact)
    down = torch.where(exact - down > 0.5, down + 1, down)
    plain = a / b
    made = torch.where(exact == 0, torch.copysign(torch.zeros_like(plain), plain), down)
    return torch.where(b == 0, plain, made)


# -- whole numbers -----------------------------------------------------------------------------------------------------


@decomposition("gcd")
def _gcd(self: Tensor, other: Tensor) -> Tensor:
    """Euclid's algorithm, of as many steps as Fibonacci's numbers of the type need."""
    dtype = torch.result_type(self, other)
    a, b = torch.broadcast_tensors(self.to(dtype).abs(), other.to(dtype).abs())

    def step(i: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        over = a == 0
        return [torch.where(over, 0, torch.fmod(b, torch.where(over, 1, a))), torch.where(over, b, a)]

    return repeat(math.ceil(1.45 * torch.iinfo(dtype).bits) + 1, step, [a, b])[1]


@decomposition("lcm")
def _lcm(self: Tensor, other: Tensor) -> Tensor:
    """The product of narrow integers is one of C's `int`, and is positive before it is cut off."""
    dtype = torch.result_type(self, other)
    a, b = torch.broadcast_tensors(self.to(dtype), other.to(dtype))
    divisor = torch.gcd(a, b)
    share = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    wide = torch.promote_types(dtype, torch.int32)
    multiple: Tensor = (share.to(wide) * b.to(wide)).abs().to(dtype)
    return multiple


# -- the parts of a floating-point number ------------------------------------------------------------------------------


def _binade(size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For positive float64 numbers: one of the same mantissa, its e with 2^e <= size < 2^(e + 1), and their own."""
    little = size < 2.0**-500
    size = torch.where(little, size * 2.0**600, size)
    guess = torch.floor(torch.log(size) / math.log(2))
    power = torch.exp2(guess)
    exponent = guess - torch.where(power > size, 1.0, 0.0) + torch.where(power * 2 <= size, 1.0, 0.0)
    return size, exponent, torch.where(little, exponent - 600, exponent)


@decomposition("frexp")
def _frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    x = double(self)
    plain = (x != 0) & (x.abs() < math.inf)
    size, exponent, true = _binade(torch.where(plain, x.abs(), 1.0))
    mantissa = size * torch.exp2(-1 - exponent)
    mantissa = torch.where(plain, torch.where(x < 0, -mantissa, mantissa), x)
    return mantissa.to(self.dtype), torch.where(plain, true + 1, 0.0).to(torch.int32)


_FRACTION = {torch.float64: (52, -1022), torch.float32: (23, -126), torch.float16: (10, -14), torch.bfloat16: (7, -126)}


@decomposition("nextafter")
def _nextafter(self: Tensor, other: Tensor) -> Tensor:
    """The step is a power of two, found and taken exactly in float64."""
    dtype = torch.result_type(self, other)
    bits, least = _FRACTION[dtype]
    x, y = torch.broadcast_tensors(double(self.to(dtype)), double(other.to(dtype)))
    size, up = x.abs(), x < y
    *_, exponent = _binade(torch.where((size > 0) & (size < math.inf), size, 1.0))
    exponent = torch.clamp(torch.where(size == 0, float(least), exponent), min=least)
    inward = (up != (x >= 0)) & (size == torch.exp2(exponent)) & (exponent > least)  # into a binade of finer steps
    step = torch.exp2(exponent - torch.where(inward, bits + 1.0, float(bits)))
    moved = torch.where(size == math.inf, torch.sign(x) * torch.finfo(dtype).max, x + torch.where(up, step, -step))
    moved = torch.where(x == y, y, moved)
    return torch.where(x.isnan() | y.isnan(), math.nan, moved).to(dtype)


@decomposition("prims::device_put")
def _placed(a: Tensor, device: Any, non_blocking: bool = False) -> Tensor:
    """A file names no devices."""
    return a.clone()
