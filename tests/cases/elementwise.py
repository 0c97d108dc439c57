"""One number in, one number out: arithmetic, maths, activations, comparisons, bits, casts and promotion."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import bf16, boolean, c64, f16, f32, f64, family, i8, i16, i32, i64, inf, mod, nan, row, u8, unary

ODD = [nan, inf, -inf, -0.0, 0.0, 1.0, -2.5]  # what IEEE arithmetic is about
ODD_TOO = [1.0, nan, inf, 0.0, -0.0, nan, -2.5]
HALVES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49999997]
SIGNED = [7, -7, 7, -7, 6, -6, 0]
DIVISORS = [3, 3, -3, -3, 2, 2, 5]


def relu_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.relu_()
    return y


def arithmetic_in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z.add_(y, alpha=2).mul_(y).sub_(1).div_(2)
    return z


def alias_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    z = y  # the same tensor under two names: both see the write
    y.mul_(3)
    return y, z


def keeps_the_old_value(x: Tensor) -> Tensor:
    y = x + 1
    before = y * 2
    y.add_(10)
    return before + y


def input_mutated(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def input_copied_over(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y)  # broadcasts
    return x.sum()


def self_times_twin(x: Tensor) -> Tensor:
    x *= torch.sigmoid(x)
    return x


class Counter(nn.Module):
    """Writes to its buffers, as training statistics and caches do."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean + self.calls


THREE = [(slice(None), slice(1, 3)), (slice(None), slice(2, 4)), (slice(None), slice(0, 2))]


def equal_constants(y: Tensor) -> tuple[Tensor, Tensor]:
    """A polynomial of degree 0, whose constants tract computes, beside a remainder that comes first."""
    polynomial = torch.special.shifted_chebyshev_polynomial_w(y, torch.tensor(0))
    return torch.gcd(y, y).fmod(2.0), polynomial


def slices_of_a_number(x):
    return x == 1, x[:, 2:], x[:, :2][:, :1], x[None, :, -1] + 1


def exchanged(x):
    """Choices and differences of one value in two forms, in both orders."""
    forms = [
        (torch.stack([x[0], x[1]]), torch.cat(x.split(1))),
        (torch.cat(x.split(1, 1), 1), torch.stack([x[:, 0], x[:, 1]], 1)),
        (x.double().float(), x.unsqueeze(0).cumsum(0)[0]),
        (x.roll(1, 0).roll(-1, 0), torch.cat(x.chunk(2))),
    ]
    return [torch.where(a > 0.5, a, b) - torch.where(a > 0.5, b, a) + (a - b) / (b - a + 1) for a, b in forms]


def equal_slices(x):
    """Slices of what is the same everywhere, joined with the whole, in a product that tract splits."""
    joined = torch.cat([x, x.roll(1, 1)], 1)
    return torch.einsum("bi,bi->b", joined, joined)


def equal_behind_neutral(x: Tensor, y: Tensor) -> Tensor:
    """`there` and `back` are equal once what does nothing is removed; what is first here is read last then."""
    there, back = y.double(), x.double()
    return torch.where(((there == 0) | (back == torch.inf)) & (there == torch.inf), torch.nan, back)


def floor_of_size(x: Tensor) -> Tensor:
    third = torch.scalar_tensor(x.shape[0], dtype=torch.float32) / 3
    return x * (third - third.floor()) + third.round() - third.ceil()


CASES = family(
    __name__,
    # maths of one tensor
    *unary("abs neg sign sgn positive floor ceil trunc frac square exp exp2 expm1 erf erfc sigmoid i0 signbit"),
    *unary("sin cos tan atan sinh cosh tanh asinh sinc deg2rad rad2deg reciprocal"),
    *unary("sqrt rsqrt log log2 log10 log1p lgamma digamma", f32("B", 3, positive=True)),
    *unary("asin acos atanh erfinv", f32("B", 3, low=-0.9, high=0.9)),
    *unary("acosh", f32("B", 3, low=1.1, high=3)),
    *unary("erfcx log_ndtr ndtr i0e i1", namespace=torch.special),
    row("erfcx_large", lambda x: torch.special.erfcx(x), f32(value=[-2.0, 0.0, 5.0, 12.0, 30.0])),
    row("log_ndtr_tail", lambda x: torch.special.log_ndtr(x), f32(value=[-30.0, -12.0, -5.0, 0.0, 5.0])),
    row("expm1_log1p_small", lambda x: (torch.expm1(x), torch.log1p(x)), f32(value=[1e-7, -1e-7, 1e-4])),
    row("entr", lambda x: torch.special.entr(x), f32(value=[-1.0, 0.0, 0.5, 2.0])),
    row("polygamma", lambda x: torch.polygamma(1, x), f32("B", 3, positive=True)),
    row("ldexp_of_integers", lambda x, y: torch.ldexp(x, y), i32(3, low=0, high=3), u8(value=[0, 8, 255])),
    row(
        "limits_far",
        lambda x, y: (x.clamp(0, 4), x.clamp_min(-3), torch.maximum(x, y), torch.minimum(x, y), x.sign(), F.relu6(x)),
        i64("B", 24, low=-(2**32), high=2**32),
        i64(24, low=-9, high=2**32),
    ),
    row("logit", lambda x: torch.logit(x), f32("B", 3, low=0.1, high=0.9)),
    row("logit_crossed", lambda x: torch.logit(x, eps=0.6), f32("B", 3, low=-1, high=2)),
    row("logit_eps_infinite", lambda x: torch.logit(x, eps=inf), f32("B", 3, low=0, high=1)),
    row("logit_eps_f16", lambda x: torch.logit(x, eps=1e-6), f16("B", 6, low=-1, high=2)),
    row("logit_eps", lambda x: torch.logit(x, eps=0.2), f32("B", 3, low=0, high=1)),
    row("round_half_to_even", lambda x: torch.round(x), f32(value=HALVES)),
    row("round_decimals", lambda x: torch.round(x, decimals=2), f32("B", 3)),
    row(
        "round_decimals_digits",
        lambda x: [x.round(decimals=d).double() for d in (1, 2, -1)],
        f32(value=[1.75, 0.3, 12.345, -45.0, 175.0, 49.49]),
    ),
    row("round_decimals_negative", lambda x: torch.round(x, decimals=-1), f32("B", 3, low=-100, high=100)),
    row("abs_int", lambda x: torch.abs(x), i64("B", 3)),
    row("neg_int8", lambda x: -x, i8("B", 3)),
    row("floor_of_size", floor_of_size, f32("B", 3)),
    row("floor_int", lambda x: torch.floor(x), i32("B", 3)),
    row("sqrt_int_promotes", lambda x: torch.sqrt(x), i64("B", 3, positive=True)),
    row("sigmoid_bool_promotes", lambda x: torch.sigmoid(x), boolean("B", 3)),
    row("exp_f16", lambda x: torch.exp(x), f16("B", 3)),
    row("tanh_bf16", lambda x: torch.tanh(x), bf16("B", 3)),
    row("sin_f64", lambda x: torch.sin(x), f64("B", 3)),
    row("relu_clamp_f64", lambda x: torch.relu(x).clamp(-1, 1), f64("B", 3)),
    # arithmetic
    row("add", lambda x, y: x + y, f32("B", 3), f32("B", 3)),
    row("add_alpha", lambda x, y: torch.add(x, y, alpha=2), f32("B", 3), f32(3)),
    row("add_alpha_int", lambda x, y: torch.add(x, y, alpha=-3), i64("B", 3), i64(3)),
    row("add_scalar", lambda x: x + 1.5, f32("B", 3)),
    row("add_bool_is_or", lambda x, y: x + y, boolean("B", 3), boolean("B", 3)),
    row("sub", lambda x, y: x - y, f32("B", 3), f32(3)),
    row("sub_alpha", lambda x, y: torch.sub(x, y, alpha=0.5), f32("B", 3), f32("B", 1)),
    row("rsub", lambda x: 2 - x, f32("B", 3)),
    row("rsub_alpha", lambda x, y: torch.rsub(x, y, alpha=2), f32("B", 3), f32("B", 3)),
    row("mul", lambda x, y: x * y, f32("B", 3), f32("B", 3)),
    row("mul_bool_is_and", lambda x, y: x * y, boolean("B", 3), boolean("B", 3)),
    row("mul_i16", lambda x, y: x * y, i16("B", 3), i16("B", 3)),
    row("mul_u8_wraps", lambda x: x * 100, u8("B", 3)),
    row("div", lambda x, y: x / y, f32("B", 3), f32("B", 3, positive=True)),
    row("div_int_is_true", lambda x, y: x / y, i64("B", 3), i64("B", 3, positive=True)),
    row("div_int_by_scalar", lambda x: x / 2, i32("B", 3)),
    row("div_floor", lambda x: torch.div(x, 0.7, rounding_mode="floor"), f32("B", 3)),
    row("div_trunc", lambda x: torch.div(x, 0.7, rounding_mode="trunc"), f32("B", 3)),
    row(
        "div_floor_int",
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        i64(value=SIGNED),
        i64(value=DIVISORS),
    ),
    row(
        "div_trunc_int",
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        i64(value=SIGNED),
        i64(value=DIVISORS),
    ),
    row("floor_divide", lambda x, y: x // y, i32(value=SIGNED), i32(value=DIVISORS)),
    row(
        "floor_divide_ends",
        lambda x, y: (x // y, x // 3, x >> 1, torch.div(x, -7, rounding_mode="floor")),
        *(i8(value=[127, -128, 127, -128, -127, 100]), i8(value=[-128, 3, -3, 127, 2, -100])),
    ),
    row(
        "divided_far",
        lambda x, y: (torch.fmod(x, y), x // y, torch.remainder(x, y)),
        *(i64(value=[2**62 + 1, -(2**62) - 1, 2**53 + 1, -7]), i64(value=[3, 5, 2**40, 2])),
    ),
    row("floor_divide_float", lambda x: x // 0.3, f32("B", 3)),
    row("scalar_over_tensor", lambda x: 1 / x, f32("B", 3, positive=True)),
    row("remainder_int", lambda x, y: torch.remainder(x, y), i64(value=SIGNED), i64(value=DIVISORS)),
    row("remainder_float", lambda x: (x % 0.7, x % -0.7), f32("B", 3)),
    row("remainder_scalar_tensor", lambda x: torch.remainder(7, x), i64("B", 3, positive=True)),
    row(
        "remainder_far",  # quotients beyond what the type counts exactly
        lambda x: (x % 3.0, torch.fmod(x, 3.0), torch.fmod(x, -7)),
        f64(value=[1e30, -1e30, 1.7e308, -1.7e308, 12345.5, -12345.5, 3.0, 2.0**70]),
    ),
    row("floor_divide_half", lambda x: (x // 0.3, x // -1.5), f16(value=[829, 304, -77, 10000, 0.3, -0.5])),
    row("fmod_int", lambda x, y: torch.fmod(x, y), i64(value=SIGNED), i64(value=DIVISORS)),
    row("fmod_float", lambda x, y: torch.fmod(x, y), f32("B", 3), f32("B", 3, positive=True)),
    row("pow_tensor", lambda x, y: x**y, f32("B", 3, positive=True), f32(3)),
    row("pow_uniform_exponent", lambda x, y: x ** y.fill_(3), f32(3, 1), f32(1, 2)),
    row(
        "remainder_by_folded_zero",  # of a condition on constants
        lambda x, y: (x % torch.where(y.fill_(-1) < 0, 0, x), torch.fmod(x, torch.where(y < 0, 0, x))),
        f32(3, 1),
        f32(1),
    ),
    row("pow_square", lambda x: x**2, f32("B", 3)),
    row("pow_cube_negative_base", lambda x: x**3.0, f32("B", 3)),
    row("pow_half", lambda x: x**0.5, f32("B", 3, positive=True)),
    row("pow_minus_one", lambda x: x**-1, f32("B", 3, positive=True)),
    row("pow_zero", lambda x: x**0, f32("B", 3)),
    row("pow_scalar_base", lambda x: 2**x, f32("B", 3)),
    row("pow_int", lambda x: x**3, i64("B", 3)),
    row("pow_int_to_float", lambda x: x**0.5, i64("B", 3, positive=True)),
    row("float_power", lambda x: torch.float_power(x, 2), f32("B", 3)),
    row("atan2", lambda x, y: torch.atan2(x, y), f32("B", 3), f32("B", 3)),
    row(
        "atan2_axes",
        lambda x, y: torch.atan2(x, y),
        f32(value=[0.0, -0.0, 1, -1, 0]),
        f32(value=[-1.0, -1, 0, 0, 1]),
    ),
    row("hypot", lambda x, y: torch.hypot(x, y), f32("B", 3), f32("B", 3)),
    row("sign_of_trunc", lambda x: 1 / torch.trunc(x), f32(value=[-0.5, 0.5, -0.0, -3.5, inf])),
    row(
        "sign_of_nothing",
        lambda x, y: 1 / torch.copysign(x, y),
        f32(value=[0.0, -0.0, 0.0]),
        f32(value=[-1.0, 1.0, -0.0]),
    ),
    row("sign_of_frac", lambda x: 1 / torch.frac(x), f32(value=[-3.0, 3.0, -0.0, 0.0, -2.5, 2.5])),
    row("expm1_of_little", lambda x: torch.expm1(x) == x, f32(value=[1e-9, -1e-9, 3e-8, 1e-38, 0.0])),
    row(
        "ldexp_of_extremes",
        lambda x, y: torch.ldexp(x, y),
        f32(value=[inf, 1e-30, 1e30, 0.0, 3.0]),
        i16(value=[-32768, 200, -150, 300, -3]),
    ),
    row("ldexp_by_one_half", lambda x, y: torch.ldexp(x, y.half().sum()), f64(3), f32(value=[1.75, 1.0])),
    row("chebyshev_of_a_number", lambda x: torch.special.chebyshev_polynomial_v(x, 3), f32("B", 3)),
    row(
        "polynomial_beyond_float",
        lambda x: torch.special.shifted_chebyshev_polynomial_w(x, x),
        i64(value=[8, 20, 64, -3]),
    ),
    row("copysign", lambda x, y: torch.copysign(x, y), f32("B", 3), f32("B", 3)),
    row("maximum", lambda x, y: torch.maximum(x, y), f32("B", 3), f32(3)),
    row("minimum_int", lambda x, y: torch.minimum(x, y), i64("B", 3), i64(3)),
    row(
        "fmax_fmin_skip_nan",
        lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)),
        f32(value=ODD),
        f32(value=ODD_TOO),
    ),
    row("xlogy", lambda x, y: torch.xlogy(x, y), f32(value=[0.0, 1.0, 0.0]), f32(value=[0.0, 2.0, 3.0])),
    row("logaddexp_of_itself_f16", lambda x: torch.logaddexp(x.expand(1, *x.shape), x), f16("B", 3)),
    row("logaddexp", lambda x, y: torch.logaddexp(x, y), f32("B", 3), f32("B", 3)),
    row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), f32("B", 3), f32(3), f32("B", 1)),
    row(
        "addcdiv",
        lambda x, y, z: torch.addcdiv(x, y, z, value=2),
        f32("B", 3),
        f32(3),
        f32("B", 3, positive=True),
    ),
    row("lerp", lambda x, y: torch.lerp(x, y, 0.3), f32("B", 3), f32("B", 3)),
    row("lerp_tensor", lambda x, y, w: torch.lerp(x, y, w), f32("B", 3), f32("B", 3), f32(3)),
    row("gcd", lambda x, y: torch.gcd(x, y), i64("B", 3, low=1, high=30), i64("B", 3, low=1, high=30)),
    row(
        "lcm_narrow",
        lambda x, y: torch.lcm(x.to(torch.int8), y.to(torch.int8)),
        i64("B", 9, low=-128, high=127),
        i64("B", 9, low=-128, high=127),
    ),
    # broadcasting and sizes
    row("broadcast_left", lambda x, y: x + y, f32(3), f32("B", "S", 3)),
    row("broadcast_right", lambda x, y: x - y, f32("B", 2, 3), f32(2, 1)),
    row("broadcast_square", lambda x, y: x * y, f32(3, 3), f32(3)),
    row("broadcast_both", lambda x, y: x / y, f32("B", 1), f32(1, "N", positive=True)),
    row("broadcast_outer", lambda x, y: x[:, None] * y[None, :], f32("B"), f32("N")),
    row("scalar_tensors", lambda x, y: x * y + 1, f32(), f32()),
    row("scalar_against_rank_3", lambda x, y: x + y, f32("B", 2, 3), f32()),
    row("empty", lambda x, y: torch.relu(x) + y, f32(0, 3), f32(3)),
    row("empty_broadcast", lambda x, y: x * y, f32(1, 3), f32(0, 1)),
    row("size_one_axes", lambda x, y: x + y, f32(1, "S", 1), f32(2, 1, 3)),
    # promotion
    row("int_plus_float", lambda x, y: x + y, i64("B", 3), f32("B", 3)),
    row("int_plus_half", lambda x, y: x + y, i64("B", 3), f16("B", 3)),
    row("half_plus_bfloat", lambda x, y: x + y, f16("B", 3), bf16("B", 3)),
    row("half_plus_float_scalar_tensor", lambda x, y: x * y, f16("B", 3), f32()),
    row("int_plus_float_scalar", lambda x: x + 0.5, i64("B", 3)),
    row("float_plus_f64_scalar_tensor", lambda x, y: x + y, f32("B", 3), f64()),
    row("i32_plus_i64", lambda x, y: x + y, i32("B", 3), i64("B", 3)),
    row("i32_plus_i64_scalar_tensor", lambda x, y: x + y, i32("B", 3), i64()),
    row("u8_plus_i8", lambda x, y: x + y, u8("B", 3), i8("B", 3)),
    row("bool_plus_int", lambda x, y: x + y, boolean("B", 3), i64("B", 3)),
    row("bool_times_float", lambda x, y: x * y, boolean("B", 3), f32("B", 3)),
    row("bool_plus_scalar", lambda x: x + 1, boolean("B", 3)),
    row("f16_arithmetic", lambda x, y: x * y + 0.1, f16("B", 3), f16(3)),
    row("bf16_arithmetic", lambda x, y: x * y - 0.1, bf16("B", 3), bf16(3)),
    row("complex_arithmetic", lambda x, y: x * y + x.conj(), c64("B", 3), c64(3)),
    row("complex_real", lambda x, y: (x * y + 2, y - x, x / y, y / x, 2j * x), c64("B", 3), f32(3, positive=True)),
    row("complex_division", lambda x, y: (x / y, 1 / y, x / (2 - 3j)), c64("B", 3), c64(3)),
    row("complex_powers", lambda x: (x**2, x**-1, x**0.5, x**2.5, 2**x, x.sqrt(), x.rsqrt()), c64("B", 3)),
    row(
        "complex_exponentials",
        lambda x: (x.exp(), x.log(), x.log2(), x.log1p(), torch.polar(x.abs(), x.angle())),
        c64("B", 3),
    ),
    row("complex_trigonometry", lambda x: (x.sin(), x.cos(), x.tan(), x.sinh(), x.cosh(), x.tanh()), c64("B", 3)),
    row("complex_inverses", lambda x: (x.asin(), x.acos(), x.atan(), x.asinh(), x.acosh(), x.atanh()), c64("B", 3)),
    row(
        "complex_huge",
        lambda x: (
            x.log(),
            x.log10(),
            x.log1p(),
            x.sqrt(),
            x.rsqrt() * 1e20,
            x**-2,
            x**-0.5,
            x**2.5,
            x.asin(),
            x.acos(),
            x.atan(),
            x.asinh(),
            x.acosh(),
            x.atanh(),
        ),
        c64(value=[1e20, 3e38, -3e38 + 3e38j, 2 - 3e38j, -1e25 - 2e19j]),
    ),
    row(
        "complex_huge_angles", lambda x: (x.tan(), x.tanh(), x.sin(), x.cos()), c64(value=[3e38, 1 - 3e38j, 3e38j, 1e5])
    ),
    row(
        "complex_cancelling",
        lambda x: (x.atan(), x.atanh(), (x - 1).log1p(), x.acosh(), x.asin(), x.tan()),
        c64(value=[1e-3 + 1j, 1.001 + 1e-3j, -1.001 - 2e-3j, 1.0001 - 1e-30j, 1.5707 + 1e-4j, -0.8 + 0.6j]),
    ),
    row(
        "complex_log_near_one",
        lambda x: (x.log().real * 1e8, x.log2().real * 1e8, (x * 1j).log().real * 1e8),
        c64(value=[1 + 3e-4j, 1 - 2e-4j, 1 + 1e-4j]),
    ),
    row(
        "complex_sigmoid",
        lambda x: (x.sigmoid(), F.silu(x), x.sigmoid() * (-x).exp(), F.silu(x) * (-x).exp()),
        c64(value=[0, 1 - 3j, -20, -8 + 1j, -20 - 2j, 30 + 100j, -40 + 1e5j, 3.14j, 1000 + 1j]),
    ),
    row(
        "complex_overflow",
        lambda x: (x.exp(), x.exp2(), x.sinh(), x.cosh(), x.sin(), x.cos(), 1 / (1 + x.exp()), x.sinc().isnan()),
        c64(value=[0, 1000, -1000 + 2j, 89 + 1.5j, -89 - 1j, 1 + 89j, 1e5, 89]),
    ),
    row(
        "complex_zero",
        lambda x: tuple(
            torch.view_as_real(y) for y in (x.reciprocal(), x.rsqrt(), x**-1, (1 + 2j) / x, x**2.5, x**-1.5, x**1j)
        ),
        c64(value=[0, 1, -2j, 1e-30 + 1e-30j]),
    ),
    row(
        "complex_comparison",
        lambda x: (x == x.conj(), x != 0, torch.isfinite(x / x.abs()), x.sgn(), x.to(torch.bool)),
        c64("B", 3),
    ),
    row("complex_where", lambda x, m: (torch.where(m, x, 1j), x.masked_fill(m, 2 + 1j)), c64("B", 3), boolean("B", 3)),
    row("complex_double", lambda x, y: x * y, c64("B", 3), f64(3)),
    row("complex_parts", lambda x: (x.real, x.imag, x.abs(), x.angle()), c64("B", 3)),
    # casts
    row("to_int_truncates", lambda x: (x * 3).to(torch.int64), f32("B", 3)),
    row("to_bool", lambda x: x.bool(), f32(value=[0.0, -0.0, 0.5, nan, -3.0])),
    row("to_i32", lambda x: x.int(), i64("B", 3)),
    row("to_u8", lambda x: x.to(torch.uint8), i64("B", 3, low=0, high=200)),
    row("to_half_and_back", lambda x: x.half().float(), f32("B", 3)),
    row("to_bfloat16", lambda x: x.bfloat16(), f32("B", 3)),
    row("to_double", lambda x: x.double() / 3, f32("B", 3)),
    row("to_same_dtype", lambda x: x.float() * 2, f32("B", 3)),
    row("bool_to_float", lambda x: x.float(), boolean("B", 3)),
    row("type_as", lambda x, y: x.type_as(y), i64("B", 3), f32(3)),
    row("to_other", lambda x, y: x.to(y), f32("B", 3), i32(3)),
    # comparisons, logic, bits
    row("compare", lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y), i64("B", 3), i64(3)),
    row("compare_scalar", lambda x: (x > 0, x <= 0.5, x != 1), f32("B", 3)),
    row("compare_int_with_float_scalar", lambda x: x > 0.5, i64("B", 3)),
    row("compare_mixed", lambda x, y: x < y, i64("B", 3), f32("B", 3)),
    row("compare_bool", lambda x, y: (x == y, x < y), boolean("B", 3), boolean("B", 3)),
    row("compare_odd", lambda x, y: (x == y, x != y, x < y, x >= y), f32(value=ODD), f32(value=ODD_TOO)),
    row("logical", lambda x, y: ((x & y), (x | y), (x ^ y), ~x), boolean("B", 3), boolean("B", 3)),
    row(
        "logical_and_float",
        lambda x, y: torch.logical_and(x, y),
        f32(value=[0.0, 1, 2]),
        f32(value=[1.0, 0, nan]),
    ),
    row(
        "logical_or_int",
        lambda x, y: torch.logical_or(x, y),
        i64("B", 3, low=-1, high=2),
        i64(value=[0, 0, 7]),
    ),
    row("logical_not_int", lambda x: torch.logical_not(x), i64("B", 3, low=-1, high=2)),
    row("logical_xor", lambda x, y: torch.logical_xor(x, y), i64("B", 3), boolean("B", 3)),
    row("bitwise", lambda x, y: (x & y, x | y, x ^ y, ~x), i64("B", 3), i64("B", 3)),
    row("bitwise_scalar", lambda x: (x & 3, x | 8, x ^ 1), i32("B", 3)),
    row("shifts", lambda x, y: (x << y, x >> y), i64("B", 3), i64("B", 3, low=0, high=5)),
    row("shift_scalar", lambda x: (x << 2, x >> 1), i32("B", 3)),
    row("isclose", lambda x, y: torch.isclose(x, y, rtol=0.5, atol=0.3), f32("B", 3), f32("B", 3)),
    row("allclose_parts", lambda x, y: torch.isclose(x, y, equal_nan=True), f32(value=ODD), f32(value=ODD_TOO)),
    row(
        "isnan_isinf",
        lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf()),
        f32(value=ODD),
    ),
    row("isnan_int", lambda x: (x.isnan(), x.isfinite()), i64("B", 3)),
    row("isnan_bool_squared", lambda x: torch.div(x.isnan().long().square().mT, 0.5), boolean("B", 3)),
    # choice and bounds
    row("where", lambda c, x, y: torch.where(c, x, y), boolean("B", 1), f32("B", 3), f32(3)),
    row("where_scalars", lambda c: torch.where(c, 1.0, 0.0), boolean("B", 3)),
    row("where_scalar_other", lambda x: torch.where(x > 0, x, -1), f32("B", 3)),
    row("where_scalar_self", lambda x: torch.where(x > 0, 0.0, x), f32("B", 3)),
    row("where_promotes", lambda c, x, y: torch.where(c, x, y), boolean("B", 3), i64("B", 3), f32(3)),
    row("where_broadcast_all", lambda c, x, y: torch.where(c, x, y), boolean("S", 1), f32(3), f32("B", 1, 1)),
    row("masked_fill", lambda x, m: x.masked_fill(m, -inf), f32("B", 3), boolean("B", 1)),
    row("masked_fill_int", lambda x, m: x.masked_fill(m, 7), i64("B", 3), boolean(3)),
    row("masked_fill_tensor", lambda x, m, v: x.masked_fill(m, v), f32("B", 3), boolean("B", 3), f32()),
    row("clamp", lambda x: x.clamp(-0.5, 0.5), f32("B", 3)),
    row("clamp_min", lambda x: x.clamp(min=0), f32("B", 3)),
    row("clamp_max_int", lambda x: x.clamp(max=2), i64("B", 3)),
    row("clamp_int_by_float", lambda x: x.clamp(min=0.5), i64("B", 3)),
    row(
        "clamp_tensors",
        lambda x, a, b: torch.clamp(x, a, b),
        f32("B", 3),
        f32(3, low=-1, high=0),
        f32("B", 1),
    ),
    row("clamp_tensor_max", lambda x, b: torch.clamp(x, max=b), f32("B", 3), f32(3)),
    row("clamp_crossed", lambda x: x.clamp(0.5, -0.5) + x, f32("B", 3)),
    row("clip", lambda x: torch.clip(x, 0, 1), f32("B", 3)),
    row("nan_to_num", lambda x: torch.nan_to_num(x), f32(value=ODD)),
    row("nan_to_num_given", lambda x: torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0), f32(value=ODD)),
    row("heaviside", lambda x, y: torch.heaviside(x, y), f32(value=[-1.0, 0, 2]), f32(value=[0.5, 0.5, 0.5])),
    # nan, infinities and signed zeros
    row("odd_clamp_relu", lambda x: (x.clamp(-1, 2), torch.relu(x), F.relu6(x)), f32(value=ODD)),
    row("odd_clamp_relu_f64", lambda x: (x.clamp(-1, 2), torch.relu(x), F.relu6(x)), f64(value=ODD)),
    row(
        "odd_maximum",
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)),
        f32(value=ODD),
        f32(value=ODD_TOO),
    ),
    row("odd_arithmetic", lambda x, y: (x + y, x * y, x / y), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_sign", lambda x: (x.sign(), x.signbit(), 1 / x), f32(value=ODD)),
    row("odd_round", lambda x: (x.round(), x.floor(), x.trunc()), f32(value=ODD)),
    row(
        "odd_activations",
        lambda x: (torch.sigmoid(x), torch.tanh(x), F.leaky_relu(x), F.softplus(x)),
        f32(value=ODD),
    ),
    row("odd_log_exp", lambda x: (torch.log(x), torch.exp(x), torch.sqrt(x)), f32(value=ODD)),
    # activations
    *unary("relu relu6 silu mish hardswish hardsigmoid logsigmoid softsign tanhshrink", namespace=F),
    row("gelu", lambda x: F.gelu(x), f32("B", 3)),
    row("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), f32("B", 3)),
    row("elu", lambda x: F.elu(x), f32("B", 3)),
    row("elu_alpha", lambda x: F.elu(x, alpha=0.5), f32("B", 3)),
    row("selu", lambda x: F.selu(x), f32("B", 3)),
    row("celu", lambda x: F.celu(x, alpha=0.7), f32("B", 3)),
    row("leaky_relu", lambda x: F.leaky_relu(x, 0.2), f32("B", 3)),
    row("hardtanh", lambda x: F.hardtanh(x, -0.3, 0.6), f32("B", 3)),
    row("hardshrink", lambda x: F.hardshrink(x, 0.4), f32("B", 3)),
    row("product_of_roots", lambda x: (x.sqrt() * x.sqrt().mT, torch.kron(x[0].sqrt(), x[0].sqrt())), f32("B", 3, 3)),
    row("softshrink", lambda x: F.softshrink(x, 0.4), f32("B", 3)),
    row("threshold", lambda x: F.threshold(x, 0.1, 20.0), f32("B", 3)),
    row("threshold_ints", lambda x: F.threshold(x, -0.75, 2.5), i64("B", 3)),
    row("softplus", lambda x: F.softplus(x, beta=2.0), f32("B", 3)),
    row("softplus_largest", lambda x: F.softplus(x, beta=3.5), f32(value=[3.4e38, 1e38, -3.4e38, 0.5])),
    row("softplus_threshold", lambda x: F.softplus(x, beta=1.0, threshold=1.0), f32("B", 3)),
    row("softplus_large", lambda x: F.softplus(x), f32(value=[-100.0, 0.0, 19.0, 21.0, 1000.0])),
    row("glu", lambda x: F.glu(x, dim=1), f32("B", 4, "S")),
    row("rrelu_eval", lambda x: F.rrelu(x, training=False), f32("B", 3)),
    row("prelu_one_weight", lambda x, w: F.prelu(x, w), f32("B", 3, 4), f32(1)),
    mod("prelu_per_channel", lambda: nn.PReLU(3, init=0.3), f32("B", 3, "H", "W")),
    row("silu_f16", lambda x: F.silu(x), f16("B", 3)),
    row("gelu_bf16", lambda x: F.gelu(x), bf16("B", 3)),
    row("relu_int", lambda x: torch.relu(x), i32("B", 3)),
    # writing in place
    row("relu_in_place", relu_in_place, f32("B", 3)),
    row("arithmetic_in_place", arithmetic_in_place, f32("B", 3), f32(3)),
    row("alias_in_place", alias_in_place, f32("B", 3)),
    row("keeps_the_old_value", keeps_the_old_value, f32("B", 3)),
    row("zero_and_fill", lambda x: (x.clone().zero_() + 1, (x * 2).fill_(3.0)), f32("B", 3)),
    row("int_buffer_keeps_dtype", lambda x, y: x.clone().mul_(y), f32("B", 3), i64("B", 3)),
    row("masked_fill_in_place", lambda x: (x + 0).masked_fill_(x > 0, 0.0), f32("B", 3)),
    row("clamp_in_place", lambda x: (x * 3).clamp_(min=-1).clamp_(max=1), f32("B", 3)),
    row("input_mutated", input_mutated, f32("B", 3)),
    row("input_copied_over", input_copied_over, f32("B", 3), f32(3)),
    row("input_mutated_and_returned", self_times_twin, f32("B", 3)),
    mod("buffer_mutated", Counter, f32("B", 3)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row("odd_lerp", lambda x, y: (x.lerp(y, 0.3), x.lerp(y, 0.7), x.lerp(y, y)), f32(value=ODD), f32(value=ODD_TOO)),
    row(
        "odd_bounds",
        lambda x, b, c: (x.clamp(min=b), x.clamp(max=c), x.clamp(b, c), x.clamp(min=nan), F.hardtanh(x, nan, 1.0)),
        f32(value=ODD),
        f32(value=ODD_TOO),
        f32(value=nan),
    ),
    row("whole_slopes", lambda x: (F.leaky_relu(x, 2), F.elu(x, 2), F.celu(x, 2), F.hardtanh(x, -1, 1)), f32("B", 3)),
    row("odd_abs_neg", lambda x: (1 / x.abs(), 1 / -x, 1 / x.neg().relu()), f32(value=ODD)),
    row("odd_small_to_zero", lambda x: (1 / x.round(), 1 / x.ceil(), x.trunc()), f32(value=[-0.3, 0.3, -0.0, 0.0])),
    row("odd_pow", lambda x, y: (x.pow(2), x**-1, x**0, torch.pow(x, y)), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_remainder", lambda x: (x.remainder(2), x.fmod(2), x // 2), f32(value=ODD)),
    row(
        "odd_divisor",
        lambda x, y: (x.remainder(y), x.fmod(y), torch.floor_divide(x, y)),
        f32(value=[5.0, -5.0, 5.0, -5.0, 0.0, inf, -inf, nan, 7.5, -7.5]),
        f32(value=[inf, inf, -inf, -inf, -inf, 2.0, 3.0, 1.0, 2.0, 2.0]),
    ),
    row(
        "odd_floor_sign",  # of a zero too
        lambda x, y: 1 / torch.floor_divide(x, y),
        *(f32(value=[0.0, -0.0, 0.0, -0.0, 1.0, -1.0]), f32(value=[2.0, 2.0, -2.0, -2.0, 3.0, -3.0])),
    ),
    row(
        "lowest_by_minus_one",  # whose quotient no type holds
        lambda x, y, z: (x % z, torch.fmod(x, z), x // z, y % z, torch.fmod(y, z.int()), y // z.int()),
        *(i64(value=[-(2**63), -(2**63), 5]), i32(value=[-(2**31), -(2**31), 5]), i64(value=[-1, 3, -1])),
    ),
    row(
        "odd_gamma",
        lambda x, a: (
            *(x.digamma(), torch.polygamma(1, x), torch.polygamma(2, x), torch.special.gammainc(a, x.abs())),
            torch.polygamma(1, x.double() - 4),  # torch's poles are finite: its sine of a multiple of pi is not 0
        ),
        *(f32(value=[0.0, -0.0, inf, nan, 2.0, 1.0]), f32(value=[1.0, 2.0, 1.0, 1.0, inf, 0.5])),
    ),
    row("odd_bessel", lambda x: torch.special.spherical_bessel_j0(x), f32(value=[0.0, -0.0, inf, -inf, nan, 2.0])),
    row("odd_hypot", lambda x, y: torch.hypot(x, y), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_fmax", lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_copysign", lambda x, y: (torch.copysign(x, y), torch.atan2(x, y)), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_silu_elu", lambda x: (F.silu(x), F.elu(x), F.hardswish(x)), f32(value=ODD)),
    row("odd_logaddexp", lambda x, y: torch.logaddexp(x, y), f32(value=ODD), f32(value=ODD_TOO)),
    row("odd_where", lambda x: torch.where(x > 0, x, torch.zeros(())), f32(value=ODD)),
    row("odd_to_int_free", lambda x: (x.isnan().int(), x.bool(), x.logical_not()), f32(value=ODD)),
    row("odd_f16", lambda x, y: (x + y, x.clamp(-1, 2), torch.maximum(x, y)), f16(value=ODD), f16(value=ODD_TOO)),
    row("empty_activations", lambda x: (F.gelu(x), x.softmax(0), x.clamp(0, 1), x > 0), f32(0, 3)),
    row("equal_behind_views", lambda x: equal_behind_neutral(x, x.t().t()), i8()),
    row("equal_behind_zeros", lambda x: equal_behind_neutral(x, x + torch.zeros_like(x)), i8()),
    row("equal_behind_true", lambda x: equal_behind_neutral(x, torch.multiply(x, True)), i8()),
    row("quotients_of_zeros", lambda x, y: 1 / (x / y), f64(value=[-0.0, 0.0, -2.0]), f64(value=[3.0, 7.0, 5.0])),
    row("equal_behind_an_axis", lambda x: (-1 // x.unsqueeze(0), x.unsqueeze(0) % x), f64(value=2.0)),
    row("equal_behind_slices", lambda x: equal_slices(torch.zeros_like(x) + x.sum()), f32(1, 2)),
    row("equal_repeats", lambda x: torch.logaddexp(x.repeat(2, 1, 1), x), f32(2, 3)),
    row("equal_exchanged", exchanged, f32(2, 2)),
    row("equal_sums_of_a_number", lambda x: torch.logaddexp(x.mean(), x.sum()) + x.amax() * x.prod(), f32(1)),
    row(
        "equal_slices_of_a_product",
        lambda x, y: torch.diff(torch.cat([x, y], -1) @ torch.ones(4, 3)),
        f32("B", 1, 2),
        f32("B", 1, 2),
    ),
    row("equal_slices_of_a_number", lambda x: slices_of_a_number(0 * x), i64("S", 3, 4, "B")),
    row("equal_slices_thrice", lambda x: torch.cat([(torch.ones(2, 4) * x[0, 0])[i] for i in THREE], 1), f32(2, 4)),
    row("equal_slices_of_a_constant", lambda x: equal_slices(torch.zeros(1, 2) - x.sum()), f32(1, 2)),
    row(
        "equal_behind_constants",
        lambda x, y: equal_constants(y),
        f32(),
        i8(low=1, high=5),
    ),
    row("empty_where", lambda c, x: torch.where(c, x, 1.0), boolean(0, 1), f32(1, 3)),
    row("scalar_activations", lambda x: (F.gelu(x), x.clamp(0, 1), x.sigmoid(), x > 0, x.round()), f32()),
    row("scalar_where", lambda c, x: torch.where(c, x, 2.0), boolean(), f32("B", 3)),
    row("size_one_both_ways", lambda x, y: (x * y, torch.maximum(x, y), x > y), f32("B", 1, 3), f32(1, "S", 1)),
)
