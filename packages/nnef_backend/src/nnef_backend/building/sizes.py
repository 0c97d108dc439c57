"""Dimensions in the document: as text in tract's expression language, or as 0-d tensors where that has no word."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from typing import Any, NoReturn, Protocol

import numpy as np

from ir import dims as d
from ir.dim_functions import FUNCTIONS
from ir.dims import Dim, Expr
from ir.types import DType
from nnef_backend.building.steps import NnefValue


class Computes(Protocol):
    """What sizes that are computed need of a helper."""

    def symbol_value(self, name: str) -> NnefValue:
        """The symbol as a 0-d tensor of i64."""

    def const(self, value: Any, dtype: DType) -> NnefValue:
        """A constant."""

    def cast(self, x: NnefValue, dtype: DType) -> NnefValue:
        """`x` in another element type."""

    def constant(self, array: Any) -> NnefValue:
        """The numbers of an array."""

    def emit(self, op: str, *inputs: Any, **attributes: Any) -> NnefValue:
        """One operation of the document."""

    def unsqueeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """Axes of size 1 put in."""

    def squeeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """Axes of size 1 taken away."""

    def floor_division(self, a: NnefValue, b: NnefValue) -> Sequence[NnefValue]:
        """The quotient of integers rounded down, and the remainder."""

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the node."""


Naming = Callable[[str], str]  # a symbol's name in the document
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "max", "min")


def is_textual(x: Any) -> bool:
    """Whether tract's expressions can say it: + - * max min, and division by a number."""
    if not isinstance(x, Expr):
        return isinstance(x, int)
    for monomial, _ in x.terms:
        for atom, _power in monomial:
            if isinstance(atom, d.Symbol):
                if atom.kind != "int":
                    return False
                continue
            divides = atom.fn in ("floordiv", "mod")
            if atom.fn not in _ARITHMETIC or not all(map(is_textual, atom.args)):
                return False
            if divides and not (isinstance(atom.args[1], int) and atom.args[1] > 0):
                return False
    return True


def size_text(dim: Expr, name: Naming, hidden: Collection[d.Atom] = ()) -> str:
    """The expression as text; `name` gives a symbol's name in the document, `hidden` are quotients to hide anywhere."""
    text, _ = _text(_truncating(dim), name, hidden)
    return text


def product_text(sizes: Sequence[Dim], name: Naming, hidden: Collection[d.Atom] = ()) -> str:
    """The product of sizes, multiplied by tract itself: it is written as it multiplies the sizes of a shape."""
    texts = (_text(_truncating(s), name, hidden) for s in sizes if s != 1)
    return "*".join(text if tight == 2 else f"({text})" for text, tight in texts)


def is_mixed(size: Dim) -> bool:
    """Whether the text of a size has a quotient beside other terms that vary, which it hides from tract."""
    return isinstance(size, Expr) and is_textual(size) and _is_mixed(_truncating(size))


def mixed_quotients(shapes: Iterable[Iterable[Dim]]) -> set[d.Atom]:
    """The quotients that stand beside other terms that vary: tract adds those up wrongly (T - T/2 is T/2 to it)."""
    sums = {_truncating(s) for shape in shapes for s in shape if isinstance(s, Expr) and is_textual(s)}
    return {
        atom for x in sums if _is_mixed(x) for monomial, _ in x.terms for atom, _power in monomial if _divides(atom)
    }


def hides(size: Dim, hidden: Collection[d.Atom]) -> bool:
    """Whether the text of a size has one of these quotients, which it hides from tract."""
    terms = _truncating(size).terms if isinstance(size, Expr) and is_textual(size) else ()
    return any(atom in hidden for monomial, _ in terms for atom, _power in monomial)


def _is_mixed(x: Any) -> bool:
    """Whether a quotient in a sum stands beside another term that varies."""
    varying = [m for m, _ in x.terms if m] if isinstance(x, Expr) else []
    return len(varying) > 1 and any(_divides(atom) for m in varying for atom, _ in m)


def _divides(atom: d.Atom) -> bool:
    return isinstance(atom, d.Call) and atom.fn == "floordiv"


def _text(x: Any, name: Naming, hidden: Collection[d.Atom]) -> tuple[str, int]:
    """Text and how tightly it binds: 0 a sum, 1 a product, 2 an atom. There is no unary minus but in numbers."""
    if not isinstance(x, Expr):
        return str(x), 2 if x >= 0 else 0
    ordered = sorted(x.terms, key=lambda t: (not t[0], t[1] < 0))
    if ordered[0][1] < 0:
        ordered.sort(key=lambda t: t[1] < 0)
    parts, mixed = [], _is_mixed(x)
    for i, (monomial, coefficient) in enumerate(ordered):
        sign = "" if not i else " - " if coefficient < 0 else " + "
        factor = coefficient if not i else abs(coefficient)
        factors = [_atom(a, name, hidden, mixed) for a, power in monomial for _ in range(power)]
        if factor != 1 or not factors:
            factors.insert(0, str(factor))
        parts.append(sign + "*".join(factors))
    if len(parts) > 1 or parts[0].startswith("-"):
        return "".join(parts), 0
    return parts[0], 2 if len(ordered[0][0]) == 1 and "*" not in parts[0] and "/" not in parts[0] else 1


def _atom(atom: d.Atom, name: Naming, hidden: Collection[d.Atom], mixed: bool) -> str:
    if isinstance(atom, d.Symbol):
        return name(atom.name)
    texts = [_text(a, name, hidden) for a in atom.args]
    if atom.fn in ("max", "min"):
        return reduce(lambda left, right: f"{atom.fn}({left}, {right})", (t for t, _ in texts))
    left = texts[0][0] if texts[0][1] == 2 else f"({texts[0][0]})"
    quotient = f"({left}/{texts[1][0]})"
    return f"max({quotient}, {_below(atom.args[0])})" if mixed or atom in hidden else quotient


def _below(dividend: Any) -> int:
    """What its quotient is not below: beside it, tract does not see the quotient as one."""
    negative = isinstance(dividend, Expr) and any(c < 0 for _, c in dividend.terms)
    return -(2**40) if negative else 0


def _truncating(x: Any) -> Any:
    """The expression for a division that truncates, as tract's does, where what is divided is negative."""

    def apply(fn: str, args: list[Any]) -> Any:
        if fn == "mod":
            return args[0] - apply("floordiv", list(args)) * args[1]
        if fn == "floordiv":
            a, b = args
            if isinstance(a, Expr) and all(c < 0 for m, c in a.terms if m):
                return -d.floordiv(-a + (b - 1), b)
            if _is_of_either_sign(a):
                return d.floordiv(d.maximum(a, 0), b) - d.floordiv(d.maximum(-a, 0) + (b - 1), b)
            return d.floordiv(a, b)
        functions = {**FUNCTIONS, "max": d.maximum, "min": d.minimum}
        return functions[fn](*args)

    return d.visit(x, lambda n: n, lambda s: d.symbol(s.name, s.kind), apply)


def _is_of_either_sign(a: Any) -> bool:
    """Whether a difference that is divided is seen to fall below 0: of two sizes it does, of one and its half not."""
    if not isinstance(a, Expr) or len({c < 0 for m, c in a.terms if m}) < 2:
        return False  # what is added to a sum that is divided lies between 0 and the divisor
    names = sorted(a.symbols)
    samples = itertools.product(_TRIED, repeat=len(names)) if len(names) <= 4 else [_TRIED * len(names)]
    return any(d.evaluate(a, dict(zip(names, sizes, strict=False))) < 0 for sizes in samples)


_TRIED = (0, 1, 2, 3, 50, 101)

_BOOLEAN = {"and": "and", "or": "or"}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "max": "max", "min": "min", "pow": "pow", "truediv": "div"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "tract_core_round_even"}


def computed(h: Computes, x: Dim | float) -> NnefValue:
    """The expression computed on 0-d tensors: i64 for integers, f64 for what is not, bool for truths."""
    return d.visit(x, lambda n: _number(h, n), lambda s: h.symbol_value(s.name), lambda fn, args: _apply(h, fn, args))


def _number(h: Computes, n: Any) -> NnefValue:
    return h.const(n, DType.bool if isinstance(n, bool) else DType.float64 if isinstance(n, float) else DType.int64)


def _apply(h: Computes, fn: str, args: list[NnefValue]) -> NnefValue:
    if fn == "not":
        return h.emit("not", args[0])
    if fn == "where":
        return h.emit("select", args[0], *_same(h, args[1:]))
    if fn in _BOOLEAN:
        return h.emit(_BOOLEAN[fn], *args)
    if fn in ("truediv", "float", "sqrt"):
        args = [_real(h, a) for a in args]
    if fn == "float":
        return args[0]
    if fn == "sqrt":
        return h.emit("sqrt", args[0])
    if fn == "trunc":
        return h.cast(args[0], DType.int64)
    if fn in _ROUNDING:
        # sizes are far below 2^24 where a root of them is rounded, so that f32 says the same as f64
        rounded = args[0] if fn != "round" else h.cast(args[0], DType.float32)
        return h.cast(h.emit(_ROUNDING[fn], rounded), DType.int64)
    if fn not in {"floordiv", "mod", *_BINARY, *_COMPARISONS}:
        h.refuse(f"the size expression {fn} has no form in tract")
    a, b = _same(h, args)
    if fn in ("floordiv", "mod"):
        return h.floor_division(opaque_size(h, a), opaque_size(h, b))[fn == "mod"]
    if fn in _COMPARISONS:
        return h.emit(fn, a if a.type.dtype is DType.bool else opaque_size(h, a), b)
    return h.emit(_BINARY[fn], a, b)


def opaque_size(h: Computes, x: NnefValue) -> NnefValue:
    """A number computed from sizes, in a form that tract does not recognise as one: gathered from its one element.

    tract takes a size for a mask: of what is multiplied by it or chosen by it, it notes for each value that leads there
    where that is not zero. Of values that are read twice it adds the notes up, and the time to load doubles with each.
    A gather of elements passes on neither the size nor the notes; a sum passes the notes.
    """
    place = h.constant(np.zeros(1, np.int64))
    found = h.emit("tract_core_gather_elements", h.unsqueeze(x, [0]), place, axis=0, shape=[1])
    made = h.squeeze(found, [0])
    made.fixed = False
    return made


def _same(h: Computes, args: list[NnefValue]) -> list[NnefValue]:
    work = DType.float64 if any(a.type.dtype is DType.float64 for a in args) else DType.int64
    if all(a.type.dtype is DType.bool for a in args):
        work = DType.bool
    return [_real(h, a) if work is DType.float64 else h.cast(a, work) for a in args]


def _real(h: Computes, x: NnefValue) -> NnefValue:
    """The number in f64, as no size: tract reduces `B / (2*B)` to 1 / 2, and computes it as sizes are: to 0."""
    is_size = x.type.dtype is DType.int64 and x.array is None
    return h.cast(opaque_size(h, x) if is_size else x, DType.float64)
