"""Sizes that are only known at run time: expressions over symbols as scalars of type index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from iree.compiler import ir as mlir

from ir.dims import Dim, Expr, visit
from ir.graph import Graph
from ir.helper import OpHelper
from ir.types import DType, TensorType
from stablehlo_backend.building.builder import Builder
from stablehlo_backend.building.values import HloValue, as_signed, spelled

Size = Union[int, mlir.Value]
PLACE = "  at "  # between what an assertion asks and the line of the model that asks it

_INTEGER = {"add": "addi", "sub": "subi", "mul": "muli", "floordiv": "floordivsi", "max": "maxsi", "min": "minsi",
            "bitwise_and": "andi", "bitwise_or": "ori", "bitwise_xor": "xori", "lshift": "shli", "rshift": "shrsi",
            "and": "andi", "or": "ori"}  # fmt: skip
_COMPARED = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}  # the numbers of arith's predicates
_FLOAT = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "max": "maximum", "min": "minimum",
          "pow": "power", "sqrt": "sqrt", "exp": "exponential", "log": "log", "float": ""}  # fmt: skip
_ROUNDED = {"floor": "floor", "ceil": "ceil", "round": "round_nearest_even", "trunc": ""}
_DOUBLE, _LONG, _TRUTH = (TensorType(d, ()) for d in (DType.float64, DType.int64, DType.bool))


class Sizes(OpHelper[HloValue]):
    """What turns dimensions into scalars of the module. A number among them is an int, a float a 0-d tensor of f64."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.builder = Builder()

    def size(self, dim: Dim) -> Size:
        """An int, or a scalar of type index."""
        made = self._computed(dim)
        return self._whole(made) if isinstance(made, HloValue) else made

    def scalar(self, value: Any, dtype: DType) -> HloValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        return self.cast(self._lifted(self._computed(value)), dtype)

    def sizes_tensor(self, dims: Sequence[Dim | mlir.Value], element: str = "index") -> mlir.Value:
        """Dimensions as a 1-d tensor."""
        type = f"tensor<{len(dims)}x{element}>"
        if all(isinstance(d, int) for d in dims):  # IREE wants to see that these are constants
            text = f"dense<{list(dims) if dims else ''}> : {type}"
            return self.builder.once(text, lambda: self._scalar("arith.constant", (), type, value=text))

        def make() -> mlir.Value:
            sizes = [self._index(d if isinstance(d, mlir.Value) else self.size(d)) for d in dims]
            words = sizes if element == "index" else [self._scalar("arith.index_cast", [s], element) for s in sizes]
            return self._scalar("tensor.from_elements", words, type)

        return self.builder.once(("sizes", element, *dims), make)

    def _index(self, size: Size) -> mlir.Value:
        if not isinstance(size, int):
            return size
        text = f"{size} : index"
        return self.builder.once(("index", size), lambda: self._scalar("arith.constant", (), value=text))

    def _lifted(self, size: Any) -> HloValue:
        """A size as a 0-d tensor of int64; a float is one of float64."""
        if isinstance(size, HloValue):
            return size

        def make() -> HloValue:
            word = self._scalar("arith.index_cast", [self._index(size)], "i64")
            return HloValue(self._scalar("tensor.from_elements", [word], spelled(_LONG)), _LONG)

        return self.builder.once(("lifted", size), make)

    def _scalar(self, op: str, operands: Sequence[mlir.Value], result: str = "index", **attributes: Any) -> mlir.Value:
        return self.builder.operation(op, operands, [result], attributes=attributes)[0]

    # -- expressions -----------------------------------------------------------------------------------------------

    def _computed(self, value: Dim) -> Any:
        if not isinstance(value, Expr):
            return int(value)

        def make() -> Any:
            return visit(value, lambda n: n, lambda s: self._symbol(s.name), self._applied)

        return self.builder.once(("expression", value), make)

    def _symbol(self, name: str) -> Any:
        tensor, source = self.driver.symbol(name)
        if source.axis is None:
            if tensor.type.dtype.is_float:
                return self.cast(tensor, DType.float64)
            return self.builder.once(("item", tensor.name), lambda: self._whole(tensor))
        size: Any = self._dimension(tensor, source.axis)
        if source.offset:
            size = self._applied("sub", [size, source.offset])
        return self._applied("floordiv", [size, source.scale]) if source.scale != 1 else size

    def _dimension(self, x: HloValue, axis: int) -> Size:
        """The size of an axis of a value as it is at run time."""
        static = x.type.shape[axis]
        if isinstance(static, int):
            return static
        if x.type.dtype.kind == "uint":  # which IREE knows in StableHLO alone
            bits = as_signed(x.type)
            x = self.builder.once(("bits", x.name), lambda: self.emit("bitcast_convert", x, type=bits))
        operands = [x.name, self._index(axis)]
        return self.builder.once(("dim", x.name, axis), lambda: self._scalar("tensor.dim", operands))

    def _whole(self, x: HloValue) -> mlir.Value:
        """A 0-d tensor as a scalar of type index."""
        return self._scalar("arith.index_cast", [self._element(self.cast(x, DType.int64), "i64")])

    def _element(self, x: HloValue, element: str) -> mlir.Value:
        """What a 0-d tensor holds."""
        # behind a barrier, or its float arithmetic becomes IREE's host's, which has little of it
        held = self._scalar("util.optimization_barrier", [x.name], spelled(x.type))
        return self._scalar("tensor.extract", [held], element)

    def require(self, condition: Dim | HloValue, message: str) -> None:
        """End a run where the condition, of sizes or of a 0-d tensor of truth, does not hold; the file says why, and
        the model's line."""
        origin = self.driver.root_node.origin
        place = PLACE + origin.source + (f" in {origin.module}" if origin.module else "") if origin.source else ""
        text = (message + place).replace("\\", "/").replace('"', "'").replace("\n", " ")

        def held() -> bool:
            if isinstance(condition, HloValue):
                holds = self._element(condition, "i1")
            else:
                holds = self._compared("ne", self._index(self.size(condition)), self._index(0))
            self.builder.operation("cf.assert", [holds], [], attributes={"msg": f'"{text}"'})
            return True

        self.builder.once(("required", condition, text), held)

    def _applied(self, fn: str, args: Sequence[Any]) -> Any:
        if any(isinstance(a, (float, HloValue)) for a in args) or fn in ("truediv", "sqrt", "exp", "log", "float"):
            return self._float(fn, args)
        if fn in _ROUNDED:
            return args[0]
        if fn == "mod":
            whole = self._applied("mul", [self._applied("floordiv", args), args[1]])
            return self._applied("sub", [args[0], whole])
        if fn == "pow" and isinstance(args[1], int) and args[1] >= 0:
            return self._applied("mul", [1, 1, *[args[0]] * args[1]])
        first, *others = [self._index(a) for a in args]
        if fn in _COMPARED or fn == "not":
            made = self._compared(fn if others else "eq", first, others[0] if others else self._index(0))
            return self._scalar("arith.index_castui", [made])
        if fn == "where":
            return self._scalar("arith.select", [self._compared("ne", first, self._index(0)), *others])
        if fn not in _INTEGER:
            self.refuse(f"a size needs {fn}, which has no form on integers here")
        for other in others:
            first = self._scalar(f"arith.{_INTEGER[fn]}", [first, other])
        return first

    def _compared(self, fn: str, a: mlir.Value, b: mlir.Value) -> mlir.Value:
        return self._scalar("arith.cmpi", [a, b], "i1", predicate=_COMPARED[fn])

    def _float(self, fn: str, args: Sequence[Any]) -> Any:
        words = _FLOAT if fn in _FLOAT else _ROUNDED
        if fn not in words and fn not in _COMPARED:
            self.refuse(f"a size needs {fn} of a float, which has no form here")
        numbers = [self.constant(np.asarray(a, np.float64)) if isinstance(a, float) else self._lifted(a) for a in args]
        operands = [self.cast(x, DType.float64) for x in numbers]
        if fn in _COMPARED:
            word = f"#stablehlo<comparison_direction {fn.upper()}>"
            return self._whole(self.emit("compare", *operands, comparison_direction=word, type=_TRUTH))
        made = self.emit(words[fn], *operands, type=_DOUBLE) if words[fn] else operands[0]
        return self._whole(made) if fn in _ROUNDED else made
