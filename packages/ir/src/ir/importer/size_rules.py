"""torch's functions of sizes, by the names that sympy has for them, in the IR's terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ir import dims
from ir.bounds import Range, bounds
from ir.dim_functions import FUNCTIONS
from ir.dims import Expr
from ir.errors import CaptureError

_CALLS = {
    "PythonMod": "mod",
    "Mod": "mod",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "TruncToInt": "trunc",
    "RoundToInt": "round",
    "ToFloat": "float",
    "RoundDecimal": "round_decimal",
    "LShift": "lshift",
    "RShift": "rshift",
    "FloatPow": "pow",
    "PowByNatural": "pow",
    "Where": "where",
    "ITE": "where",
    "floor": "floor",
    "ceiling": "ceil",
    "Not": "not",
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
}

_FORMS = {  # sympy's names of what is more than a call
    "Add", "Mul", "Pow", "FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "Max", "Min", "And", "Or", "Identity",
    "Piecewise", "ExprCondPair", "Abs", "TruncToFloat",
}  # fmt: skip


def symbol_kind(name: str) -> str:
    """float for torch's symbols of floating-point numbers, int for all others."""
    return "float" if name.startswith(("zuf", "zf")) else "int"


def known(name: str) -> bool:
    """True for a function that `build` knows."""
    return name in _FORMS or _called(name) in FUNCTIONS


def _called(name: str) -> str:
    return _CALLS.get(name) or name.removeprefix("OpaqueUnaryFn_").removeprefix("BitwiseFn_")


def build(name: str, args: Sequence[Any], ranges: Callable[[], Mapping[str, Range]] = dict) -> Any:
    """The function `name` of these arguments, each a number (a Fraction for a rational one) or an expression.

    `ranges` gives those of the symbols.

    Raises:
        CaptureError: the function has no form in the IR.
    """
    if name == "Mul":
        return _product(args)
    if name == "ExprCondPair":
        return tuple(args)
    if name == "Piecewise" and isinstance(args[-1], tuple) and args[-1][1] is True:
        *pairs, (result, _) = args
        for value, condition in reversed(pairs):
            result = dims.call("where", condition, value, result)
        return result
    args = [float(a) if isinstance(a, Fraction) else a for a in args]
    if name == "FloorDiv" and (exact := _rounded_up(args[0], args[1], ranges)) is not None:
        return exact
    if name in _RULES:
        return _RULES[name](*args)
    if name == "Pow" and isinstance(args[1], int) and args[1] > 0:
        return _reduce("mul", args[:1] * args[1])
    if name in ("FloorToInt", "TruncToInt", "CeilToInt") and (exact := _line(args[0])) is not None:
        total, divisor = exact.total
        if name != "TruncToInt" or bounds(total, ranges())[0] >= 0:
            return (dims.ceildiv if name == "CeilToInt" else dims.floordiv)(total, divisor)
    called = _called(name)
    if called in FUNCTIONS:
        return dims.call(called, *args)
    raise CaptureError(
        f"the size expression {name}({', '.join(map(str, args))}) uses {name}, which has no form in the IR"
    )


_RULES: dict[str, Callable[..., Any]] = {
    "Identity": lambda x: x,
    "Add": lambda *terms: _reduce("add", terms),
    "And": lambda *truths: _reduce("and", truths),
    "Or": lambda *truths: _reduce("or", truths),
    "FloorDiv": dims.floordiv,
    "CleanDiv": dims.floordiv,
    "CeilDiv": dims.ceildiv,
    "PythonMod": dims.mod,
    "Mod": dims.mod,
    "ModularIndexing": lambda x, by, period: dims.mod(dims.floordiv(x, by), period),
    "Max": dims.maximum,
    "Min": dims.minimum,
    "Abs": lambda x: dims.maximum(x, -x),
    "TruncToFloat": lambda x: dims.call("float", dims.call("trunc", x)),
}


def _rounded_up(a: Any, b: Any, ranges: Callable[[], Mapping[str, Range]]) -> Any:
    """`n` for `(n*s + s - 1) // s`, where s is not below 0; there is no such number where it is 0."""
    if not isinstance(b, Expr) or b.kind != "int" or bounds(b, ranges())[0] < 0:
        return None
    multiple = dims.quotient(a + 1, b)
    return None if multiple is None else multiple - 1


def _product(args: Sequence[Any]) -> Any:
    fraction = next((a for a in args if isinstance(a, Fraction)), None)
    rest = [a for a in args if a is not fraction]
    if fraction is None:
        return _reduce("mul", rest)
    return dims.call("truediv", _reduce("mul", [*rest, fraction.numerator]), fraction.denominator)


def _reduce(fn: str, args: Sequence[Any]) -> Any:
    exact = all(isinstance(a, int) or (isinstance(a, Expr) and a.kind == "int") for a in args)
    result = args[0]
    for a in args[1:]:
        result = (
            (result + a if fn == "add" else result * a) if exact and fn in ("add", "mul") else dims.call(fn, result, a)
        )
    return result


@dataclass(frozen=True)
class _Line:
    """The float `base * ratio + offset`, whose numbers a float holds exactly, as interpolate and arange make them."""

    base: Any
    ratio: Fraction
    offset: Fraction = Fraction(0)

    def times(self, factor: Fraction) -> _Line:
        return _Line(self.base, self.ratio * factor, self.offset * factor)

    @property
    def total(self) -> tuple[Any, int]:
        """The dividend and the divisor in whole numbers."""
        divisor = math.lcm(self.ratio.denominator, self.offset.denominator)
        return self.base * int(self.ratio * divisor) + int(self.offset * divisor), divisor


def _line(x: Any) -> _Line | None:
    if not isinstance(x, Expr) or len(x.terms) != 1 or len(x.terms[0][0]) != 1:
        return None
    (atom, power), coefficient = x.terms[0][0][0], x.terms[0][1]
    found = _called_line(atom) if power == 1 and isinstance(atom, dims.Call) else None
    found = found and found.times(Fraction(coefficient))
    return found if found and found.total[1] < 2**16 else None


def _called_line(atom: dims.Call) -> _Line | None:
    numbers = [Fraction(a) for a in atom.args if isinstance(a, int | float)]
    others = [a for a in atom.args if isinstance(a, Expr)]
    if len(others) != 1:
        return None
    if atom.fn == "float":
        return _Line(others[0], Fraction(1))
    inner = _line(others[0])
    if atom.fn == "truediv" and others[0] is atom.args[0] and numbers[0]:
        inner = inner or (_Line(others[0], Fraction(1)) if others[0].kind == "int" else None)
        return inner and inner.times(1 / numbers[0])
    if atom.fn == "mul":
        return inner and inner.times(math.prod(numbers, start=Fraction(1)))
    if atom.fn == "add":
        return inner and _Line(inner.base, inner.ratio, inner.offset + sum(numbers))
    return None
