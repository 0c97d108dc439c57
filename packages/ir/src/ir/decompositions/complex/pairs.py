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
        """The quotient; the divisor is scaled first: its square must neither overflow nor vanish (Smith, 1962).

        0 and what has one infinite part divide both parts, as in torch.
        """
        re, im = parts(other)
        if im is None:
            return Pair(self.re / re, self.im / re)
        if not isinstance(re, Tensor):
            return self * (1 / complex(re, im)) if re or im else Pair(self.re / 0.0, self.im / 0.0)
        scale, least = torch.maximum(re.abs(), im.abs()), torch.minimum(re.abs(), im.abs())
        extreme = scale + scale == scale
        re, im = torch.where(extreme, 1.0, re / scale), torch.where(extreme, least * 0.0, im / scale)
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


def is_complex(x: Number) -> bool:
    return parts(x)[1] is not None


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
    """By the root of its magnitude, twice: a part may be finite where the magnitude is not."""
    root = torch.exp(z.re * 0.5)
    y = torch.where(root == 0, 0.0, z.im)  # 0 also with an angle that has no cosine
    return Pair(torch.cos(y) * root * root, torch.where(y != 0, torch.sin(y) * root * root, y))


def _quartered(z: Pair) -> tuple[Pair, Tensor]:
    """A quarter of it where its magnitude might be infinite, and where that is."""
    huge = torch.maximum(z.re.abs(), z.im.abs()) > torch.finfo(z.dtype).max / 4
    return z * torch.where(huge, 0.25, 1.0), huge


def _of_quarter(huge: Tensor, made: Tensor) -> Tensor:
    """A logarithm, or an area function, of a quarter as that of the whole. (-0.0 + 0.0 would lose the sign.)"""
    return torch.where(huge, made + torch.sign(made) * math.log(4), made)


def _log_abs(z: Pair, more: Tensor) -> Tensor:
    """The logarithm of |z|, by `more` = |z|^2 - 1 where the magnitude is near 1 and has no digits of it left."""
    near = more.abs() < 0.5
    quarter, huge = _quartered(z)
    far = _of_quarter(huge, torch.log(quarter.abs()))
    return torch.where(near, 0.5 * torch.log1p(torch.where(near, more, 0.0)), far)


def log(z: Pair, base: float = math.e) -> Pair:
    larger, smaller = torch.maximum(z.re.abs(), z.im.abs()), torch.minimum(z.re.abs(), z.im.abs())
    made = Pair(_log_abs(z, (larger - 1) * (larger + 1) + smaller * smaller), z.angle())
    return made if base == math.e else made * (1 / math.log(base))


def log1p(z: Pair) -> Pair:
    return Pair(_log_abs(1 + z, z.re * (2 + z.re) + z.im * z.im), (1 + z).angle())


def sqrt(z: Pair) -> Pair:
    near, huge = _quartered(z)
    return _root(near) * torch.where(huge, 2.0, 1.0)


def _root(z: Pair) -> Pair:
    """The root in the right half plane, without cancellation: the part that is a sum is computed, the other divides."""
    big = torch.sqrt((z.re.abs() + z.abs()) / 2)
    small = torch.where(big == 0, big, z.im.abs() / (2 * torch.where(big == 0, 1.0, big)))
    right = z.re >= 0
    return Pair(torch.where(right, big, small), torch.copysign(torch.where(right, small, big), z.im))


def _hyperbolic(x: Tensor) -> tuple[Tensor, Tensor]:
    """sinh and cosh of x / 2, of which sinh x = 2 sinh(x / 2) cosh(x / 2), cosh x = 1 + 2 sinh(x / 2)^2.

    Both are finite: twice the largest number makes a part infinite, unless the part's own factor is 0.
    """
    most = torch.finfo(x.dtype).max
    return torch.clamp(torch.sinh(x * 0.5), -most, most), torch.clamp(torch.cosh(x * 0.5), max=most)


def sinh(z: Pair) -> Pair:
    (sinh, cosh), cos, sin = _hyperbolic(z.re), torch.cos(z.im), torch.sin(z.im)
    return Pair(2 * cos * sinh * cosh, sin + 2 * sin * sinh * sinh)


def cosh(z: Pair) -> Pair:
    (sinh, cosh), cos, sin = _hyperbolic(z.re), torch.cos(z.im), torch.sin(z.im)
    return Pair(cos + 2 * cos * sinh * sinh, 2 * sin * sinh * cosh)


def tanh(z: Pair) -> Pair:
    """sinh(z) / cosh(z), times the conjugate of cosh(z); past |x| = 20 it is 1 to the last digit."""
    x = torch.clamp(z.re, -20, 20)
    sinh, cos = torch.sinh(x), torch.cos(z.im)
    below = sinh * sinh + cos * cos
    return Pair(sinh * torch.cosh(x) / below, torch.sin(z.im) * cos / below)


# Inverse functions: Kahan, "Branch cuts for complex elementary functions", 1987. Of a huge number they are those of a
# quarter of it, and a logarithm of 4.


def asin(z: Pair) -> Pair:
    z, huge = _quartered(z)
    minus, plus = _root(1 - z), _root(1 + z)
    area = torch.asinh((minus.conj() * plus).im)
    return Pair(torch.atan2(z.re, (minus * plus).re), _of_quarter(huge, area))


def acos(z: Pair) -> Pair:
    z, huge = _quartered(z)
    minus, plus = _root(1 - z), _root(1 + z)
    area = torch.asinh((plus.conj() * minus).im)
    return Pair(2 * torch.atan2(minus.re, plus.re), _of_quarter(huge, area))


def acosh(z: Pair) -> Pair:
    z, huge = _quartered(z)
    minus, plus = _root(z - 1), _root(z + 1)
    area = torch.asinh((minus.conj() * plus).re)
    return Pair(_of_quarter(huge, area), 2 * torch.atan2(minus.im, plus.re))


def atanh(z: Pair) -> Pair:
    """By sinh(2 re) = 2x / (|1 - z| |1 + z|), which neither cancels nor overflows; far out it is a right angle."""
    most = torch.finfo(z.dtype).max ** 0.5 / 4
    x, y = torch.clamp(z.re, -most, most), torch.clamp(z.im, -most, most)
    double = torch.asinh(2 * x / torch.hypot(1 - x, y) / torch.hypot(1 + x, y))
    return Pair(0.5 * double, 0.5 * torch.atan2(2 * y, (1 - x) * (1 + x) - y * y))


def sigmoid(z: Pair) -> Pair:
    """e^(z / 2) / (2 cosh(z / 2)), times the conjugate; where the square of the sinh is infinite, it is 0."""
    most = 0.95 * math.log(torch.finfo(z.dtype).max)
    x, y = torch.clamp(z.re * 0.5, -most, 20), z.im * 0.5
    sinh, cos = torch.sinh(x), torch.cos(y)
    below = 2 * (sinh * sinh + cos * cos)
    return Pair((sinh * torch.exp(x) + cos * cos) / below, torch.sin(y) * cos / below)


def power(z: Number, exponent: Number) -> Pair:
    """z ** exponent; 0 to a power of positive real part is 0, and of others no number, as in torch."""
    if not isinstance(exponent, (Tensor, Pair)) and exponent in (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5):
        return _fixed_power(z, exponent)
    like = z.re if isinstance(z, Pair) else exponent.re if isinstance(exponent, Pair) else z
    z, w = lift(z, like), lift(exponent, like)
    zero = ~z.nonzero()
    safe = where(zero, Pair(torch.ones_like(z.re), torch.zeros_like(z.im)), z)
    made = exp(w * log(safe))
    at_zero = torch.where(w.re > 0, 0.0, math.nan)
    return where(zero, Pair(torch.where(w.re < 0, math.inf, at_zero).to(made.dtype), at_zero.to(made.dtype)), made)


def _fixed_power(z: Pair, exponent: float) -> Pair:
    if exponent == 0.5:
        return sqrt(z)
    if exponent < 0:
        return 1.0 / _fixed_power(z, -exponent)
    if exponent == 0:
        return Pair(torch.ones_like(z.re), torch.zeros_like(z.im))
    half = z * z if exponent > 1 else z
    return {1: z, 2: half}.get(int(exponent)) or (half * z if exponent == 3 else half * half)
