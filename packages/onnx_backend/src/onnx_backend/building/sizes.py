"""Sizes that are known at run time only: dimension expressions computed with ONNX ops, each once in a scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir import dims as d
from ir.bounds import bounds
from ir.dims import Dim, Expr, is_static
from ir.graph import Graph
from ir.types import DType
from onnx_backend.building.emission import Emitter
from onnx_backend.building.values import OnnxValue

_UNARY = ("sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh")
_EXPRESSION_OPS = {"add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "mod": "Mod", "pow": "Pow",
                   "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
                   "and": "And", "or": "Or", "not": "Not", "where": "Where",
                   "truediv": "Div", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
                   "bitwise_xor": "BitwiseXor", **{fn: fn.capitalize() for fn in _UNARY}}  # fmt: skip


def _cost(dim: Expr) -> int:
    """How many nodes compute it, besides its symbols."""
    return d.visit(dim, lambda n: 0, lambda s: 0, lambda fn, args: sum(args) + (3 if fn == "floordiv" else 1))


class Sizes(Emitter):
    """Dimensions as int64 tensors."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.symbols: dict[str, OnnxValue] = {}  # sizes that came into a function as inputs

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> OnnxValue:
        """A dimension as an int64 tensor of shape [1]."""
        if not isinstance(dim, Expr):
            return self.const([dim], DType.int64)
        return self._cached(dim, lambda: self._read(dim) or self._expression(dim, DType.int64))

    def _read(self, dim: Expr) -> OnnxValue | None:
        """The size read off a tensor that has it, where that takes fewer nodes than to compute it.

        A number that may be less than 0 is computed: the tensor has no elements there.
        """
        if _cost(dim) <= (1 if self.opset >= 15 else 2) or self.may_be_negative(dim):
            return None
        for scope in reversed(self.scopes):
            if dim in scope.axes:
                return self.size_of(*scope.axes[dim])
            if scope.function:
                break
        return None

    def may_be_empty(self, dim: Dim) -> bool:
        """True unless the ranges of the symbols keep the dimension above 0 at run time."""
        return bounds(dim, self.graph.symbols)[0] < 1

    def may_be_negative(self, number: Dim) -> bool:
        """True unless the ranges of the symbols keep the number from being below 0."""
        return bounds(number, self.graph.symbols)[0] < 0

    def sizes(self, dims: Sequence[Dim]) -> OnnxValue:
        """Dimensions as one int64 tensor of shape [n]."""
        if all(isinstance(x, int) for x in dims):
            return self.const(list(dims), DType.int64)
        if len(dims) == 1:
            return self.size(dims[0])
        return self._cached(tuple(dims), lambda: self._concat_sizes(list(dims)))

    def length(self, dim: Dim) -> Dim:
        """The size of a tensor: of `x[1:]` of nothing, `n - 1` in the trace, 0."""
        return d.maximum(dim, 0) if isinstance(dim, Expr) and self.may_be_negative(dim) else dim

    def lengths(self, dims: Sequence[Dim]) -> OnnxValue:
        """The sizes of a tensor as one of int64."""
        return self.sizes(list(map(self.length, dims)))

    def scalar(self, value: Any, dtype: DType) -> OnnxValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        work = DType.int64 if value.kind == "int" else DType.float64 if value.kind == "float" else DType.bool
        vector = self.size(value) if work is DType.int64 else self._expression(value, work)
        return self.cast(self.emit("Squeeze", vector, [0], shape=()), dtype)

    def _concat_sizes(self, dims: list[Dim]) -> OnnxValue:
        parts: list[OnnxValue] = []
        run: list[int] = []
        for x in [*dims, None]:
            if isinstance(x, int):
                run.append(x)
                continue
            if run:
                parts.append(self.const(run, DType.int64))
                run = []
            if x is not None:
                parts.append(self.size(x))
        return self.emit("Concat", *parts, axis=0, shape=(len(dims),))

    def _cached(self, key: Any, make: Callable[[], OnnxValue]) -> OnnxValue:
        for scope in reversed(self.scopes):
            if key in scope.sizes:
                return scope.sizes[key]
            if scope.function:
                break
        self.scope.sizes[key] = made = make()
        return made

    def _expression(self, expr: Expr, dtype: DType) -> OnnxValue:
        def apply(fn: str, args: list[OnnxValue]) -> OnnxValue:
            if fn == "floordiv":
                return self._floordiv(*args)
            if fn == "float":
                return self.cast(args[0], DType.float64)
            if fn in ("floor", "ceil"):
                return self.cast(self.emit(fn.capitalize(), args[0]), DType.int64)
            if fn == "trunc":
                return self.cast(args[0], DType.int64)
            if fn == "round":
                return self.cast(self.emit("Round", args[0]), DType.int64)
            if fn == "ne":
                return self.emit("Not", self.emit("Equal", *args))
            if fn not in _EXPRESSION_OPS:
                self.refuse(f"the size {expr} uses {fn}, which ONNX cannot compute")
            if fn in ("truediv", *_UNARY) or any(a.type.dtype is DType.float64 for a in args):
                args = [a if a.type.dtype is DType.bool else self.cast(a, DType.float64) for a in args]
            single = fn in ("max", "min")  # onnxruntime's own is right for one element; see wide_integers.py
            return (self.emit_kernel if single else self.emit)(_EXPRESSION_OPS[fn], *args)

        def number(n: Any) -> OnnxValue:
            return self.const([n], DType.float64 if isinstance(n, float) else DType.int64)

        return self.cast(d.visit(expr, number, lambda s: self._symbol(s.name), apply), dtype)

    def _floordiv(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """ONNX's integer Div rounds to zero; sizes may be negative in between, so the remainder comes off first."""
        return self.emit("Div", self.emit("Sub", a, self.emit("Mod", a, b)), b)

    def _symbol(self, name: str) -> OnnxValue:
        if name in self.symbols:
            return self.symbols[name]
        return self._cached(("symbol", name), lambda: self._read_symbol(name))

    def _read_symbol(self, name: str) -> OnnxValue:
        value, source = self.driver.symbol(name)
        if source.axis is None:
            dtype = value.type.dtype  # a number read out of a tensor keeps its kind
            work = DType.float64 if dtype.is_float else dtype if dtype is DType.bool else DType.int64
            return self.emit("Reshape", self.cast(value, work), [1], shape=(1,))
        size = self.size_of(value, source.axis)
        if source.offset:
            size = self.emit("Sub", size, source.offset)
        return self.emit("Div", size, source.scale) if source.scale != 1 else size

    def size_of(self, x: OnnxValue, axis: int) -> OnnxValue:
        """The run-time size of one axis, an int64 tensor of shape [1]."""
        if self.opset >= 15:
            return self.emit("Shape", x, start=axis, end=axis + 1, shape=(1,))
        return self.emit("Gather", self.emit("Shape", x), [axis], axis=0)

    def require(self, x: OnnxValue, condition: Expr | OnnxValue | bool, asserted: str = "") -> OnnxValue:
        """`x` where a condition on sizes or a truth value holds; a run fails where not, at a node that is named by it.

        What the model asserts of data is named by its text. ONNX has no assertion: the tensor gets its own shape again,
        whose sizes are then read from beyond its rank; a number is read from beyond its row.
        """
        rank = x.type.rank
        if isinstance(condition, bool):  # of static sizes
            return x if condition else self.refuse(f"{asserted or 'a condition on its sizes'} does not hold")
        if isinstance(condition, Expr):
            holds = self._cached(("holds", condition), lambda: self._expression(condition, DType.bool))
        else:
            holds = self.cast(condition, DType.bool)
        if rank:
            places = self.emit("Where", holds, self.const(list(range(rank))), self.const(rank))
            looked = sizes = self.emit("Gather", self.emit("Shape", x), places, axis=0)
            made: OnnxValue = self.emit("Reshape", x, sizes, shape=x.type.shape)
        else:
            row = self.emit("Reshape", x, self.const([1]), shape=(1,))
            looked = self.emit("Gather", row, self.emit("Where", holds, self.const(0), self.const(1)), axis=0)
            made = self.emit("Reshape", looked, self.const([], DType.int64), shape=())
        node = looked.value.producer()
        assert node is not None
        said = f"asserts {asserted}" if asserted else f"needs {condition}"
        node.name = f"{node.name} {said}".replace("'", "`")
        return made

    def nonempty(self, x: OnnxValue, dim: Any) -> OnnxValue:
        """`x`, in runs where these axes have elements: onnxruntime finds a largest of none but in these types."""
        if x.type.rank and not x.type.dtype.is_float and x.type.dtype is not DType.int64:
            for size in dict.fromkeys(x.type.shape[a] for a in self.axes(dim, x)):
                if isinstance(size, Expr) and bounds(size, self.graph.symbols)[0] < 1:
                    x = self.require(x, d.call("gt", size, 0))
        return x

    def wanted(self, index: int) -> bool:
        """True if something reads this result of the node."""
        graph, value = self.driver.scopes[-1], self.node.outputs[index]
        return value in graph.uses or value in graph.results.values()

    def shared(self, key: Any, make: Callable[[], OnnxValue]) -> OnnxValue:
        """What `make` emits, once for all nodes that ask with the same key."""
        return self._cached(key, make)

    def steps(self, count: Dim, step: Dim = 1, first: Dim = 0) -> OnnxValue:
        """`first, first + step, ...`: `count` numbers in int64."""
        if is_static(known := (count, step, first)):
            return self.constant(np.arange(known[0], dtype=np.int64) * known[1] + known[2])
        bounds = (self.scalar(x, DType.int64) for x in (first, first + count * step, step))
        return self.emit("Range", *bounds, shape=(count,))
