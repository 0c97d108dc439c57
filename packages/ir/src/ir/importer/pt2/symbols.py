"""The symbols of a .pt2 file: torch's names for them, with their ranges and what they are in the example."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ir import dims
from ir.bounds import Range
from ir.importer.pt2.expressions import Size
from ir.importer.size_rules import symbol_kind
from ir.importer.symbols import Symbols


class FileSymbols(Symbols):
    """As Symbols, of sizes that are expressions in text."""

    def __init__(self, ranges: Mapping[str, Any], hints: Mapping[str, int]) -> None:
        super().__init__(ranges)
        self._hints = hints

    def name_user_symbol(self, size: Any, name: str) -> None:
        if isinstance(size, Size) and size.symbol is not None:
            self.names.setdefault(size.symbol, name)

    def convert(self, value: Any) -> Any:
        if not isinstance(value, Size):
            return value
        found = self._cache.get(value.text)
        if found is None:
            built = value.tree.value(self._known, lambda: self.ranges, self.literals)
            found = self._cache[value.text] = float(built) if isinstance(built, Fraction) else built
        return found

    def _known(self, name: str) -> dims.Expr:
        return dims.symbol(self._name(name), symbol_kind(name))

    def read(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Size) and value.symbol is not None and name and name not in self.names.values():
            self.names.setdefault(value.symbol, name)
        return self.convert(value)

    def range_of(self, number: Any) -> Range:
        return self.ranges[self.names[number.symbol]]

    def hint(self, name: str) -> int | None:
        return next((self._hints.get(s) for s, n in self.names.items() if n == name), None)

    def _bounds(self, s: Any) -> tuple[int | None, int | None]:
        low, high = self._ranges.get(s, (None, None))
        return low, high
