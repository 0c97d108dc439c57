"""Sizes that are only known at run time: expressions over symbols as scalars of type index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.dims import Dim, Expr, visit
from ir.graph import Graph
from ir.helper import OpHelper
from ir.types import DType, TensorType
from stablehlo_backend.building.builder import Builder
from stablehlo_backend.building.values import HloValue, Index, as_signed, attribute, spelled

_INTEGER = {"add": "addi", "sub": "subi", "mul": "muli", "floordiv": "floordivsi", "max": "maxsi", "min": "minsi",
            "bitwise_and": "andi", "bitwise_or": "ori", "bitwise_xor": "xori", "lshift": "shli", "rshift": "shrsi",
            "and": "andi", "or": "ori"}  # fmt: skip
_COMPARED = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}  # the numbers of arith's predicates
_FLOAT = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "max": "maximum", "min": "minimum",
          "pow": "power", "sqrt": "sqrt", "exp": "exponential", "log": "log", "float": ""}  # fmt: skip
_ROUNDED = {"floor": "floor", "ceil": "ceil", "round": "round_nearest_even", "trunc": ""}
_DOUBLE, _LONG = TensorType(DType.float64, ()), TensorType(DType.int64, ())


class Sizes(OpHelper[HloValue]):
    """What turns dimensions into scalars of the module. A number among them is an int, a float a 0-d tensor of f64."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.builder = Builder()

    def size(self, dim: Dim) -> int | Index:
        """An int, or a scalar of type index."""
        if not isinstance(dim, Expr):
            return int(dim)
        made = self._computed(dim)
        return made if isinstance(made, Index) else self._whole(made)

    def scalar(self, value: Any, dtype: DType) -> HloValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        made = self._computed(value)
        return self.cast(made if isinstance(made, HloValue) else self.lifted(made), dtype)

    def index(self, size: int | Index) -> Index:
        """The scalar of type index."""
        if isinstance(size, Index):
            return size
        text = f"{size} : index"
        return self.builder.once(("index", size), lambda: self._scalar("arith.constant", (), "index", value=text))

    def lifted(self, size: int | Index) -> HloValue:
        """A size as a 0-d tensor of int64."""

        def make() -> HloValue:
            word = self._scalar("arith.index_cast", [(self.index(size), "index")], "i64")
            return HloValue(self._scalar("tensor.from_elements", [(word, "i64")], spelled(_LONG)), _LONG)

        return self.builder.once(("lifted", size), make)

    def sizes_tensor(self, dims: Sequence[Dim], element: str = "index") -> tuple[str, str]:
        """Dimensions as a 1-d tensor: its name and its type."""
        if element == "index" and all(isinstance(d, int) for d in dims):
            type = f"tensor<{len(dims)}xindex>"
            text = f"dense<{[int(d) for d in dims if isinstance(d, int)]}> : {type}" if dims else f"dense<> : {type}"
            key = ("sizes", tuple(dims))
            return self.builder.once(key, lambda: self._scalar("arith.constant", (), type, value=text)), type
        return self._gathered([self.index(self.size(d)) for d in dims], element)

    def _gathered(self, names: Sequence[Index], element: str) -> tuple[str, str]:
        type = f"tensor<{len(names)}x{element}>"
        if element != "index":
            names = [self._scalar("arith.index_cast", [(n, "index")], element) for n in names]
        key = ("sizes", tuple(names), element)
        operands = [(n, element) for n in names]
        return self.builder.once(key, lambda: self._scalar("tensor.from_elements", operands, type)), type

    def _scalar(self, op: str, operands: Sequence[tuple[str, str]], result: str, **attributes: Any) -> Index:
        return Index(self.builder.operation(op, operands, [result], attributes=attributes)[0])

    # -- expressions -----------------------------------------------------------------------------------------------

    def _computed(self, value: Expr) -> Any:
        def make() -> Any:
            return visit(value, lambda n: n, lambda s: self._symbol(s.name), self._applied)

        return self.builder.once(("expression", value), make)

    def _symbol(self, name: str) -> Any:
        tensor, source = self.driver.symbol(name)
        if source.axis is None:
            if tensor.type.dtype.is_float:
                return self.cast(tensor, DType.float64)
            return self.builder.once(("item", tensor.name), lambda: self._whole(tensor))
        size: Any = self.dimension(tensor, source.axis)
        if source.offset:
            size = self._applied("sub", [size, source.offset])
        return self._applied("floordiv", [size, source.scale]) if source.scale != 1 else size

    def dimension(self, x: HloValue, axis: int) -> int | Index:
        """The size of an axis of a value as it is at run time."""
        static = x.type.shape[axis]
        if isinstance(static, int):
            return static
        if x.type.dtype.kind == "uint":  # which IREE knows in StableHLO alone
            bits = as_signed(x.type)
            x = self.builder.once(("bits", x.name), lambda: self.emit("bitcast_convert", x, type=bits))
        operands = [(x.name, spelled(x.type)), (self.index(axis), "index")]
        return self.builder.once(("dim", x.name, axis), lambda: self._scalar("tensor.dim", operands, "index"))

    def _whole(self, x: Any) -> Index:
        """A 0-d tensor as a scalar of type index."""
        if isinstance(x, int):
            return self.index(x)
        x = self.cast(x, DType.int64)
        kind = spelled(
            x.type
        )  # behind a barrier, or its float arithmetic becomes IREE's host's, which has little of it
        held = self._scalar("util.optimization_barrier", [(x.name, kind)], kind)
        word = self._scalar("tensor.extract", [(held, kind)], "i64")
        return self._scalar("arith.index_cast", [(word, "i64")], "index")

    def _applied(self, fn: str, args: Sequence[Any]) -> Any:
        if any(isinstance(a, (float, HloValue)) for a in args) or fn in ("truediv", "sqrt", "exp", "log", "float"):
            return self._float(fn, args)
        if fn in _ROUNDED:
            return args[0]
        if fn == "mod":
            whole = self._applied("mul", [self._applied("floordiv", args), args[1]])
            return self._applied("sub", [args[0], whole])
        names = [(self.index(a), "index") for a in args]
        if fn in _COMPARED:
            return self._truth(fn, names)
        if fn == "not":
            return self._truth("eq", [names[0], (self.index(0), "index")])
        if fn == "where":
            chosen = self._flag("ne", [names[0], (self.index(0), "index")])
            return self._scalar("arith.select", [(chosen, "i1"), *names[1:]], "index")
        if fn == "pow" and isinstance(args[1], int) and args[1] >= 0:
            return math.prod([args[0]] * args[1]) if isinstance(args[0], int) else self._power(names[0], args[1])
        if fn not in _INTEGER:
            self.refuse(f"a size needs {fn}, which has no form on integers here")
        name = names[0]
        for other in names[1:]:
            name = (self._scalar(f"arith.{_INTEGER[fn]}", [name, other], "index"), "index")
        return name[0]

    def _power(self, base: tuple[Index, str], exponent: int) -> Index:
        result = self.index(1)
        for _ in range(exponent):
            result = self._scalar("arith.muli", [(result, "index"), base], "index")
        return result

    def _flag(self, fn: str, operands: Sequence[tuple[Index, str]]) -> Index:
        return self._scalar("arith.cmpi", operands, "i1", predicate=attribute(_COMPARED[fn]))

    def _truth(self, fn: str, operands: Sequence[tuple[Index, str]]) -> Index:
        return self._scalar("arith.index_castui", [(self._flag(fn, operands), "i1")], "index")

    def _float(self, fn: str, args: Sequence[Any]) -> Any:
        def double(a: Any) -> HloValue:
            if isinstance(a, (int, float)):
                return self.constant(np.asarray(a, np.float64))
            return self.cast(a if isinstance(a, HloValue) else self.lifted(a), DType.float64)

        words = _FLOAT if fn in _FLOAT else _ROUNDED
        if fn not in words:
            self.refuse(f"a size needs {fn} of a float, which has no form here")
        name = words[fn]
        operands = [double(a) for a in args]
        made = self.emit(name, *operands, type=_DOUBLE) if name else operands[0]
        return self._whole(made) if fn in _ROUNDED else made
