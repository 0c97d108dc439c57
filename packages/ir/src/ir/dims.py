"""A dimension: an int, or an expression over named symbols in canonical form.

An expression is a polynomial with integer coefficients over *atoms*; an atom is a symbol or a call of one of
FUNCTIONS. Two expressions that are the same polynomial are equal, so `==` means "provably equal" and False means
"not known to be equal". There is no `<`: an export must not branch on a size that is only known at run time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeGuard, TypeVar, Union, cast

from ir.dim_functions import BOOL, FLOAT, FUNCTIONS, refuse_numbers

T = TypeVar("T")
Number = Union[int, float]
Dim = Union[int, "Expr"]


@dataclass(frozen=True)
class Symbol:
    """A named unknown; `kind` is "int" for sizes, "float" or "bool" for scalars read out of a tensor."""

    name: str
    kind: str = "int"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """A function of FUNCTIONS applied to numbers and expressions; opaque to the polynomial around it."""

    fn: str
    args: tuple[Number | Expr, ...]

    @property
    def kind(self) -> str:
        if self.fn in BOOL:
            return "bool"
        if self.fn in FLOAT or self.fn in ("floor", "ceil", "trunc", "round"):
            return "float" if self.fn in FLOAT else "int"
        kinds = {a.kind if isinstance(a, Expr) else type(a).__name__ for a in self.args[self.fn == "where" :]}
        return "float" if "float" in kinds else "bool" if kinds == {"bool"} else "int"

    def __str__(self) -> str:
        if self.fn in _INFIX:
            return _INFIX[self.fn].join(_atomic(a) for a in self.args)
        return f"{self.fn}({', '.join(map(str, self.args))})"


Atom = Union[Symbol, Call]
Monomial = tuple[tuple[Atom, int], ...]
_INFIX = {"floordiv": "//", "mod": " % ", "truediv": "/", "mul": "*", "eq": " == ", "ne": " != ", "lt": " < ",
          "le": " <= ", "gt": " > ", "ge": " >= ", "pow": "**", "and": " and ", "or": " or "}  # fmt: skip


def _atomic(x: object) -> str:
    text = str(x)
    return text if text.replace("_", "").replace(".", "").isalnum() else f"({text})"


def _key(atom: Atom) -> str:
    return str(atom)


@dataclass(frozen=True, eq=False)
class Expr:
    """A polynomial over atoms; build one with `symbol`, arithmetic and the functions below, never directly."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in it."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _power in monomial:
                if isinstance(atom, Symbol):
                    names.add(atom.name)
                else:
                    names.update(*(a.symbols for a in atom.args if isinstance(a, Expr)))
        return frozenset(names)

    @property
    def as_symbol(self) -> str | None:
        """The symbol's name if the expression is one symbol and nothing else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom, power = self.terms[0][0][0]
            return atom.name if isinstance(atom, Symbol) and power == 1 else None
        return None

    @property
    def kind(self) -> str:
        """int, float or bool."""
        kinds = {atom.kind for monomial, _ in self.terms for atom, _ in monomial}
        return "float" if "float" in kinds else "bool" if kinds == {"bool"} else "int"

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, float):
            return cast("Dim", call("add", self, other))
        return _without_rests(_collect(self.terms + _terms(other)))

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, float):
            return cast("Dim", call("mul", self, other))
        if not isinstance(other, int | Expr):
            return NotImplemented
        return _collect((_times(m, n), c * d) for m, c in self.terms for n, d in _terms(other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self} is only known at run time; compare with `==` for provable equality")

    @cached_property
    def _text(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [_atomic(a) if p == 1 else f"{_atomic(a)}**{p}" for a, p in monomial]
            if len(self.terms) == 1 and coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                factors = [str(monomial[0][0])]
            sign = "-" if coefficient < 0 else "+"
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            parts.append((sign, "*".join(factors)))
        text = " ".join(f"{s} {t}" for s, t in parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def symbol(name: str, kind: str = "int") -> Expr:
    """The expression that is one symbol."""
    return Expr((((((Symbol(name, kind), 1),)), 1),))


def call(fn: str, *args: Number | Expr) -> Any:
    """A function of FUNCTIONS applied; folded when every argument is a number."""
    if not any(isinstance(a, Expr) for a in args):
        return FUNCTIONS[fn](*args)
    return Expr((((((Call(fn, args), 1),)), 1),))


def _terms(x: Dim) -> tuple[tuple[Monomial, int], ...]:
    return x.terms if isinstance(x, Expr) else (((), x),) if x else ()


def _times(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda p: _key(p[0])))


def _order(term: tuple[Monomial, int]) -> tuple[int, str]:
    monomial = term[0]
    return -sum(p for _, p in monomial), " ".join(f"{_key(a)}^{p}" for a, p in monomial)


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(sorted(kept, key=_order)))


def _rests(total: Dim) -> Iterator[tuple[Expr, int, int, list[tuple[Monomial, int]]]]:
    """The summands `factor * (dividend % divisor)` of whole numbers, each with the other terms."""
    for monomial, factor in _terms(total):
        atom, power = monomial[0] if len(monomial) == 1 else (None, 0)
        if power == 1 and isinstance(atom, Call) and atom.fn == "mod":
            dividend, divisor = atom.args
            if isinstance(dividend, Expr) and dividend.kind == "int" and isinstance(divisor, int):
                yield dividend, divisor, factor, [t for t in _terms(total) if t[0] != monomial]


def _without_rests(total: Dim) -> Dim:
    """The sum, with `n*(a // n)` for `a - a % n` where that is shorter: what is padded to a multiple is seen to be one.

    >>> s = symbol("s")
    >>> s + (-s) % 8
    -8*((-s)//8)
    """
    for dividend, divisor, factor, others in _rests(total):
        found = _collect([*others, *_terms((dividend - floordiv(dividend, divisor) * divisor) * factor)])
        if len(_terms(found)) < len(_terms(total)):
            return _without_rests(found)
    return total


def _without_inner(total: Dim, by: int) -> Dim:
    """What leaves the same rest: `x` for `x % 16` where the divisor is 8."""
    for dividend, divisor, factor, others in _rests(total):
        if divisor % by == 0:
            return _without_inner(_collect([*others, *_terms(dividend * factor)]), by)
    return total


def _divide_term(a: tuple[Monomial, int], b: tuple[Monomial, int]) -> Dim | None:
    (m, c), (n, d) = a, b
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) - power
    if c % d or any(p < 0 for p in powers.values()):
        return None
    return _collect([(tuple((x, p) for x, p in sorted(powers.items(), key=lambda q: _key(q[0])) if p), c // d)])


def quotient(a: Dim, b: Dim) -> Dim | None:
    """`a / b` where b provably divides a as a polynomial, else None.

    >>> s = symbol("s")
    >>> quotient(s * s + s, s + 1)
    s
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    result: Dim = 0
    lead = _terms(b)[0]
    for _ in range(16):
        if a == 0:
            return result
        step = _divide_term(_terms(a)[0], lead)
        if step is None:
            return None
        result, a = result + step, a - step * b
    return None


def floordiv(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounded down, with what divides exactly taken out of the division."""
    exact = quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int):
        whole = _collect((m, c if c % b == 0 else c - c % b if not m else 0) for m, c in _terms(a))
        rest = a - whole
        if whole != 0:
            return floordiv(whole, b) + floordiv(rest, b)
    return cast("Dim", call("floordiv", a, b))


def mod(a: Dim, b: Dim) -> Dim:
    """`a % b` with Python's sign, folded where b provably divides."""
    if quotient(a, b) is not None:
        return 0
    if isinstance(b, int):
        a = _without_inner(a, b)
        # of 7*s over 8 what is left is that of -s: the nearest to 0 of the coefficients that leave the same
        a = _collect((m, (c % b if 2 * (c % b) <= b or not m else c % b - b) if b > 0 else c) for m, c in _terms(a))
        if isinstance(a, int):
            return a % b
    return cast("Dim", call("mod", a, b))


def _extreme(fn: str, pick: Callable[[int, int], int], args: tuple[Dim, ...]) -> Dim:
    kept: list[Dim] = []
    for a in args:
        for i, k in enumerate(kept):
            gap = a - k
            if isinstance(gap, int):
                kept[i] = a if pick(gap, 0) == gap else k
                break
        else:
            kept.append(a)
    return kept[0] if len(kept) == 1 else call(fn, *sorted(kept, key=str))


def maximum(*args: Dim) -> Dim:
    """The largest of the dimensions."""
    return _extreme("max", max, args)


def minimum(*args: Dim) -> Dim:
    """The smallest of the dimensions."""
    return _extreme("min", min, args)


def product(dims: Iterable[Dim]) -> Dim:
    """The product, 1 of none."""
    return reduce(operator.mul, dims, 1)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """`a / b` rounded up."""
    return -floordiv(-a, b)


def visit(
    x: Number | Expr, number: Callable[[Number], T], sym: Callable[[Symbol], T], apply: Callable[[str, list[T]], T]
) -> T:
    """Fold an expression into anything: numbers and symbols by two functions, `apply` for each function call.

    Sums and products reach `apply` as binary "add" and "mul"; a negative summand as "sub".
    """
    if not isinstance(x, Expr):
        return number(x)

    def atom(a: Atom) -> T:
        return sym(a) if isinstance(a, Symbol) else apply(a.fn, [visit(b, number, sym, apply) for b in a.args])

    def term(monomial: Monomial, coefficient: int) -> T:
        factors = [atom(a) for a, p in monomial for _ in range(p)]
        if coefficient != 1 or not factors:
            factors.append(number(coefficient))
        return reduce(lambda left, right: apply("mul", [left, right]), factors)

    ordered = sorted(x.terms, key=lambda t: t[1] < 0)  # start from a positive summand where there is one
    total = term(*ordered[0])
    for monomial, coefficient in ordered[1:]:
        total = apply("sub" if coefficient < 0 else "add", [total, term(monomial, abs(coefficient))])
    return total


def evaluate(x: Number | Expr, env: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Any:
    """The value of an expression where `env` gives each symbol's (a number, or anything with arithmetic)."""
    try:
        return visit(x, lambda n: n, lambda s: env[s.name], lambda fn, args: functions[fn](*args))
    except (ArithmeticError, ValueError, TypeError) as error:
        refuse_numbers(x, env, error)
        raise


EXACT: dict[str, Callable[..., Any]] = {fn: FUNCTIONS[fn] for fn in ("add", "sub", "mul")} | {
    "floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum,
}  # fmt: skip


def is_static(dims: Sequence[Dim | None]) -> TypeGuard[Sequence[int]]:
    """True if every dimension is a number."""
    return all(isinstance(d, int) for d in dims)


def substitute(x: Any, env: Mapping[str, Number | Expr]) -> Any:
    """The expression with symbols replaced; symbols that `env` lacks stay."""
    if not isinstance(x, Expr) or not (x.symbols & env.keys()):
        return x

    def apply(fn: str, args: list[Any]) -> Any:
        return EXACT[fn](*args) if fn in EXACT else call(fn, *args)

    return visit(x, lambda n: n, lambda s: env.get(s.name, symbol(s.name, s.kind)), apply)


def solve(size: Dim, name: str) -> tuple[int, int] | None:
    """(a, b) with `size == a * name + b` and a != 0, where the dimension is linear in that one symbol."""
    if not isinstance(size, Expr) or size.symbols != {name}:
        return None
    if any(m and (len(m) > 1 or not isinstance(m[0][0], Symbol) or m[0][1] != 1) for m, _ in size.terms):
        return None
    offset = next((c for m, c in size.terms if not m), 0)
    return next(c for m, c in size.terms if m), offset
