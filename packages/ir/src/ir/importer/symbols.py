"""torch's sympy expressions to dimensions and back: names are the user's where the user gave some."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch

from ir import dims
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
    "OpaqueUnaryFn_sqrt": "sqrt",
    "FloatPow": "pow",
    "PowByNatural": "pow",
    "Where": "where",
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


class Symbols:
    """The names of one capture's symbols, and the torch SymInt behind each."""

    def __init__(self, ranges: Mapping[Any, Any] | None = None) -> None:
        self.names: dict[Any, str] = {}
        self.nodes: dict[str, Any] = {}  # name -> SymInt, what a fake tensor of this size is made from
        self._ranges = ranges or {}
        self._cache: dict[Any, Any] = {}
        self._counts = {"s": 0, "u": 0}

    def name_user_symbol(self, size: Any, name: str) -> None:
        """Call the symbol behind this size `name`."""
        if isinstance(size, torch.SymInt) and isinstance(size.node.expr, _symbol_class()):
            self.names.setdefault(size.node.expr, name)

    def fork(self) -> Symbols:
        """Symbols of another trace: none yet, names and numbering that do not clash with these."""
        other = Symbols()
        other._counts = self._counts
        return other

    def adopt(self, name: str, size: Any) -> None:
        """Call a size of this trace by a name that exists already."""
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

    def read(self, value: Any, name: str = "") -> Any:
        """What a number read at run time is by itself, where `convert` gives what the model's checks make of it.

        Its symbol is called `name` if that is free.
        """
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        expr = value.node._expr
        if name and name not in self.names.values():
            self.names.setdefault(expr, name)
        return self.expression(expr)

    def range_of(self, number: torch.SymInt) -> Range:
        """The range of an argument that is a number, as torch.export found it."""
        return self.ranges[self.names[number.node._expr]]

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of each named symbol, as torch.export found it."""
        result: dict[str, Range] = {}
        for s, name in self.names.items():
            r = self._ranges.get(s)
            low = int(r.lower) if r is not None and r.lower.is_Integer else None
            high = int(r.upper) if r is not None and r.upper.is_Integer else None
            # a least size of 2 is what torch traces with by itself; 0 and 1 run all the same
            if not _from_data(s) and low in (None, 2):
                low = 0
            result.setdefault(name, Range(low, None if high is None or high > 2**60 else high))
        return result

    def _remember(self, value: Any) -> None:
        """Keep a SymInt for every symbol seen: fake tensors for bodies are made from them."""
        env = value.node.shape_env
        for s in value.node.expr.free_symbols:
            name = self._name(s)
            if name not in self.nodes:
                hint = env.backed_var_to_val.get(s) if hasattr(env, "backed_var_to_val") else env.var_to_val.get(s)
                if str(s).startswith(("zuf", "zf")):
                    self.nodes[name] = env.create_symfloatnode(s, hint=hint)
                else:
                    self.nodes[name] = env.create_symintnode(s, hint=None if hint is None else int(hint))

    def _name(self, s: Any) -> str:
        if s in self.names:
            return self.names[s]
        kind = "u" if _from_data(s) else "s"
        taken = set(self.names.values())
        while (name := f"{kind}{self._counts[kind]}") in taken:
            self._counts[kind] += 1
        self.names[s] = name
        return name

    def expression(self, e: Any) -> Any:
        """A sympy expression of torch's in the IR's terms."""
        import sympy

        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol):
            kind = "float" if str(e).startswith(("zuf", "zf")) else "int"
            return dims.symbol(self._name(e), kind)
        if isinstance(e, (sympy.Float, sympy.Rational)):
            return float(e)
        if e in (sympy.true, sympy.false):
            return bool(e)
        name = type(e).__name__
        if name == "Identity":
            return self.expression(e.args[0])
        if name == "Piecewise" and e.args[-1].cond == sympy.true:
            *pairs, last = e.args
            result = self.expression(last.expr)
            for pair in reversed(pairs):
                result = dims.call("where", self.expression(pair.cond), self.expression(pair.expr), result)
            return result
        args = [self.expression(a) for a in e.args]
        if name == "Add":
            return _reduce("add", args)
        if name == "Mul":
            return self._product(e, args)
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
            divide = dims.ceildiv if name == "CeilToInt" else dims.floordiv
            return divide(base * ratio.numerator, ratio.denominator)
        if name in _CALLS:
            return dims.call(_CALLS[name], *args)
        raise CaptureError(f"the size expression {e} uses {name}, which has no form in the IR")

    def _product(self, e: Any, args: list[Any]) -> Any:
        import sympy

        fraction = next((a for a in e.args if isinstance(a, sympy.Rational) and not isinstance(a, sympy.Integer)), None)
        if fraction is None:
            return _reduce("mul", args)
        rest = [self.expression(a) for a in e.args if a is not fraction]
        return dims.call("truediv", _reduce("mul", [*rest, int(fraction.p)]), int(fraction.q))


def _from_data(s: Any) -> bool:
    """True for a symbol of torch's that stands for a number read out of a tensor."""
    return str(s).startswith(("u", "zuf"))


def _symbol_class() -> Any:
    import sympy

    return sympy.Symbol


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
