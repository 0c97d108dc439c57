"""Sizes in a .pt2 file: the text of an expression, parsed to a tree, computed when somebody asks for it.

torch writes `repr`s of sympy's trees (`Add(Mul(Integer(64), Symbol('s70', integer=True)), Integer(192))`) and reads
them with eval. Here they are calls of names on calls and numbers, with limits on length, depth and size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ir.bounds import Range
from ir.dims import Expr, symbol
from ir.errors import CaptureError
from ir.importer.size_rules import build, symbol_kind

_LONGEST, _DEEPEST, _MOST_TERMS, _LARGEST = 20_000, 60, 500, 2**66
_TOKEN = re.compile(r"""\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<text>'[A-Za-z_]\w*'|'[-+.\de]+')
                            |(?P<number>-?\d{1,20}(?![\w.]))|(?P<mark>[(),=]))""", re.VERBOSE)  # fmt: skip
_POWERS = {"Pow", "PowByNatural", "FloatPow", "pow", "LShift", "lshift"}
_CONSTANTS: dict[str, Any] = {"true": True, "false": False}


@dataclass(frozen=True)
class Size:
    """A size that is not one number: its text, and what it is in the example where that is known."""

    text: str
    hint: Any = None

    @property
    def tree(self) -> Tree:
        return parse(self.text)

    @property
    def symbol(self) -> str | None:
        """torch's name of the symbol that the size is, if it is one."""
        return self.tree.symbol


@dataclass(frozen=True)
class Tree:
    """A number, a symbol, or a function of trees."""

    number: Any = None
    symbol: str | None = None
    function: str = ""
    args: tuple[Tree, ...] = ()

    @property
    def symbols(self) -> Iterator[str]:
        """torch's names of the symbols in it, in order."""
        if self.symbol is not None:
            yield self.symbol
        for a in self.args:
            yield from a.symbols

    @property
    def functions(self) -> frozenset[str]:
        """The names of the functions in it."""
        own = frozenset({self.function} if self.function else ())
        return own.union(*(a.functions for a in self.args))

    def value(
        self,
        symbol: Callable[[str], Any],
        ranges: Callable[[], Mapping[str, Range]] = dict,
        literals: Mapping[Any, int] = MappingProxyType({}),
    ) -> Any:
        """The expression in the IR's terms, a rational number as a Fraction; `symbol` gives each symbol's.

        What `literals` has is the number there.

        Raises:
            CaptureError: a function that has no form in the IR, or more terms or larger numbers than a size has.
        """
        if self.symbol is not None:
            return symbol(self.symbol)
        if not self.function:
            return self.number
        args = [a.value(symbol, ranges, literals) for a in self.args]
        _refuse_large(self.function, args)
        try:
            made = bounded(build(self.function, args, ranges))
            return literals.get(made, made) if literals else made
        except (ArithmeticError, ValueError, TypeError, IndexError) as error:
            raise CaptureError(f"the size {self.function} of {args!r:.200} cannot be computed ({error})") from error


def bounded(value: Any) -> Any:
    """The value, if it is of the length and magnitude that a size can have.

    Raises:
        CaptureError: it is not.
    """
    numbers = [c for _, c in value.terms] if isinstance(value, Expr) else [value]
    large = any(isinstance(n, int | Fraction) and not -_LARGEST < n < _LARGEST for n in numbers)
    if large or len(numbers) > _MOST_TERMS:
        raise CaptureError("a size of the file has more terms, or a larger number in it, than the size of a tensor can")
    return value


def _refuse_large(function: str, args: list[Any]) -> None:
    """Before it is computed: a product of sums, and powers, grow beyond all limits at once."""
    terms = math.prod(len(a.terms) for a in args if isinstance(a, Expr)) if function == "Mul" else 1
    if function in _POWERS and not isinstance(args[-1], Expr):
        small = len(args) == 2 and -1 <= args[1] <= 16
        base = len(args[0].terms) if isinstance(args[0], Expr) else 1
        terms = math.comb(base + int(args[1]), base) if small else _MOST_TERMS + 1
    if terms > _MOST_TERMS:
        raise CaptureError(f"a size of the file is too large an expression: {function} of {args!r:.200}")


@lru_cache(maxsize=4096)
def parse(text: str) -> Tree:
    """The tree of a size's text.

    Raises:
        CaptureError: it is no arithmetic on symbols and numbers, or too long or too deep.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise CaptureError("a size of the file is no text, or too long")
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _no_size(text)
        tokens.append((match.lastgroup, match[match.lastgroup or 0]))
        at = match.end()
    tree, rest = _parse(tokens, 0, text, 0)
    if rest != len(tokens):
        raise _no_size(text)
    return tree


def _no_size(text: str) -> CaptureError:
    return CaptureError(f"a size of the file is {text!r:.200}, which is no arithmetic")


def _parse(tokens: list[Any], at: int, text: str, depth: int) -> tuple[Tree, int]:
    if depth > _DEEPEST or at >= len(tokens) or tokens[at][0] != "name":
        raise _no_size(text)
    name = tokens[at][1]
    if name in _CONSTANTS:
        return Tree(_CONSTANTS[name]), at + 1
    if tokens[at + 1 : at + 2] != [("mark", "(")]:
        raise _no_size(text)
    at += 2
    if name in ("Symbol", "Integer", "Float", "Rational"):
        return _leaf(name, tokens, at, text)
    args: list[Tree] = []
    while tokens[at : at + 1] != [("mark", ")")]:
        arg, at = _parse(tokens, at, text, depth + 1)
        args.append(arg)
        if tokens[at : at + 1] == [("mark", ",")]:
            at += 1
        elif tokens[at : at + 1] != [("mark", ")")]:
            raise _no_size(text)
    if not args:
        raise _no_size(text)
    return Tree(function=name, args=tuple(args)), at + 1


def _leaf(name: str, tokens: list[Any], at: int, text: str) -> tuple[Tree, int]:
    """A symbol or a number: plain texts and numbers in brackets, settings behind them (`integer=True`)."""
    end = at
    while end < len(tokens) and tokens[end] != ("mark", ")"):
        end += 1
    given = [t for t in tokens[at:end] if t != ("mark", ",")]
    plain = [t for t in given[:2] if t[0] in ("text", "number")]
    settings = given[len(plain) :]
    shape = [k for k, _ in settings]
    if end == len(tokens) or any(shape[i] != ("name", "mark")[i % 3] for i in range(len(shape)) if i % 3 < 2):
        raise _no_size(text)
    kinds, values = [k for k, _ in plain], [v.strip("'") for _, v in plain]
    try:
        if name == "Symbol" and kinds == ["text"] and values[0].isidentifier():
            return Tree(symbol=values[0]), end + 1
        if name == "Integer" and kinds == ["number"]:
            return Tree(int(values[0])), end + 1
        if name == "Float" and kinds == ["text"]:
            return Tree(float(values[0])), end + 1
        if name == "Rational" and kinds == ["number"] * 2:
            return Tree(Fraction(int(values[0]), int(values[1]))), end + 1
    except (ValueError, ZeroDivisionError) as error:
        raise _no_size(text) from error
    raise _no_size(text)


def torch_value(size: Any) -> Any:
    """A size in terms of torch's own symbols: an int, or an expression."""
    if not isinstance(size, Size):
        return size
    value = size.tree.value(_own)
    return float(value) if isinstance(value, Fraction) else value


def _own(name: str) -> Expr:
    return symbol(name, symbol_kind(name))
