"""HloHelper: the verbs of a StableHLO handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir.errors import RefusedError
from ir.graph import Body, Graph, Value, Weight
from ir.types import DType, TensorType
from stablehlo_backend.building.values import ELEMENT, HloValue, as_signed, literal, spelled
from stablehlo_backend.building.verbs import Verbs
from stablehlo_backend.format.module import UNNAMED, Module

# of StableHLO: operands and result have one type, so that numbers among the operands are spread
_WORDS = (
    "abs add and atan2 cbrt ceil cosine count_leading_zeros divide exponential exponential_minus_one floor log "
    "log_plus_one logistic maximum minimum multiply negate not or popcnt power remainder round_nearest_afz "
    "round_nearest_even rsqrt shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh "
    "xor chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.cosh chlo.erf chlo.erfc chlo.erf_inv "
    "chlo.lgamma chlo.sinh"
)
POINTWISE = frozenset(_WORDS.split())
SMALL = 64  # constants of more elements lie beside the module


class HloHelper(Verbs):
    """Builds one Module."""

    value_class = HloValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.inputs: list[HloValue] = []
        self.tensors: dict[str, Any] = {}  # what lies beside the module, by name
        self._keys: dict[Any, str] = {}
        self._weights: list[Weight] = []
        self._functions: dict[Graph, str | None] = {}

    # -- emit ------------------------------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        *inputs: Any,
        type: TensorType | Sequence[TensorType] | None = None,
        regions: Sequence[str] = (),
        **attributes: Any,
    ) -> Any:
        """Add one operation, of StableHLO unless its dialect is named; MLIR's own verifier looks at it at once.

        Args:
            op: "add", "chlo.erf".
            inputs: values; numbers too where all operands have one type, which are spread then.
            type: the type of the result, or a sequence where a list is wanted. None is the operands' own where all
                have one type, else the node's results.
            regions: see `Builder.region`.
            attributes: by name: numbers, truth values, lists, or text as it stands in MLIR.

        Raises:
            RefusedError: an element type that StableHLO has not.
            TypeError: the operation does not verify: a mistake in the handler.
        """
        operands: Sequence[Any]
        if op in POINTWISE:
            operands = self.align(*inputs)
            type = type or operands[0].type
        else:
            operands = [x if isinstance(x, tuple) else self.tensor(x) for x in inputs]
        if op.startswith("tensor.") and isinstance(type, TensorType) and type.dtype.kind == "uint":
            wanted = type
            return self.signless(lambda x: self.emit(op, x, *inputs[1:], type=as_signed(wanted)), operands[0])
        several = not isinstance(type, TensorType) if type is not None else self.node.returns != "one"
        types = [type] if isinstance(type, TensorType) else list(type or self.results)
        for t in types:
            self.known(t.dtype)
        given = [x if isinstance(x, tuple) else (x.name, spelled(x.type)) for x in operands]
        name = op if "." in op else f"stablehlo.{op}"
        names = self.builder.operation(name, given, [spelled(t) for t in types], regions, attributes)
        made = [HloValue(n, t) for n, t in zip(names, types, strict=True)]
        return made if several else made[0]

    def signless(self, make: Callable[[HloValue], HloValue], x: HloValue) -> HloValue:
        """What `make` gives of the bits: IREE knows signed integers alone outside of StableHLO."""
        made = make(self.emit("bitcast_convert", x, type=as_signed(x.type)))
        return self.emit("bitcast_convert", made, type=made.type.with_dtype(x.type.dtype))

    def known(self, dtype: DType) -> None:
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
        self.known(type.dtype)
        key = ("constant", type, array.tobytes())
        if array.size > SMALL and not _repeats(array):
            return self._stored(key, name or "constant", type, array)

        def make() -> HloValue:
            text = f"{literal(array, type.dtype)} : {spelled(type)}"
            return self.emit("constant", value=text, type=type)

        return self.builder.once(key, make)

    def weight(self, value: Value, weight: Weight) -> HloValue:
        """A weight by its name in the model, read from the archive beside the module."""
        if value.type.dtype not in ELEMENT:
            reason = f"it is a tensor of {value.type.dtype}, which this target does not take"
            raise RefusedError(f"target {self.target.name!r} refuses {weight.name}: {reason}")
        if 0 in value.type.shape:
            return self.constant(weight.numpy())
        self._weights.append(weight)  # so that no other takes its id
        one = weight if weight.tensor is None else weight.tensor  # bodies have constants of one name and other contents
        return self._stored((weight.name, id(one)), weight.name, value.type, weight.numpy)

    def _stored(self, key: Any, name: str, type: TensorType, source: Any) -> HloValue:
        """A tensor of the archive; truth values lie there as bytes."""
        if key not in self._keys:
            label = name
            while label in self.tensors:
                label += "_"
            self._keys[key] = label
            self.tensors[label] = source
            kind = spelled(type.with_dtype(DType.int8) if type.dtype is DType.bool else type)
            quoted = label.replace("\\", "\\\\").replace('"', '\\"')
            self.builder.globals[label] = (
                f'util.global private @"{quoted}" = #stream.parameter.named<"model"::"{quoted}"> : {kind}'
            )
        label = self._keys[key]

        def load() -> HloValue:
            stored = type.with_dtype(DType.int8) if type.dtype is DType.bool else type
            made = HloValue(self.builder.fresh("w"), stored)
            quoted = label.replace("\\", "\\\\").replace('"', '\\"')
            self.builder.line(f'{made.name} = util.global.load @"{quoted}" : {spelled(stored)}')
            return self.cast(made, type.dtype)

        return self.builder.once(("stored", label), load)

    def input(self, value: Value) -> HloValue:
        if value.type.dtype not in ELEMENT:
            reason = f"it is a tensor of {value.type.dtype}, which this target does not take; cast it in the model"
            raise RefusedError(f"target {self.target.name!r} refuses input {value.name!r}: {reason}")
        made = HloValue(self.builder.fresh("arg"), value.type)
        self.inputs.append(made)
        return made

    def convert(self, x: HloValue, dtype: DType) -> HloValue:
        """`x` in another element type, by torch's rules: what is not zero is true, integers wrap, floats are cut."""
        self.known(dtype)
        if dtype is DType.bool:
            return self.compare("NE", x, self.const(0, x.type.dtype))
        if x.type.dtype.is_float and dtype.is_integer and dtype is not DType.int64:
            x = self.convert(x, DType.int64)  # a narrower one wraps
        return self.emit("convert", x, type=x.type.with_dtype(dtype))

    # -- functions -------------------------------------------------------------------------------------------------

    def call(self, body: Body, inputs: Sequence[HloValue]) -> Sequence[HloValue]:
        """A call of the private function that holds a body; in place where it needs a size of what is around it."""
        graph = body.graph
        if graph not in self._functions:
            try:
                self._functions[graph] = self._function(graph, body.name or graph.name)
            except RefusedError:
                self._functions[graph] = None
        name = self._functions[graph]
        if name is None:
            return self.inline(graph, inputs)
        operands = [self.retyped(x, v.type) for x, v in zip(inputs, graph.inputs, strict=True)]
        kinds = ", ".join(spelled(v.type) for v in graph.outputs)
        results = [HloValue(self.builder.fresh(), v.type) for v in graph.outputs]
        given = f"({', '.join(x.name for x in operands)}) : ({', '.join(spelled(x.type) for x in operands)})"
        made = f"{', '.join(r.name for r in results)} = " if results else ""
        self.builder.line(f'{made}func.call @"{name}"{given} -> ({kinds})')
        return results

    def _function(self, graph: Graph, wish: str) -> str:
        name, count = wish.replace("::", "."), 2
        while f'@"{name}"' in "".join(f.partition("(")[0] for f in self.builder.functions):
            name, count = f"{wish.replace('::', '.')}.{count}", count + 1
        with self.driver.isolated(), self.builder.nested(True) as block:
            formals = [HloValue(self.builder.fresh("arg"), v.type) for v in graph.inputs]
            made = self.inline(graph, formals)
            results = [self.retyped(r, v.type) for r, v in zip(made, graph.outputs, strict=True)]
        self._define(f'private @"{name}"', formals, results, [v.type for v in graph.outputs], block.lines)
        return name

    def _define(
        self,
        name: str,
        inputs: Sequence[HloValue],
        results: Sequence[HloValue],
        types: Sequence[TensorType],
        lines: Sequence[str],
        reflection: str = "",
    ) -> None:
        taken = ", ".join(f"{x.name}: {spelled(x.type)}" for x in inputs)
        kinds = ", ".join(spelled(t) for t in types)
        end = f"return {', '.join(r.name for r in results)} : {kinds}" if results else "return"
        text = [f"func.func {name}({taken}) -> ({kinds}){reflection} {{", *lines, end, "}"]
        self.builder.functions.append("\n".join(text))

    def finish(self, results: dict[str, HloValue]) -> Module:
        """The module: one public function `main`, private ones for bodies, and the tensors beside it.

        Raises:
            TypeError: it does not verify: a mistake in a handler.
        """
        types = [v.type for v in self.graph.results.values()]
        made = [self.retyped(r, t) for r, t in zip(results.values(), types, strict=True)]
        takes = ", ".join(f"{v.name}: {v.type}" for v in self.graph.inputs)
        gives = ", ".join(f"{name}: {t}" for name, t in zip(results, types, strict=True))
        reflection = f' attributes {{iree.reflection = {{{UNNAMED}, inputs = "{takes}", outputs = "{gives}"}}}}'
        self._define("@main", self.inputs, made, types, self.builder.blocks[0].lines, reflection)
        kinds = [tuple(x.type.dtype for x in xs) for xs in (self.inputs, made)]
        return Module(self.builder.module(), dict(self.tensors), kinds[0], kinds[1])


def _repeats(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    return bool(flat.size) and flat.tobytes() == flat[:1].tobytes() * flat.size
