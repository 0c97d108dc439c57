"""torch's functions of sizes, by the names that sympy has for them, in the IR's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ir import dims
from ir.bounds import bounds
from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Range

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
    return name in _FORMS or _called(name) in dims.FUNCTIONS


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
    if name == "Identity":
        return args[0]
    if name == "Add":
        return _reduce("add", args)
    if name == "Pow" and isinstance(args[1], int) and args[1] > 0:
        return _reduce("mul", args[:1] * args[1])
    if name in ("FloorDiv", "CleanDiv"):
        return dims.floordiv(*args)
    if name == "CeilDiv":
        return dims.ceildiv(*args)
    if name in ("PythonMod", "Mod"):
        return dims.mod(*args)
    if name == "ModularIndexing":
        return dims.mod(dims.floordiv(args[0], args[1]), args[2])
    if name == "Max":
        return dims.maximum(*args)
    if name == "Min":
        return dims.minimum(*args)
    if name in ("And", "Or"):
        return _reduce(name.lower(), args)
    if name in ("FloorToInt", "TruncToInt", "CeilToInt") and (exact := _scaled(args[0])) is not None:
        base, ratio = exact
        total = base * ratio.numerator
        if name != "TruncToInt" or bounds(total, ranges())[0] >= 0:
            return (dims.ceildiv if name == "CeilToInt" else dims.floordiv)(total, ratio.denominator)
    if name == "Abs":
        return dims.maximum(args[0], -args[0])
    if name == "TruncToFloat":
        return dims.call("float", dims.call("trunc", *args))
    called = _called(name)
    if called in dims.FUNCTIONS:
        return dims.call(called, *args)
    raise CaptureError(
        f"the size expression {name}({', '.join(map(str, args))}) uses {name}, which has no form in the IR"
    )


def _product(args: Sequence[Any]) -> Any:
    fraction = next((a for a in args if isinstance(a, Fraction)), None)
    rest = [a for a in args if a is not fraction]
    if fraction is None:
        return _reduce("mul", rest)
    return dims.call("truediv", _reduce("mul", [*rest, fraction.numerator]), fraction.denominator)


def _reduce(fn: str, args: list[Any]) -> Any:
    exact = all(isinstance(a, int) or (isinstance(a, Expr) and a.kind == "int") for a in args)
    result = args[0]
    for a in args[1:]:
        result = (
            (result + a if fn == "add" else result * a) if exact and fn in ("add", "mul") else dims.call(fn, result, a)
        )
    return result


def _scaled(x: Any) -> tuple[Any, Fraction] | None:
    """(base, ratio) for `float(base) * ratio` with a ratio that a float holds exactly, as interpolate makes them."""
    if not isinstance(x, Expr) or len(x.terms) != 1 or len(x.terms[0][0]) != 1:
        return None
    (atom, power), coefficient = x.terms[0][0][0], x.terms[0][1]
    if power != 1 or not isinstance(atom, dims.Call):
        return None
    scale = Fraction(coefficient)
    if atom.fn == "mul":
        factors = [a for a in atom.args if isinstance(a, int | float)]
        rest = [a for a in atom.args if not isinstance(a, int | float)]
        if len(rest) != 1:
            return None
        inner = _scaled(rest[0])
        if inner is None:
            return None
        ratio = scale * inner[1]
        for f in factors:
            ratio *= Fraction(f)
        return (inner[0], ratio) if ratio.denominator < 2**16 else None
    if atom.fn == "float" and isinstance(atom.args[0], Expr):
        return atom.args[0], scale
    if atom.fn == "truediv" and all(isinstance(a, int) or (isinstance(a, Expr) and a.kind == "int") for a in atom.args):
        base, divisor = atom.args
        return (base, scale / divisor) if isinstance(divisor, int) else None
    return None
