"""The functions that an expression of sizes may call, on numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

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
    "pow": operator.pow,
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
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "round_decimal": round,
    **{name: getattr(math, name) for name in _UNARY},
}
FLOAT = {"truediv", "sqrt", "float", *_UNARY}
BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "not", "and", "or"}
