"""HloHelper: the verbs of a StableHLO handler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from iree.compiler import ir as mlir

from ir.errors import RefusedError
from ir.graph import Body, Graph, Value, Weight
from ir.types import DType, TensorType
from stablehlo_backend.building.builder import Region
from stablehlo_backend.building.values import ELEMENT, HloValue, as_signed, literal, repeats, spelled
from stablehlo_backend.building.verbs import Verbs
from stablehlo_backend.format.module import UNNAMED, Module

SMALL = 64  # constants of more elements lie beside the module


class HloHelper(Verbs):
    """Builds one Module."""

    value_class = HloValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.tensors: dict[str, Any] = {}  # what lies beside the module, by name
        self._labels: dict[Any, str] = {}
        self._weights: list[Weight] = []
        self._functions: dict[Graph, str | None] = {}
        self._main = self.builder.open("main")

    # -- emit ------------------------------------------------------------------------------------------------------

    @overload
    def emit(
        self, op: str, *inputs: Any, type: TensorType | None = None, regions: Sequence[Region] = (), **attributes: Any
    ) -> HloValue: ...
    @overload
    def emit(
        self, op: str, *inputs: Any, type: Sequence[TensorType], regions: Sequence[Region] = (), **attributes: Any
    ) -> list[HloValue]: ...
    def emit(
        self,
        op: str,
        *inputs: Any,
        type: TensorType | Sequence[TensorType] | None = None,
        regions: Sequence[Region] = (),
        **attributes: Any,
    ) -> Any:
        """Add one operation, of StableHLO unless its dialect is named; MLIR's own verifier looks at it at once.

        Args:
            op: "add", "chlo.erf".
            inputs: values; numbers too.
            type: the type of the result, or a sequence where a list is wanted. None: operands and result have one
                type, to which numbers are spread and tensors broadcast.
            regions: see `region`.
            attributes: by name: numbers, truth values, lists, or text as it stands in MLIR.

        Raises:
            RefusedError: an element type that StableHLO has not.
            TypeError: the operation does not verify: a mistake in the handler.
        """
        operands = inputs if type is not None else self.align(*inputs)
        type = operands[0].type if type is None else type
        types = [type] if isinstance(type, TensorType) else list(type)
        for t in types:
            self._known(t.dtype)
        # IREE knows signed integers alone outside of StableHLO, and reverses no others of a dynamic size
        if (op.startswith("tensor.") or op == "reverse") and types[0].dtype.kind == "uint":
            signed = self.emit("bitcast_convert", inputs[0], type=as_signed(inputs[0].type))
            made = self.emit(op, signed, *inputs[1:], type=as_signed(types[0]), **attributes)
            return self.emit("bitcast_convert", made, type=types[0])
        given = [x if isinstance(x, mlir.Value) else self.tensor(x).name for x in operands]
        name = op if "." in op else f"stablehlo.{op}"
        names = self.builder.operation(name, given, [spelled(t) for t in types], regions, attributes)
        results = [HloValue(n, t) for n, t in zip(names, types, strict=True)]
        return results[0] if isinstance(type, TensorType) else results

    def _known(self, dtype: DType) -> None:
        """Refuse element types that have no name here."""
        if dtype not in ELEMENT:
            self.refuse(f"it has a tensor of {dtype}, which this target does not take; cast it in the model")

    def bind(self, result: HloValue, value: Value) -> HloValue:
        """The result with the sizes that torch knows."""
        shape = result.type.shape
        exact = [w if isinstance(w, int) or not isinstance(d, int) else d for d, w in zip(shape, value.type.shape)]
        made = self.retyped(result, value.type.with_shape(exact))
        return HloValue(made.name, value.type.with_shape(exact), result.source)

    # -- constants, inputs, weights --------------------------------------------------------------------------------

    def constant(self, array: np.ndarray, name: str = "") -> HloValue:
        """A constant: in the text where it is small, beside the module where it is not."""
        type = TensorType(DType[array.dtype.name], array.shape)
        self._known(type.dtype)
        key = ("constant", type, array.tobytes())
        if array.size > SMALL and not repeats(array):
            return self._stored(key, name or "constant", type, array)
        text = f"{literal(array)} : {spelled(type)}"
        return self.builder.once(key, lambda: self.emit("constant", value=text, type=type))

    def weight(self, value: Value, weight: Weight) -> HloValue:
        """A weight by its name in the model, read from the archive beside the module."""
        self._taken(value.type.dtype, weight.name)
        if 0 in value.type.shape:
            return self.constant(weight.numpy())
        self._weights.append(weight)  # so that no other takes its id
        one = weight if weight.tensor is None else weight.tensor  # bodies have constants of one name and other contents
        return self._stored((weight.name, id(one)), weight.name, value.type, weight.numpy)

    def _taken(self, dtype: DType, what: str) -> None:
        if dtype not in ELEMENT:
            reason = f"it is a tensor of {dtype}, which this target does not take; cast it in the model"
            raise RefusedError(f"target {self.target.name!r} refuses {what}: {reason}")

    def _stored(self, key: Any, name: str, type: TensorType, source: Any) -> HloValue:
        """A tensor of the archive; truth values lie there as bytes, unsigned integers by their bits."""
        kept = type.with_dtype(DType.int8) if type.dtype is DType.bool else as_signed(type)
        if key not in self._labels:
            name = next(n for n in (name + "_" * i for i in itertools.count()) if n not in self.tensors)
            self._labels[key], self.tensors[name] = name, source
            quoted = _quoted(name)
            place = f'#stream.parameter.named<"model"::{quoted}>'
            self.builder.declare(f"util.global private @{quoted} = {place} : {spelled(kept)}")
        symbol = f"@{_quoted(self._labels[key])}"

        def load() -> HloValue:
            attributes: dict[str, Any] = {"global": symbol}  # a word of Python's
            loaded = self.emit("util.global.load", type=kept, **attributes)
            if type.dtype.kind == "uint":  # which IREE knows in StableHLO alone
                return self.emit("bitcast_convert", loaded, type=type)
            return self.cast(loaded, type.dtype)

        return self.builder.once(("stored", symbol), load)

    def input(self, value: Value) -> HloValue:
        self._taken(value.type.dtype, f"input {value.name!r}")
        return HloValue(self.builder.argument(spelled(value.type)), value.type)

    def convert(self, x: HloValue, dtype: DType) -> HloValue:
        """`x` in another element type, by torch's rules: what is not zero is true, integers wrap, floats are cut."""
        self._known(dtype)
        if dtype is DType.bool:
            return self.compare("NE", x, 0)
        if x.type.dtype.is_float and dtype.is_integer and dtype is not DType.int64:
            x = self.convert(x, DType.int64)  # a narrower one wraps
        # IREE reads the operand of a product before a conversion to more bits, and always with a sign
        if x.type.dtype is DType.bool:
            return self.where(x, self.const(1, dtype), 0)
        if x.type.dtype.kind == "uint" and dtype.bits > x.type.dtype.bits:
            between = DType[f"{'u' if dtype.kind == 'int' else ''}int{dtype.bits}"]
            x = self.emit("convert", x, type=x.type.with_dtype(between))
        return self.emit("convert", x, type=x.type.with_dtype(dtype))

    # -- functions -------------------------------------------------------------------------------------------------

    def call(self, body: Body, inputs: Sequence[HloValue]) -> Sequence[HloValue]:
        """A call of the private function that holds a body; in place where it needs a size of what is around it."""
        graph = body.graph
        if graph not in self._functions:
            try:
                self._define(graph, (body.name or graph.name).replace("::", "."))
            except RefusedError:
                self._functions[graph] = None
        name = self._functions[graph]
        if name is None:
            return self.inline(graph, inputs)
        operands = self.typed(inputs, [v.type for v in graph.inputs])
        types = [v.type for v in graph.outputs]
        return list(self.emit("func.call", *operands, type=types, callee=f"@{_quoted(name)}"))

    def _define(self, graph: Graph, wish: str) -> None:
        taken = {"main", *self._functions.values()}
        names = itertools.chain([wish], (f"{wish}.{i}" for i in itertools.count(2)))
        name = self._functions[graph] = next(n for n in names if n not in taken)
        depth, function = len(self.builder.scopes), self.builder.open(name, sym_visibility="private")
        try:
            with self.driver.isolated():
                made = self.inline(graph, [self.input(v) for v in graph.inputs])
                self.builder.close(function, [r.name for r in self.typed(made, [v.type for v in graph.outputs])])
        except BaseException:
            function.erase()
            del self.builder.scopes[depth:]
            raise

    def finish(self, results: dict[str, HloValue]) -> Module:
        """The module: one public function `main`, private ones for bodies, and the tensors beside it.

        Raises:
            TypeError: it does not verify: a mistake in a handler.
        """
        types = {name: v.type for name, v in self.graph.results.items()}
        self.builder.close(self._main, [r.name for r in self.typed(list(results.values()), list(types.values()))])
        takes = ", ".join(f"{v.name}: {v.type}" for v in self.graph.inputs)
        gives = ", ".join(f"{name}: {t}" for name, t in types.items())
        told = f'{{{UNNAMED}, inputs = "{takes}", outputs = "{gives}"}}'
        kinds = tuple(v.type.dtype for v in self.graph.inputs), tuple(t.dtype for t in types.values())
        return Module(self.builder.text(self._main, told), dict(self.tensors), *kinds)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
