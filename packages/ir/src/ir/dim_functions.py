"""The functions that an expression of sizes may call, on numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 128  # bits of a number on the way to a size


def power(a: Any, b: Any) -> Any:
    """`a ** b`; of integers no more than any size needs, where Python computes for hours."""
    if type(a) is int and type(b) is int and abs(a) > 1 and (abs(a) - 1).bit_length() * b > _LONGEST:
        raise OverflowError(f"a power of more than {_LONGEST} bits")
    return a**b


def left_shift(a: Any, b: Any) -> Any:
    """`a << b`; of integers no more than any size needs, where Python takes all memory."""
    if type(a) is int and type(b) is int and b > _LONGEST:
        raise OverflowError(f"a shift by more than {_LONGEST} bits")
    return a << b


def refuse_numbers(expression: Any, env: Mapping[str, Any], error: Exception) -> None:
    """Raises NotComputed: the expression has no value where its symbols have those in `env`, if these are numbers."""
    if all(isinstance(v, (int, float)) for v in env.values()):
        from ir.errors import NotComputed  # sizes stand below all that may fail

        at = ", ".join(f"{name}={env[name]}" for name in sorted(getattr(expression, "symbols", ())))
        raise NotComputed(f"{expression!s:.200} cannot be computed at {at} ({error})") from error


_UNARY = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "sub": operator.sub,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
    "truediv": operator.truediv,
    "pow": power,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": float,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "not": operator.not_,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "where": lambda c, a, b: a if c else b,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "lshift": left_shift,
    "rshift": operator.rshift,
    "round_decimal": round,
    **{name: getattr(math, name) for name in _UNARY},
}
FLOAT = {"truediv", "sqrt", "float", *_UNARY}
BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "not", "and", "or"}
