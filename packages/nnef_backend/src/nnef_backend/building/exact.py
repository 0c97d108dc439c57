"""What torch computes where tract's own operation, or what tract makes of it while it loads, gives something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ir.dims import Expr, product
from ir.geometry import broadcast
from ir.ops import is_pointwise
from ir.types import DType
from nnef_backend.building.chosen import constant_chosen, constant_part
from nnef_backend.building.hiding import hide, maker
from nnef_backend.building.sizes import opaque_size


def integers(h: Any, x: Any, dtype: DType) -> Any:
    """Floats as integers, by x86's rule, which is torch's: what does not fit is the least integer, and so is NaN.

    Types of 8 and 16 bits get the low bits of a wider one; tract's own casts saturate.
    """
    wide = DType.int32 if dtype in (DType.int8, DType.int16, DType.int32) else DType.int64
    x = h.floating(x)
    fits = h.emit("lt", h.emit("abs", x), 2.0 ** (wide.bits - 1))
    made = h.emit("select", fits, h.emit("tract_core_cast", x, to=wide), int(np.iinfo(wide.name).min))
    return h.cast(made, dtype)


def instead(h: Any, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """The result of an operation that tract does not do rightly in this place, None where it does."""
    if not h.target.tract:
        return None
    if op == "select":
        return constant_chosen(h, *inputs)
    if op == "slice":
        return constant_part(h, inputs[0], attributes)
    if op in _ABSORBING and (made := _absorbed(h, op, *inputs)) is not None:
        return made
    if op in ("mul", "pow") and (made := _rooted(h, op, *inputs)) is not None:
        return made
    if op in ("mul", "div"):
        operands = _unfolded(h, op, *inputs)
        return None if operands is None else h.emit(op, *operands)
    node = getattr(h, "node", None)  # there is none yet where a weight is hidden
    if op in ("add", "sub", "neg") and h.inputs and node and (is_pointwise(node) or node.op in _SUMS):
        return _negated(h, *inputs) if op == "neg" else _with_zero(h, op, *inputs)
    if op in _OF_NOTHING and 0 in inputs[0].type.shape:  # tract divides by the size
        shape = [1 if a in attributes["axes"] else s for a, s in enumerate(inputs[0].type.shape)]
        return h.expand(h.const(_OF_NOTHING[op], inputs[0].type.dtype), shape)
    if op == "mean_reduce" and inputs[0].type.dtype is DType.float64 and h.inputs:
        x, axes = inputs[0], attributes["axes"]
        size = h.scalar(product([x.type.shape[a] for a in axes]), DType.float64)
        return quotient(h, h.emit("sum_reduce", x, axes=axes), hide(h, size))  # a mean of squares is f32 there
    if op == "mean_reduce" and not inputs[0].fixed and (size := _size_of(inputs[0], **attributes)) is not None:
        total = h.emit("sum_reduce", h.floating(inputs[0]), axes=attributes["axes"])
        return h.cast(h.emit("div", total, h.scalar(size, total.type.dtype)), inputs[0].type.dtype)
    if op in ("sum_reduce", "mean_reduce"):
        return _sum_of_nothing(h, op, inputs[0], **attributes)
    return None


_OF_NOTHING = {"sum_reduce": 0, "mean_reduce": math.nan, "tract_core_product_reduce": 1, "any_reduce": False,
               "all_reduce": True}  # fmt: skip


def _size_of(x: Any, axes: Sequence[int]) -> Expr | None:
    """The number of elements that a mean goes over, if that is a size: tract follows products with sizes."""
    size = product([x.type.shape[a] for a in axes])
    return size if isinstance(size, Expr) else None


def _sum_of_nothing(h: Any, op: str, x: Any, axes: Sequence[int]) -> Any:
    """A sum along the last axis, which may be empty, made along two: the kernel for one divides by its size."""
    rank, (axis, *more) = x.type.rank, axes
    size, *behind = x.type.shape[axis:]
    if more or any(s != 1 for s in behind) or not isinstance(size, Expr) or not h.may_be_nothing(size):
        return None
    return h.squeeze(h.emit(op, h.unsqueeze(x, [rank]), axes=[axis, rank]), [rank])


_ABSORBING = {"mul": 0, "and": 0, "or": 1, "tract_core_bitand": 0}


def _absorbed(h: Any, op: str, x: Any, y: Any) -> Any:
    """The result that one operand decides, which tract finds out and then fails to add up; None for any other.

    Floats have no such operand: NaN times zero is NaN.
    """
    for moving, fixed in ((x, y), (y, x)):
        if not h.is_value(moving) or moving.type.dtype.is_float:
            continue
        content = _content(h, fixed) if h.is_value(fixed) else fixed
        if content is None and fixed.fixed and not moving.fixed and _may_be_one_number(fixed):
            return h.emit(op, moving, hide(h, fixed))
        if content is not None and not isinstance(content, Expr) and _all(content, _ABSORBING[op]):
            shape = broadcast(moving.type.shape, fixed.type.shape if h.is_value(fixed) else ())
            return h.expand(h.const(_ABSORBING[op], moving.type.dtype), shape)
    return None


def _may_be_one_number(x: Any) -> bool:
    """True of what is computed of constants, that is one number or repeats some."""
    return bool(x.repeated) or (not x.is_literal and all(s == 1 for s in x.type.shape))


def _rooted(h: Any, op: str, x: Any, y: Any) -> Any:
    """A square of a root, which to tract is what the root was taken of, or a power of 0.5, to it a root; else None.

    The one loses NaN of what is below zero, the other has NaN where torch has the infinite power of -inf.
    """
    if op == "mul":
        if h.is_value(x) and h.is_value(y) and x.origin is y.origin and _is_root(h, x):
            return h.emit("mul", h.emit("abs", x), h.emit("abs", y))  # the one may be the other's transpose
        return None
    exponent = h.content(y.origin) if h.is_value(y) and h.is_value(x) else None
    if exponent is None or not (_all(exponent, 0.5) or (_all(exponent, 2.0) and _is_root(h, x))):
        return None
    return h.emit("pow", x, hide(h, y)) if h.inputs else None


def _is_root(h: Any, x: Any) -> bool:
    """True of what `sqrt` made, in any arrangement."""
    made = maker(h, x.origin)
    return made is not None and made.op == "sqrt"


# beside the pointwise ops; a bias of zeros behind a product changes nothing that is not a zero, and costs an operation
_SUMS = frozenset({"aten::batch_norm", "aten::_native_batch_norm_legit_no_training"})


def _with_zero(h: Any, op: str, x: Any, y: Any) -> Any:
    """A sum with zeros, which tract leaves out, though 0.0 + -0.0 is 0.0; None for any other."""
    for moving, zero in ((x, y), (y, x))[: 1 if op == "sub" else 2]:  # 0.0 - x is no negation to it
        if not h.is_value(moving) or moving.fixed or not moving.type.dtype.is_float:
            continue
        if op == "add" and _is_zero(h, zero, False):  # to it the constants 0.0 and -0.0 are one, hence the absolute
            return h.emit("add", h.emit("abs", hide(h, h.tensor(zero, moving))), moving)
        if h.is_value(zero) and _content(h, zero) is None and zero.fixed and zero.repeated:  # a zero for all we know
            return h.emit(op, moving, hide(h, zero))
    return None


def _negated(h: Any, x: Any) -> Any:
    """The negation of zeros that tract knows, which to it are 0.0 as before; None for any other."""
    if not x.fixed or not x.type.dtype.is_float:
        return None
    unknown = _content(h, x) is None and x.repeated
    return h.emit("neg", hide(h, x)) if unknown or _is_zero(h, x, False) or _is_zero(h, x, True) else None


def _is_zero(h: Any, x: Any, negative: bool) -> bool:
    """Whether a float is known to be zero all over, with this sign."""
    content = _content(h, x) if h.is_value(x) else x
    if content is None or isinstance(content, Expr) or not _all(content, 0.0):
        return False
    return bool((np.signbit(content) == negative).all())


def _content(h: Any, x: Any) -> Any:
    """The numbers of a constant, in any arrangement if they are one number; None where they are not known.

    Also those of a constant that was cast from one type of floats to another.
    """
    made = maker(h, x.origin)
    if made is not None and made.op == "tract_core_cast" and made.inputs[0].type.dtype.is_float:
        held = _content(h, made.inputs[0]) if x.type.dtype.is_float else None
        return None if held is None else held.astype(x.type.dtype.name)
    held, first = h.content(x), h.content(x.origin)
    one = held is None and first is not None and first.size > 0 and bool((first == first.flat[0]).all())
    return first if one else held


def _unfolded(h: Any, op: str, x: Any, y: Any) -> tuple[Any, Any] | None:
    """The operands of a product or quotient of floats so that tract does not take the result for zero.

    It does where an operand is the same number all over and makes it zero, but NaN and infinities do not become zero by
    that, nor is a zero's sign that of all results. A constant that is none is left alone.
    """
    for moving, fixed in ((x, y), (y, x)) if h.inputs else ():
        if not h.is_value(moving) or not moving.type.dtype.is_float or 0 in moving.type.shape:
            continue
        content = fixed
        if h.is_value(fixed):
            if not fixed.fixed:
                continue
            known = moving.fixed and _content(h, moving) is not None  # tract computes constants itself, and rightly
            content = h.content(fixed) if known else _content(h, fixed)
        divides = op == "div" and fixed is y
        if content is None and fixed.fixed and fixed.is_literal and not moving.fixed:
            hidden = opaque_size(h, fixed)
            return (hidden, moving) if fixed is x else (moving, hidden)
        unknown = content is None and fixed.fixed and not fixed.is_literal  # tract may know more of it than we do
        if unknown and (fixed.repeated or not moving.fixed):
            hidden = hide(h, fixed)
            return (hidden, moving) if fixed is x else (moving, hidden)
        if isinstance(content, (int, float, np.ndarray)) and _all(content, math.inf if divides else 0.0):
            if all(0 in x.type.shape for x in h.inputs):
                h.refuse("tract replaces a product with 0 by 0, also of nan, and every input has size 0")
            hidden = hide(h, h.tensor(fixed, moving))
            return (hidden, moving) if fixed is x else (moving, hidden)
    return None


def _all(content: Any, size: float) -> bool:
    """Whether every element has this magnitude."""
    flat = np.asarray(content).reshape(-1)
    return flat.size > 0 and abs(flat[0]) == size and bool((np.abs(flat) == size).all())


# -- quotients: tract multiplies by the reciprocal, so that 49 / 49 is 0.99999994 --------------------------------------


def quotient(h: Any, x: Any, y: Any) -> Any:
    """`x / y` of floats as IEEE rounds it, in their own element type.

    Of f64 the product with the reciprocal, and what that leaves over, divided again; of f32 by way of f64.
    """
    dtype = x.type.dtype
    if not h.target.tract or (y.array is not None and (np.abs(np.frexp(y.array)[0]) == 0.5).all()):
        return h.emit("div", x, y)  # powers of two have exact reciprocals
    if dtype is not DType.float64:
        return h.cast(h.emit("div", h.cast(x, DType.float64), h.cast(y, DType.float64)), dtype)
    if lifted := _small(h, y):
        x, y = (h.emit("mul", v, h.emit("select", lifted, h.const(2.0**128, v), 1.0)) for v in (x, y))
    near = h.emit("div", x, y)
    better = h.emit("add", near, h.emit("div", rest(h, x, near, y), y))
    kept = h.emit("or", h.is_nan(better), h.emit("eq", better, 0.0))  # of -0.0 the sum is 0.0
    return h.emit("select", kept, near, better)


def divided(h: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The quotient of two f64 cut off at the point, and what is left, which has the sign of `x`.

    Exact where the quotient is below 2 ** 53, whatever the division made of it.
    """
    cut = h.emit("div", x, y)
    cut = h.emit("select", h.emit("lt", cut, 0.0), h.emit("ceil", cut), h.emit("floor", cut))
    left, sign = rest(h, x, cut, y), h.emit("sign", x)
    known = y.array is not None
    size, towards = (h.constant(f(y.array)) if known else h.emit(f.__name__, y) for f in (abs, np.sign))
    step, way = h.emit("mul", sign, size), h.emit("mul", sign, towards)
    ahead = h.emit("mul", left, sign)
    for wrong, back in ((h.emit("lt", ahead, 0.0), "sub"), (h.emit("ge", ahead, size), "add")):
        cut = h.emit("select", wrong, h.emit(back, cut, way), cut)
        left = h.emit("select", wrong, h.emit("add" if back == "sub" else "sub", left, step), left)
    zero = h.emit("sub", x, x)  # to tract the constants 0.0 and -0.0 are one
    zero = h.emit("select", h.emit("lt", x, 0.0), h.emit("neg", zero), h.emit("select", h.emit("eq", x, 0.0), x, zero))
    return cut, h.emit("select", h.emit("eq", left, 0.0), zero, left)


def integer_power(h: Any, x: Any, y: Any) -> Any:
    """`x` to a power of its own type, not negative: of an exponent tract takes the lower 32 bits alone.

    The powers of the upper bits and of the 31 lower ones are multiplied, which wraps as torch's power does.
    """
    known = h.content(y)
    if x.type.dtype is not DType.int64 or (known is not None and (known < 2**31).all()):
        return h.emit("pow", x, y)
    upper = h.emit("div", y, 2**31)
    lower = h.emit("sub", y, h.emit("mul", upper, 2**31))
    return h.emit("mul", h.emit("pow", h.emit("pow", x, 2**31), upper), h.emit("pow", x, lower))


def powers_above(y: Any, dtype: DType) -> list[int]:
    """The powers of two whose products with `y` a dividend of `dtype` is reduced by, so that `divided` is exact.

    52 bits of the quotient go at a time, up to the 1024 of a float64; a power of two divides in one go.
    """
    info = np.finfo(dtype.name)
    sizes = [info.smallest_subnormal] if y.array is None else abs(y.array[(y.array != 0) & np.isfinite(y.array)])
    if y.array is not None and all(math.frexp(s)[0] == 0.5 for s in sizes):
        return []
    bits = max((int(info.maxexp - math.floor(math.log2(s))) for s in sizes), default=0)
    return list(range(min(bits, 1024) // 52 * 52, 0, -52))


def reduced(h: Any, x: Any, y: Any, powers: Sequence[int]) -> Any:
    """`x` less so many times `y`, both f64, that `divided` is exact; with the sign of `x`."""
    for power in powers:
        large = h.emit("mul", h.emit("mul", y, 2.0 ** (power // 2)), 2.0 ** (power - power // 2))
        left = divided(h, x, large)[1]
        x = h.emit("select", h.emit("lt", h.emit("abs", x), h.emit("abs", large)), x, left)
    return x


def scaled(h: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """A dividend and a divisor in f64, and what to multiply the rest by after; their products with 2 ** 27 are finite,
    and so is the reciprocal of the divisor.

    The quotient stays what it is: where the divisor would lose bits, it is infinite.
    """
    large, small = h.emit("ge", h.emit("abs", x), 2.0**800), _small(h, y)
    down, back = (h.emit("select", large, h.const(2.0**power, x), 1.0) for power in (-128, 128))
    if small:
        lifted = h.emit("and", small, h.emit("not", large))
        down, back = (h.emit("select", lifted, h.const(2.0**p, x), v) for p, v in ((128, down), (-128, back)))
    return h.emit("mul", x, down), h.emit("mul", y, down), back


def _small(h: Any, y: Any) -> Any:
    """Where the reciprocal of an f64 may be infinite; None where no element is so small."""
    if y.array is not None and not (np.abs(y.array[y.array != 0]) < 2.0**-900).any():
        return None
    return h.emit("lt", h.emit("abs", y), 2.0**-900)


def rest(h: Any, x: Any, q: Any, y: Any) -> Any:
    """`x - q * y` without the rounding of the product (T. Dekker, "A floating-point technique", 1971)."""
    whole = h.emit("mul", q, y)
    (a, b), (c, d) = _halves(h, q), _halves(h, y)
    lost = h.emit("sub", h.emit("mul", a, c), whole)
    for one, other in ((a, d), (b, c), (b, d)):
        lost = h.emit("add", lost, h.emit("mul", one, other))
    lost = h.emit("select", h.is_nan(lost), 0.0, lost)  # the halves of what is next to infinity
    return h.emit("sub", h.emit("sub", x, whole), lost)


def _halves(h: Any, x: Any) -> tuple[Any, Any]:
    if x.array is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            grown = x.array * (2.0**27 + 1)
            high = grown - (grown - x.array)
        return h.constant(high), h.constant(x.array - high)
    grown = h.emit("mul", x, 2.0**27 + 1)
    high = h.emit("sub", grown, h.emit("sub", grown, x))
    return high, h.emit("sub", x, high)
