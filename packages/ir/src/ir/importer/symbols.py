"""torch's sympy expressions to dimensions and back: names are the user's where the user gave some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from ir import dims
from ir.bounds import Range, divides_by_size
from ir.errors import CaptureError
from ir.importer.pt2.expressions import Size
from ir.importer.size_rules import build, symbol_kind
from ir.importer.torch_api import expression, hints


class Symbols:
    """The names of one capture's symbols, and the torch SymInt behind each."""

    def __init__(self, ranges: Mapping[Any, Any] | None = None) -> None:
        self.names: dict[Any, str] = {}
        self.nodes: dict[str, Any] = {}  # name -> SymInt, what a fake tensor of this size is made from
        self._ranges = ranges or {}
        self.from_two: set[str] = set()  # names of sizes whose range the user began at 2
        self._meant: dict[Any, dims.Expr] = {}  # what a symbol of a trace stands for
        self.literals: dict[dims.Dim, int] = {}  # expressions that are numbers
        self.equal: Sequence[tuple[dims.Dim, dims.Dim]] = ()  # sizes that are one in every run
        self._cache: dict[Any, Any] = {}
        self._counts = {"s": 0, "u": 0}

    def name_user_symbol(self, size: Any, name: str) -> None:
        """Call the symbol behind this size `name`."""
        if isinstance(size, torch.SymInt) and isinstance(size.node.expr, _symbol_class()):
            self.names.setdefault(size.node.expr, name)

    def rename(self, names: Mapping[str, str]) -> None:
        """Call torch's symbols by these names."""
        self.names.update((s, names[str(s)]) for s in self._ranges if str(s) in names)

    def suggest(self, names: Mapping[str, str]) -> None:
        """Call those by these names that have none, as far as the names are free: two of one name are one size."""
        taken = {"", *self.names.values()}
        for s in self._ranges:
            if (name := names.get(str(s), "")) not in taken:
                self.names.setdefault(s, name)

    @property
    def begun_at_two(self) -> list[str]:
        """torch's names of the symbols whose range the user began at 2."""
        return sorted(str(s) for s, name in self.names.items() if name in self.from_two)

    def begin_at_two(self, symbols: Collection[str]) -> None:
        """Take the ranges of these, by torch's names, as the user's."""
        self.from_two.update(self._name(s) for s in self._ranges if str(s) in symbols)

    def _suggest(self, expr: Any, name: str) -> None:
        """Call this by that name, if it has none and the name is free."""
        if name and name not in self.names.values():
            self.names.setdefault(expr, name)

    def fork(self) -> Symbols:
        """Symbols of another trace: none yet, names and numbering that do not clash with these."""
        other = Symbols()
        other._counts = self._counts
        return other

    def adopt(self, name: str, size: Any, meant: dims.Expr | None = None) -> None:
        """Call a size of this trace by a name that exists already, or take it for an expression."""
        if meant is not None:
            self._meant[size.node.expr] = meant
        self.names[size.node.expr] = name
        self.nodes[name] = size

    def convert(self, value: Any) -> Any:
        """A SymInt, SymFloat or SymBool (or a plain number, as it is) in the IR's terms."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        expr = value.node.expr
        found = self._cache.get(expr)
        if found is None:
            self._remember(value)
            found = self._cache[expr] = self.expression(expr)
        return found

    def take_literals(self, found: Iterable[tuple[Any, int]]) -> None:
        """Sizes that are these numbers, wherever they occur."""
        for size, number in found:
            made = self.convert(size)
            if divides_by_size(made):  # else it is a size that a condition of the graph holds to the number
                self.literals[made] = number
        if self.literals:
            self._cache.clear()

    def read(self, value: Any, name: str = "") -> Any:
        """What a number read at run time is by itself, where `convert` gives what the model's checks make of it.

        Its symbol is called `name` if that is free.
        """
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        expr = expression(value)
        # what a second trace of torch's (strict mode) reads is what the first one read, under another name
        renamed = getattr(value.node.shape_env, "unbacked_renamings", {})
        expr = expr.xreplace(renamed) if renamed else expr
        self._suggest(expr, name)
        return self.expression(expr)

    def are_from_data(self, names: Collection[str]) -> bool:
        """Whether all of these stand for numbers that are read out of tensors."""
        return set(names) <= {name for s, name in self.names.items() if is_from_data(s)}

    def fresh(self, node: str, kind: str, name: str = "") -> dims.Expr:
        """A number, int or float, that a node reads out of a tensor, and that no symbol of torch's stands for.

        It is called `name` if that is free.
        """
        key = f"{'zuf' if kind == 'float' else 'u'}:{node}"
        self._suggest(key, name)
        return dims.symbol(self._name(key), kind)

    def range_of(self, number: Any) -> Range:
        """The range of an argument that is a number, as torch.export found it."""
        return self.ranges[self.names[expression(number)]]

    @property
    def plain_names(self) -> dict[Any, Any]:
        """Symbols of sympy with these names, of which nothing is known but that they are integers."""
        import sympy

        return {s: sympy.Symbol(name, integer=True) for s, name in self.names.items()}

    def text(self, e: Any) -> str:
        """An expression or condition of sympy as the IR writes it."""
        try:
            return str(self.expression(e))
        except CaptureError:  # a function that the IR lacks
            return str(e.xreplace(self.plain_names))

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of each named symbol, as torch.export found it."""
        result: dict[str, Range] = {}
        for s, name in self.names.items():
            low, high = self._bounds(s)
            # a least size of 2 is what torch traces with by itself; where nobody asked for it, 0 and 1 run all the same
            if not is_from_data(s) and (low is None or (low == 2 and name not in self.from_two)):
                low = 0
            result.setdefault(name, Range(low, None if high is None or high > 2**60 else high))
        return result

    def _bounds(self, s: Any) -> tuple[int | None, int | None]:
        r = self._ranges.get(s)
        low = int(r.lower) if r is not None and r.lower.is_Integer else None
        return low, int(r.upper) if r is not None and r.upper.is_Integer else None

    def hint(self, name: str) -> int | None:
        """The size of the example behind a symbol; None for a number that data decides."""
        size = self.nodes.get(name)
        return int(size.node.hint) if size is not None and size.node.has_hint() else None

    def _remember(self, value: Any) -> None:
        """Keep a SymInt for every symbol seen: fake tensors for bodies are made from them."""
        env = value.node.shape_env
        for s in value.node.expr.free_symbols:
            name = self._name(s)
            if name not in self.nodes:
                hint = hints(env).get(s)
                if str(s).startswith(("zuf", "zf")):
                    self.nodes[name] = env.create_symfloatnode(s, hint=hint)
                else:
                    self.nodes[name] = env.create_symintnode(s, hint=None if hint is None else int(hint))

    def _name(self, s: Any) -> str:
        if s in self.names:
            return self.names[s]
        kind = "u" if is_from_data(s) else "s"
        taken = set(self.names.values())
        while (name := f"{kind}{self._counts[kind]}") in taken:
            self._counts[kind] += 1
        self.names[s] = name
        return name

    def expression(self, e: Any) -> Any:
        """An expression of torch's in the IR's terms: sympy's, or a file's text of one.

        Raises:
            CaptureError: it has a function that the IR lacks, or a symbol that the program does not have.
        """
        value = (
            e.tree.value(self._called, lambda: self.ranges, self.literals) if isinstance(e, Size) else self._built(e)
        )
        return float(value) if isinstance(value, Fraction) else value

    def _called(self, name: str) -> dims.Expr:
        """torch's symbol of this name."""
        found = next((s for s in self._ranges if str(s) == name), None)
        if found is None:
            raise CaptureError(f"the program has no symbol {name}")
        return dims.symbol(self._name(found), symbol_kind(name))

    def _built(self, e: Any) -> Any:
        import sympy

        if isinstance(e, sympy.Integer):
            return int(e)
        if e in self._meant:
            return self._meant[e]
        if isinstance(e, sympy.Symbol):
            return dims.symbol(self._name(e), symbol_kind(str(e)))
        if isinstance(e, sympy.Rational):
            return Fraction(int(e.p), int(e.q))
        if isinstance(e, sympy.Float):
            return float(e)
        if e in (sympy.true, sympy.false):
            return bool(e)
        made = build(type(e).__name__, [self._built(a) for a in e.args], lambda: self.ranges)
        return self.literals.get(made, made) if self.literals else made


def is_from_data(s: Any) -> bool:
    """True for a symbol of torch's that stands for a number read out of a tensor."""
    return str(s).startswith(("u", "zuf"))


def _symbol_class() -> Any:
    import sympy

    return sympy.Symbol
