"""What values a dimension can take, from the ranges of its symbols: interval arithmetic over the expression.

The result contains every value but may be wider (`s - s // 2` counts its two `s` as independent), so a bound that it
gives is a fact, and one that it does not give is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ir.dims import Call, Dim, Expr, Symbol, visit

Bounds = tuple[float, float]
ANY: Bounds = (float("-inf"), float("inf"))


@dataclass(frozen=True)
class Range:
    """The values that a symbol may have at run time, both ends included; None is unbounded.

    A size is at least 0, a number that is read out of a tensor can be anything.
    """

    min: int | None = 0
    max: int | None = None


def divides_by_size(x: Any) -> bool:
    """True where something in the expression is divided by a size, which may be 0."""
    atoms = [a for monomial, _ in x.terms for a, _ in monomial] if isinstance(x, Expr) else []
    calls = [a for a in atoms if isinstance(a, Call)]
    return any((a.fn in ("floordiv", "mod") and isinstance(a.args[1], Expr)) or any(map(divides_by_size, a.args))
               for a in calls)  # fmt: skip


def within(size: int, r: Range) -> int:
    """The size, or the end of the range that it is beyond."""
    return max(size if r.max is None else min(size, r.max), r.min or 0)


def bounds(dim: Dim, ranges: Mapping[str, Range]) -> Bounds:
    """(least, most) of a dimension, ends included; infinite where unknown."""
    if not isinstance(dim, Expr):
        return dim, dim

    def symbol(s: Symbol) -> Bounds:
        known = ranges.get(s.name)
        if known is None:
            return ANY
        return ANY[0] if known.min is None else known.min, ANY[1] if known.max is None else known.max

    return visit(dim, lambda n: (n, n), symbol, lambda fn, args: _RULES.get(fn, _unknown)(*args))


def never_negative(dim: Dim, ranges: Mapping[str, Range]) -> bool:
    """True where a dimension is shown to be at least 0, counting its minima, maxima and quotients as they stand.

    `n - min(4, n)` is, for `n - n` is. So is `n - (n + 1)//2`, a whole number: twice that is `2*n - (n + 1)` at least,
    which is -1 or more.
    """
    if not isinstance(dim, Expr) or bounds(dim, ranges)[0] >= 0:
        return bounds(dim, ranges)[0] >= 0
    for monomial, factor in dim.terms:
        call = monomial[0][0] if len(monomial) == 1 and monomial[0][1] == 1 else None
        rest = dim - Expr(((monomial, factor),))
        if isinstance(call, Call) and call.fn in ("min", "max"):
            enough = any if (call.fn == "max") == (factor > 0) else all
            return enough(never_negative(rest + a * factor, ranges) for a in call.args if not isinstance(a, float))
        if isinstance(call, Call) and call.fn == "floordiv" and isinstance(by := call.args[1], int) and by > 0:
            of: Any = call.args[0]
            least = rest * by + of * factor - max(factor, 0) * (by - 1)  # of `by` times the dimension
            return dim.kind == "int" and never_negative(least + (by - 1), ranges)
    return False


def may_be_positive(dim: Dim, ranges: Mapping[str, Range] | Range) -> bool:
    """True of a dynamic size that the ranges do not keep at 0 or below; one `Range` is that of every symbol."""
    if not isinstance(dim, Expr):
        return False
    return bounds(dim, dict.fromkeys(dim.symbols, ranges) if isinstance(ranges, Range) else ranges)[1] > 0


def _unknown(*_: Bounds) -> Bounds:
    return ANY


def _corners(fn: Callable[[float, float], float], a: Bounds, b: Bounds) -> Bounds:
    """Of a function that is monotonic in each argument."""
    found = [fn(x, y) for x, y in itertools.product(a, b)]
    return min(found), max(found)


def _mul(a: Bounds, b: Bounds) -> Bounds:
    return _corners(lambda x, y: x * y if x and y else 0, a, b)


def _floordiv(a: Bounds, b: Bounds) -> Bounds:
    def divide(x: float, y: float) -> float:
        if abs(y) == float("inf"):
            return 0 if x >= 0 else -1
        return x if abs(x) == float("inf") else x // y

    return _corners(divide, a, b) if b[0] > 0 else ANY


_RULES: dict[str, Callable[..., Bounds]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": lambda a, b: (0, b[1] - 1) if b[0] > 0 else ANY,
    "max": lambda *xs: (max(x[0] for x in xs), max(x[1] for x in xs)),
    "min": lambda *xs: (min(x[0] for x in xs), min(x[1] for x in xs)),
}
