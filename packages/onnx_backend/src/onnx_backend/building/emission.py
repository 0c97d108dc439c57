"""Emission: one node at a time, checked against the opset's schema, its result's type worked out."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import onnx_ir

from ir.dims import Dim, Expr
from ir.graph import Graph, Node
from ir.helper import OpHelper
from ir.opened import Place
from ir.ops import reads_numbers_in_float32
from ir.types import DType, TensorType
from onnx_backend.building import wide_integers
from onnx_backend.building.devices import ORIGIN
from onnx_backend.building.double import FORMS, apart
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.building.kernels import gaps, runs, work_type
from onnx_backend.building.names import PLACE, Names, metadata, node_name
from onnx_backend.building.products import by_column, of_perhaps_empty, of_turned_before_cast, scaled_once, unfused
from onnx_backend.building.schema import OpSchema, bind_types, first_opset, near, op_schema
from onnx_backend.building.shapes import infer
from onnx_backend.building.values import OnnxValue


@dataclass
class Scope:
    """Where nodes go: the main graph, a branch of it, or a function (which sees nothing outside of itself)."""

    nodes: list[onnx_ir.Node] = field(default_factory=list)
    sizes: dict[Any, OnnxValue] = field(default_factory=dict)
    constants: dict[Any, OnnxValue] = field(default_factory=dict)
    axes: dict[Expr, tuple[OnnxValue, int]] = field(default_factory=dict)  # values that have an axis of this size
    function: bool = False


WAY_OUT = {DType.float64: "; compute in float32 in the model, or allow that with allow_narrowing=True"}
_BY_BODY = frozenset({"If", "Loop", "Scan"})  # whose results have the types that their bodies tell


class Emitter(OpHelper[OnnxValue]):
    """The scopes that nodes go to, their names, and `emit`."""

    value_class = OnnxValue
    target: Any

    @abc.abstractmethod
    def sizes(self, dims: Any) -> OnnxValue:
        """Dimensions as an int64 tensor of rank 1."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.node = Node("ir::graph", {}, ())  # until the first one is lowered; a graph may have none
        self.opset: int = target.opset
        self.scopes = [Scope()]
        self.domains: dict[str, int] = {"": self.opset}
        self.names = Names({v.name for v in graph.inputs} | set(graph.results))
        self.node_names = Names()

    def node_of(
        self, domain: str, op: str, inputs: Sequence[OnnxValue | None], attributes: Sequence[onnx_ir.Attr],
        outputs: Sequence[onnx_ir.Value],
    ) -> onnx_ir.Node:  # fmt: skip
        """A node named after its place in the model."""
        place, path = self.driver.root_node, self.driver.path
        made = onnx_ir.Node(
            domain, op, [v.value if v is not None else None for v in inputs], attributes, outputs=outputs,
            name=self.node_names.unique(node_name(place, path)),
            metadata_props=metadata(place, path) if self.target.metadata else None,
        )  # fmt: skip
        made.meta[PLACE] = Place.of(place)
        if self.target.devices is not None:
            made.meta[ORIGIN] = place.origin
        return made

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def home(self) -> Scope:
        """The scope that constants and weights go to: the function being written, else the main graph."""
        return next((s for s in reversed(self.scopes) if s.function), self.scopes[0])

    # -- emission --------------------------------------------------------------------------------------------------

    def _where_condition(self, condition: Any, second: Any) -> Any:
        """The condition of a Where, without Not: onnxruntime turns the choices round and loses the second's -0.0."""
        negation = condition.made_by("Not")
        if negation is None or second.array is not None or not second.type.dtype.is_float:
            return condition
        return self.emit("Xor", OnnxValue(negation.inputs[0], condition.type), True)

    @overload
    def emit(
        self, op: str, *inputs: Any, outputs: None = None, dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Dim] | None = None, **attributes: Any,
    ) -> OnnxValue: ...  # fmt: skip
    @overload
    def emit(
        self, op: str, *inputs: Any, outputs: int, dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Dim] | None = None, **attributes: Any,
    ) -> Any: ...  # fmt: skip
    def emit(
        self,
        op: str,
        *inputs: Any,
        outputs: int | None = None,
        dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Dim] | None = None,
        **attributes: Any,
    ) -> Any:
        """Add one node and return its result, or a list of its results.

        Args:
            op: an ONNX op ("Add") or one of another domain ("com.example::Foo").
            inputs: values; None for an optional input left out; a number, a list of numbers or of dimensions becomes
                a constant of the element type that the schema asks for.
            outputs: how many results; by default as many as the schema demands.
            dtype, shape: the type of the result where it does not follow from the schema and the inputs. Without a
                shape a result's rank must not be asked for.
            attributes: by name; None leaves one out, a DType becomes its number.

        Raises:
            RefusedError: the opset has no such op, or the op does not take this element type.
            TypeError: there is no such op, or it has no such attribute or too few inputs: a mistake in the handler.
        """
        domain, _, name = op.removeprefix("ai.onnx::").rpartition("::")
        schema = None if domain else self._schema(name)
        values = self._operands(name, schema, list(inputs))
        if schema is not None:  # EyeLike and RandomNormal have attributes of these names
            attributes |= {k: v for k, v in (("dtype", dtype), ("shape", shape)) if k in schema.attributes}
            floats = {k for k, is_float in schema.attributes.items() if is_float} & attributes.keys()
            attributes |= {k: float(v) for k in floats if type(v := attributes[k]) in (int, bool)}
        given = {k: v for k, v in attributes.items() if v is not None}
        if dynamic := next((k for k, v in given.items() if _is_dynamic(v)), None):
            self.refuse(f"{op}'s {dynamic} is {given[dynamic]}, which is only known at run time")
        if name == "MatMul" and schema is not None:
            values = [unfused(self, scaled_once(self, v)) for v in values]
            made = by_column(self, *values) or of_perhaps_empty(self, *values) or of_turned_before_cast(self, *values)
            if made is not None:
                return made
        if name == "Where" and schema is not None:
            values[0] = self._where_condition(values[0], values[2])
        if schema is not None and self._is_double(values):
            if name in FORMS:
                return FORMS[name](self, *values, **given)
            values = apart(self, name, values)
        if schema is not None and name in wide_integers.FORMS and self.is_wide(name, values[0]):
            return wide_integers.FORMS[name](self, *values)
        if domain:
            self.use_domain(domain)
        count = outputs or (max(1, schema.min_outputs) if schema else 1)
        results = self._added(domain, name, schema, values, given, (count, dtype, shape))
        return results if count > 1 else results[0]

    def emit_kernel(self, op: str, *inputs: Any) -> Any:
        """As `emit`, by onnxruntime's own kernel even where `emit` would write the op in others."""
        schema = self._schema(op)
        return self._added("", op, schema, self._operands(op, schema, list(inputs)), {}, (1, None, None))[0]

    def _added(
        self, domain: str, name: str, schema: OpSchema | None, values: list[OnnxValue | None], given: dict[str, Any],
        wanted: tuple[int, Any, Any],
    ) -> list[OnnxValue]:  # fmt: skip
        """The node, through a wider element type where onnxruntime has no kernel for that of its operands."""
        cast_back: dict[str, DType] = {}
        count, dtype, shape = wanted
        if schema is not None:
            values, cast_back, through = self._through(name, schema, values)
            self._check(name, schema, values, given)
            self._exact(name, values, given)
        types = self._types(name, schema, values, given, count, dtype, shape)
        results = [onnx_ir.Value(name=self.names.unique(f"{self.node.name}.{name}")) for _ in range(count)]
        self.scope.nodes.append(
            self.node_of(domain, name, values, [_attribute(k, v) for k, v in given.items()], results)
        )
        made = [OnnxValue(r, t) for r, t in zip(results, types, strict=True)]
        variables = [schema.output(i).variable for i in range(count)] if cast_back and schema is not None else []
        for m, v in zip(made, variables, strict=False):
            m.type = m.type.with_dtype(through.get(v, m.type.dtype))
        self._note(name, made)
        return [self.cast(m, cast_back.get(v)) for m, v in zip(made, variables, strict=True)] if variables else made

    def _is_double(self, values: list[OnnxValue | None]) -> bool:
        """True of float64 whose digits are to be kept."""
        first = values[0].type.dtype if values and values[0] is not None else None
        return first is DType.float64 and not self.target.allow_narrowing

    def is_wide(self, op: str, x: OnnxValue | None) -> bool:
        """True if onnxruntime computes this op in int64, and the numbers may lie outside of int32."""
        schema = op_schema(op, self.opset)
        if schema is None or x is None or x.type.dtype not in (DType.int64, DType.uint32):
            return False
        first = schema.input(0)
        return first is not None and work_type(op, self.opset, first.variable, x.type.dtype) is DType.int64

    def _note(self, op: str, made: list[OnnxValue]) -> None:
        """Types in the file where metadata is asked for; where a size can be read later that takes work to compute."""
        if self.target.metadata and op not in _BY_BODY:
            for m in made:
                m.describe()
        if op != "Shape" and made[0].type.shape is not None:
            for axis, size in enumerate(made[0].type.shape):
                if isinstance(size, Expr) and size.as_symbol is None:
                    self.scope.axes.setdefault(size, (made[0], axis))

    def use_domain(self, domain: str) -> None:
        """Import a domain beside the standard one, at the version that the target was given for it."""
        self.domains.setdefault(domain, self.target.custom_opsets.get(domain, 1))

    def has(self, op: str) -> bool:
        """True if the opset being written has the op."""
        return op_schema(op, self.opset) is not None

    def _schema(self, op: str) -> OpSchema:
        schema = op_schema(op, self.opset)
        if schema is not None and runs(op, self.opset):
            return schema
        if schema is not None:
            last = max(v for v in range(1, self.opset) if runs(op, v))
            self.refuse(f"onnxruntime has no kernel for {op} of opset {self.opset}; use opset={last}")
        first = first_opset(op)
        if first is None:  # no refusal, which would have the op written as its decomposition
            raise TypeError(f"{op} is no ONNX op{near(op)}")
        return self.refuse(f"it needs {op}, which opset {self.opset} does not have; use opset={first}")

    def _operands(self, op: str, schema: OpSchema | None, inputs: list[Any]) -> list[OnnxValue | None]:
        while inputs and inputs[-1] is None:
            inputs.pop()
        known = [x.type.dtype if isinstance(x, OnnxValue) else None for x in inputs]
        bound = bind_types(schema, known) if schema else {}
        floats = {f.variable for i, x in enumerate(inputs) if schema and _is_float(x) and (f := schema.input(i))}
        result: list[OnnxValue | None] = []
        for i, x in enumerate(inputs):
            if x is None or isinstance(x, OnnxValue):
                result.append(x)
                continue
            formal = schema.input(i) if schema else None
            wanted = bound.get(formal.variable) if formal else None
            if formal and wanted is None and known[0] is not None and known[0].is_float and known[0] in formal.allowed:
                wanted = known[0]  # the exponent of Pow
            if formal and wanted is None:
                wanted = DType.float32 if formal.variable in floats else DType.int64
                wanted = wanted if wanted in formal.allowed else next(iter(formal.allowed), None)
            if isinstance(x, (list, tuple)) and any(isinstance(e, Expr) for e in x):
                result.append(self.sizes(x))
            else:
                if wanted is DType.bfloat16 and formal and reads_numbers_in_float32(self.node.op):
                    wanted = work_type(op, self.opset, formal.variable, wanted)
                result.append(self.tensor(x, wanted))
        return result

    def _through(
        self, op: str, schema: OpSchema, values: list[OnnxValue | None]
    ) -> tuple[list[OnnxValue | None], dict[str, DType], dict[str, DType]]:
        """Operands in types that opset and onnxruntime's kernels take; the type variables' types, then and now."""
        cast_back: dict[str, DType] = {}
        through: dict[str, DType] = {}
        for i, v in enumerate(values):
            formal = schema.input(i)
            if v is None or formal is None or formal.variable in through:
                continue
            work = work_type(op, self.opset, formal.variable, v.type.dtype, self.target.allow_narrowing)
            if work is v.type.dtype and work in gaps(op, self.opset).get(formal.variable, ()):
                self.refuse(f"onnxruntime has no kernel of {op} for {work}{WAY_OUT.get(work, '')}")
            if work is not v.type.dtype:
                cast_back[formal.variable] = v.type.dtype
                through[formal.variable] = work
        if through:
            formals = [schema.input(i) for i in range(len(values))]
            values = [
                self.cast(v, through.get(f.variable)) if v is not None and f is not None else v
                for v, f in zip(values, formals, strict=True)
            ]
        return values, cast_back, through

    def _exact(self, op: str, values: list[OnnxValue | None], attributes: dict[str, Any]) -> None:
        """Refuse an attribute that loses digits beside float64: ONNX has them in float32."""
        if not self._is_double(values):
            return
        for name, value in attributes.items():
            if isinstance(value, float) and math.isfinite(value) and float(np.float32(value)) != value:
                self.refuse(f"ONNX keeps {op}'s {name}={value} in float32{WAY_OUT[DType.float64]}")

    def _check(self, op: str, schema: OpSchema, values: list[OnnxValue | None], attributes: dict[str, Any]) -> None:
        unknown = attributes.keys() - schema.attributes.keys()
        missing = schema.required - attributes.keys()
        if unknown or missing:
            raise TypeError(f"{op} at opset {self.opset}: unknown attributes {unknown}, missing {missing}")
        if len(values) < schema.min_inputs:
            raise TypeError(f"{op} at opset {self.opset} takes {schema.min_inputs} inputs, got {len(values)}")
        bound: dict[str, DType] = {}
        for i, v in enumerate(values):
            formal = schema.input(i)
            if formal is None:
                raise TypeError(f"{op} at opset {self.opset} takes no input {i}")
            if v is None:
                continue
            dtype = v.type.dtype
            if formal.allowed and dtype not in formal.allowed:
                out = WAY_OUT.get(dtype, "")
                self.refuse(f"ONNX's {op} at opset {self.opset} does not take {dtype} for {formal.name}{out}")
            if bound.setdefault(formal.variable, dtype) is not dtype and not formal.variadic:
                raise TypeError(f"{op}: {formal.name} is {dtype}, another operand of the same type is {bound}")

    def _types(
        self,
        op: str,
        schema: OpSchema | None,
        values: list[OnnxValue | None],
        attributes: dict[str, Any],
        count: int,
        dtype: DType | Sequence[DType] | None,
        shape: Sequence[Dim] | None,
    ) -> list[TensorType]:
        bound = bind_types(schema, [v.type.dtype if v else None for v in values]) if schema else {}
        shapes = [v.type.shape for v in values if v is not None]
        first = tuple(shape) if shape is not None else infer(op, shapes, attributes) if schema else None
        result = []
        for i in range(count):
            if isinstance(dtype, DType):
                element: DType | None = dtype
            elif dtype is not None:
                element = dtype[i]
            else:
                element = self._result_dtype(schema, i, bound, attributes)
            if element is None:
                element = values[0].type.dtype if values and values[0] else DType.float32
            result.append(TensorType(element, first if i == 0 or shape is not None else None))  # type: ignore[arg-type]
        return result

    @staticmethod
    def _result_dtype(
        schema: OpSchema | None, index: int, bound: dict[str, DType], attributes: dict[str, Any]
    ) -> DType | None:
        asked = attributes.get("to", attributes.get("dtype", attributes.get("output_datatype")))
        if isinstance(asked, DType):
            return asked
        if schema is None or not schema.outputs:
            return None
        formal = schema.outputs[min(index, len(schema.outputs) - 1)]
        if formal.variable in bound:
            return bound[formal.variable]
        return next(iter(formal.allowed)) if len(formal.allowed) == 1 else None


def _is_float(x: Any) -> bool:
    """True for a Python float and for a list with one."""
    return isinstance(x, float) or (isinstance(x, (list, tuple)) and any(isinstance(e, float) for e in x))


def _is_dynamic(x: Any) -> bool:
    """True for a size that no attribute can hold, and for a list with one."""
    return isinstance(x, Expr) or (isinstance(x, (list, tuple)) and any(isinstance(e, Expr) for e in x))


def _attribute(name: str, value: Any) -> onnx_ir.Attr:
    if isinstance(value, onnx_ir.Attr):
        return value
    if isinstance(value, DType):
        return onnx_ir.AttrInt64(name, int(TO_ONNX[value]))
    if isinstance(value, np.ndarray):
        return onnx_ir.AttrTensor(name, onnx_ir.tensor(value))
    if isinstance(value, bool):
        return onnx_ir.AttrInt64(name, int(value))
    return onnx_ir.convenience.convert_attribute(name, list(value) if isinstance(value, tuple) else value)
