"""A complex tensor as two real ones, with the arithmetic of complex numbers.

The rules of `rules` are written with it: traced, they are graphs of real tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Real = Any  # a real tensor or a Python number
Number = Any  # a Pair, a real tensor or a Python number, complex ones included


@dataclass(frozen=True, eq=False)
class Pair:
    """`re + i im`: two real tensors that broadcast to the same shape."""

    re: Tensor
    im: Tensor

    @property
    def shape(self) -> Any:
        """The shape of both parts together."""
        return self.re.shape if self.re.shape == self.im.shape else torch.broadcast_shapes(self.re.shape, self.im.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the parts."""
        return self.re.dtype

    def map(self, fn: Callable[[Tensor], Tensor]) -> Pair:
        """A linear map of real coefficients, on both parts."""
        return Pair(fn(self.re), fn(self.im))

    def conj(self) -> Pair:
        return Pair(self.re, -self.im)

    def abs(self) -> Tensor:
        return torch.hypot(self.re, self.im)

    def angle(self) -> Tensor:
        return torch.atan2(self.im, self.re)

    def turned(self) -> Pair:
        """i times it, without a multiplication."""
        return Pair(-self.im, self.re)

    def turned_back(self) -> Pair:
        """-i times it."""
        return Pair(self.im, -self.re)

    def nonzero(self) -> Tensor:
        """Where it is not 0, a bool tensor."""
        return (self.re != 0) | (self.im != 0)

    def __neg__(self) -> Pair:
        return Pair(-self.re, -self.im)

    def __add__(self, other: Number) -> Pair:
        re, im = parts(other)
        return Pair(self.re + re, self.im if im is None else self.im + im)

    def __radd__(self, other: Number) -> Pair:
        return self.__add__(other)

    def __sub__(self, other: Number) -> Pair:
        re, im = parts(other)
        return Pair(self.re - re, self.im if im is None else self.im - im)

    def __rsub__(self, other: Number) -> Pair:
        return (-self).__add__(other)

    def __mul__(self, other: Number) -> Pair:
        re, im = parts(other)
        if im is None:
            return Pair(self.re * re, self.im * re)
        return Pair(self.re * re - self.im * im, self.re * im + self.im * re)

    def __rmul__(self, other: Number) -> Pair:
        return self.__mul__(other)

    def __truediv__(self, other: Number) -> Pair:
        """The quotient; the divisor is scaled first: its square must neither overflow nor vanish (Smith, 1962)."""
        re, im = parts(other)
        if im is None:
            return Pair(self.re / re, self.im / re)
        if not isinstance(re, Tensor):
            return self * (1 / complex(re, im)) if re or im else Pair(self.re / 0.0, self.im / 0.0)
        scale = torch.maximum(re.abs(), im.abs())
        re, im = re / scale, im / scale
        square = (re * re + im * im) * scale
        return Pair((self.re * re + self.im * im) / square, (self.im * re - self.re * im) / square)

    def __rtruediv__(self, other: Number) -> Pair:
        return lift(other, self.re) / self


def parts(x: Number) -> tuple[Real, Real | None]:
    """Real and imaginary part, the second None for what is real."""
    if isinstance(x, Pair):
        return x.re, x.im
    if isinstance(x, complex):
        return x.real, x.imag
    return x, None


def lift(x: Number, like: Tensor) -> Pair:
    """Anything as a Pair; a number takes the element type of `like`."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, Tensor):
        x = x if x.dtype.is_floating_point else x.to(like.dtype)
        return Pair(x, torch.zeros_like(x))
    re, im = parts(x)
    return Pair(like.new_full((), re), like.new_full((), im or 0.0))


def times(a: Number, b: Number) -> Number:
    """The product, real where both are."""
    return b * a if isinstance(b, Pair) else a * b


def polar(abs: Tensor, angle: Tensor) -> Pair:
    """The number of this magnitude and angle (radians)."""
    return Pair(abs * torch.cos(angle), abs * torch.sin(angle))


def where(condition: Tensor, a: Pair, b: Pair) -> Pair:
    """`a` where the condition holds, else `b`."""
    return Pair(torch.where(condition, a.re, b.re), torch.where(condition, a.im, b.im))


def exp(z: Pair) -> Pair:
    return polar(torch.exp(z.re), z.im)


def log(z: Pair, base: float = math.e) -> Pair:
    scale = 1 / math.log(base)
    made = Pair(torch.log(z.abs()), z.angle())
    return made if base == math.e else made * scale


def sqrt(z: Pair) -> Pair:
    """The root in the right half plane, without cancellation: the part that is a sum is computed, the other divides."""
    big = torch.sqrt((z.re.abs() + z.abs()) / 2)
    small = torch.where(big == 0, big, z.im.abs() / (2 * torch.where(big == 0, 1.0, big)))
    right = z.re >= 0
    return Pair(torch.where(right, big, small), torch.copysign(torch.where(right, small, big), z.im))


def sinh(z: Pair) -> Pair:
    return Pair(torch.sinh(z.re) * torch.cos(z.im), torch.cosh(z.re) * torch.sin(z.im))


def cosh(z: Pair) -> Pair:
    return Pair(torch.cosh(z.re) * torch.cos(z.im), torch.sinh(z.re) * torch.sin(z.im))


def tanh(z: Pair) -> Pair:
    """(sinh 2x + i sin 2y) / (cosh 2x + cos 2y); past |x| = 20 it is 1 to the last digit."""
    x, y = 2 * torch.clamp(z.re, -20, 20), 2 * z.im
    below = torch.cosh(x) + torch.cos(y)
    return Pair(torch.sinh(x) / below, torch.sin(y) / below)


# Inverse functions: Kahan, "Branch cuts for complex elementary functions", 1987.


def asin(z: Pair) -> Pair:
    minus, plus = sqrt(1 - z), sqrt(1 + z)
    return Pair(torch.atan2(z.re, (minus * plus).re), torch.asinh((minus.conj() * plus).im))


def acos(z: Pair) -> Pair:
    minus, plus = sqrt(1 - z), sqrt(1 + z)
    return Pair(2 * torch.atan2(minus.re, plus.re), torch.asinh((plus.conj() * minus).im))


def acosh(z: Pair) -> Pair:
    minus, plus = sqrt(z - 1), sqrt(z + 1)
    return Pair(torch.asinh((minus.conj() * plus).re), 2 * torch.atan2(minus.im, plus.re))


def atanh(z: Pair) -> Pair:
    x, y = z.re, z.im
    ratio = 4 * x / ((1 - x) * (1 - x) + y * y)
    return Pair(0.25 * torch.log1p(ratio), 0.5 * torch.atan2(2 * y, (1 - x) * (1 + x) - y * y))


def sigmoid(z: Pair) -> Pair:
    """1 / (1 + exp(-z)), by tanh so that nothing overflows."""
    return tanh(z * 0.5) * 0.5 + 0.5


def power(z: Number, exponent: Number) -> Pair:
    """z ** exponent; 0 ** 0 is 1, and 0 to a power of positive real part is 0."""
    if not isinstance(exponent, (Tensor, Pair)) and exponent in (0, 1, 2, 3, 4, -1, -2, 0.5):
        return _fixed_power(z, exponent)
    like = z.re if isinstance(z, Pair) else exponent.re if isinstance(exponent, Pair) else z
    z, w = lift(z, like), lift(exponent, like)
    zero = ~z.nonzero()
    safe = where(zero, Pair(torch.ones_like(z.re), torch.zeros_like(z.im)), z)
    made = exp(w * log(safe))
    at_zero = torch.where(w.nonzero(), torch.where(w.re > 0, 0.0, math.nan), 1.0).to(made.dtype)
    return where(zero, Pair(at_zero, torch.zeros_like(at_zero)), made)


def _fixed_power(z: Pair, exponent: float) -> Pair:
    if exponent == 0.5:
        return sqrt(z)
    if exponent < 0:
        return 1.0 / _fixed_power(z, -exponent)
    if exponent == 0:
        return Pair(torch.ones_like(z.re), torch.zeros_like(z.im))
    half = z * z if exponent > 1 else z
    return {1: z, 2: half}.get(int(exponent)) or (half * z if exponent == 3 else half * half)
