"""Sizes that the user computes from a Dim, `a - 1` or `8 * n`: the range and the name of the symbol behind them.

torch.export has a symbol of its own for the smallest of them, and says of it as little as of one without a name.
"""

from __future__ import annotations

from collections.abc import Set
from fractions import Fraction
from math import ceil
from typing import Any

import torch
from torch.export import Dim as TorchDim

from ir.importer.symbols import Symbols

_FROM_TWO = 2  # where torch begins every range by itself


def name_root(symbols: Symbols, size: Any, dim: Any, taken: Set[str]) -> None:
    """Take what a Dim says of a size for what it says of torch's symbol in it.

    The symbol has the name of the Dim where it is that, as n is in the size 8*n; where torch's symbol is a - 1, and the
    Dim's own size `s + 1`, it is called a_minus_1: an input's size has to be a symbol by itself to be read off it, so
    that a is no symbol of the graph.
    """
    line = _line(size)
    if line is None or not isinstance(getattr(dim, "min", None), int):
        return
    symbol, factor, offset = line
    root = getattr(dim, "root", dim)
    begins = ceil(Fraction(dim.min - offset, factor))
    name = _name_of(getattr(root, "__name__", ""), dim, factor, offset)
    if name and (name == root.__name__ or name not in taken):
        symbols.names.setdefault(symbol, name)
    if begins == _FROM_TWO and (root is not dim or factor != 1 or offset != 0):
        symbols.begin_at_two({str(symbol)})


def otherwise(symbols: Symbols, size: Any, dim: Any) -> str:
    """What a size of a program is, where it is not what the user calls it; "" where it is."""
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", "")
    hint = getattr(dim, "type", None)
    if isinstance(size, int):
        return f"is {size} in the program" if name or (hint and hint == TorchDim.DYNAMIC.type) else ""
    asked = getattr(dim, "min", None), getattr(dim, "max", None)
    known = symbols.ranges.get(getattr(symbols.convert(size), "as_symbol", None) or "")
    if known is None or hasattr(dim, "root"):
        return ""
    low = isinstance(asked[0], int) and asked[0] > _FROM_TWO and asked[0] != known.min  # 0 to 2 are torch's own
    if low or (isinstance(asked[1], int) and asked[1] != known.max):
        end = "on" if known.max is None else f"to {known.max}"
        return f"is from {known.min or 0} {end} in the program, and {name or 'it'} is to be in another range"
    return ""


def _line(size: Any) -> tuple[Any, int, int] | None:
    """The symbol, the factor and the offset of a size that is `factor * symbol + offset`."""
    expr = size.node.expr if isinstance(size, torch.SymInt) else None
    if expr is None or len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    factor, offset = expr.coeff(symbol), expr.subs(symbol, 0)
    line = factor.is_Integer and factor > 0 and offset.is_Integer and (expr - factor * symbol - offset) == 0
    return (symbol, int(factor), int(offset)) if line else None


def _name_of(root: str, dim: Any, factor: int, offset: int) -> str:
    """The symbol in the words of the user's Dim, which is `(k * root + c - offset) / factor`; "" for no name."""
    of = getattr(dim, "fn", lambda n: n)
    least, by = Fraction(of(0) - offset, factor), Fraction(of(1) - of(0), factor)
    if by != 1 or least.denominator != 1 or not root.isidentifier() or root.startswith("_"):
        return ""
    return root if least == 0 else f"{root}_{'minus' if least < 0 else 'plus'}_{abs(least)}"
