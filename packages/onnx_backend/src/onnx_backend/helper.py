"""OnnxHelper: the verbs of an ONNX handler. A value is an onnx_ir.Value with our type."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir
from ir import dims as d
from ir.dims import Dim, Expr
from ir.graph import Body, Graph, Node, Value, Weight
from ir.types import DType, TensorType
from onnx_backend.dtypes import TO_ONNX
from onnx_backend.finish import make_model
from onnx_backend.kernels import gaps, runs, work_type
from onnx_backend.schema import OpSchema, bind_types, first_opset, op_schema
from onnx_backend.shapes import infer
from onnx_backend.value import OnnxValue
from onnx_backend.verbs import Verbs

_EXPRESSION_OPS = {"add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "mod": "Mod", "pow": "Pow",
                   "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
                   "and": "And", "or": "Or", "not": "Not", "where": "Where", "sqrt": "Sqrt",
                   "truediv": "Div"}  # fmt: skip


@dataclass
class Scope:
    """Where nodes go: the main graph, a branch of it, or a function (which sees nothing outside of itself)."""

    nodes: list[onnx_ir.Node] = field(default_factory=list)
    sizes: dict[Any, OnnxValue] = field(default_factory=dict)
    constants: dict[Any, OnnxValue] = field(default_factory=dict)
    function: bool = False


class OnnxHelper(Verbs):
    """Builds one onnx_ir.Model."""

    value_class = OnnxValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.node = Node("ir::graph", {}, ())  # until the first one is lowered; a graph may have none
        self.opset: int = target.opset
        self.scopes = [Scope()]
        self.inputs: list[OnnxValue] = []
        self.initializers: dict[Any, onnx_ir.Value] = {}
        self.functions: dict[Graph, onnx_ir.Function] = {}
        self.domains: dict[str, int] = {"": self.opset}
        self.symbols: dict[str, OnnxValue] = {}  # sizes that came into a function as inputs
        self._derived: dict[Any, OnnxValue] = {}
        self._names = {v.name for v in graph.inputs} | set(graph.results)
        self._counts: dict[str, int] = {}

    # -- names -----------------------------------------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """The name, or the name with a number behind it if it is taken."""
        name = re.sub(r"[^\w./:-]", "_", name)
        if name in self._names:
            n = self._counts.get(name, 0) + 1
            while f"{name}_{n}" in self._names:
                n += 1
            self._counts[name] = n
            name = f"{name}_{n}"
        self._names.add(name)
        return name

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    # -- emission --------------------------------------------------------------------------------------------------

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
            TypeError: the op has no such attribute or too few inputs: a mistake in the handler.
        """
        domain, _, name = op.rpartition("::")
        schema = None if domain else self._schema(name)
        values = self._operands(name, schema, list(inputs))
        if schema is not None:  # EyeLike and RandomNormal have attributes of these names
            attributes |= {k: v for k, v in (("dtype", dtype), ("shape", shape)) if k in schema.attributes}
        given = {k: v for k, v in attributes.items() if v is not None}
        detour: dict[str, DType] = {}
        if schema is not None:
            values, detour, through = self._through(name, schema, values)
            self._check(name, schema, values, given)
        elif domain:
            self.domains.setdefault(domain, 1)
        count = outputs or (max(1, schema.min_outputs) if schema else 1)
        types = self._types(name, schema, values, given, count, dtype, shape)
        results = [onnx_ir.Value(name=self.unique(f"{self.node.name}.{name}")) for _ in range(count)]
        node = onnx_ir.Node(
            domain,
            name,
            [v.value if v is not None else None for v in values],
            [_attribute(k, v) for k, v in given.items()],
            outputs=results,
        )
        self.scope.nodes.append(node)
        made = [OnnxValue(r, t) for r, t in zip(results, types, strict=True)]
        if detour and schema is not None:
            variables = [schema.output(i).variable for i in range(count)]
            for m, v in zip(made, variables, strict=True):
                m.type = m.type.with_dtype(through.get(v, m.type.dtype))
            made = [self.cast(m, detour.get(v)) for m, v in zip(made, variables, strict=True)]
        return made if count > 1 else made[0]

    def has(self, op: str) -> bool:
        """True if the opset being written has the op."""
        return op_schema(op, self.opset) is not None

    def _schema(self, op: str) -> OpSchema:
        schema = op_schema(op, self.opset)
        if schema is None:
            first = first_opset(op)
            needs = f"which opset {self.opset} does not have; use opset={first}" if first else "which is no ONNX op"
            self.refuse(f"it needs {op}, {needs}")
        if not runs(op, self.opset):
            last = max(v for v in range(1, self.opset) if runs(op, v))
            self.refuse(f"onnxruntime has no kernel for {op} of opset {self.opset}; use opset={last}")
        return schema

    def _operands(self, op: str, schema: OpSchema | None, inputs: list[Any]) -> list[OnnxValue | None]:
        while inputs and inputs[-1] is None:
            inputs.pop()
        known = [x.type.dtype if isinstance(x, OnnxValue) else None for x in inputs]
        bound = bind_types(schema, known) if schema else {}
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
                wanted = DType.int64 if DType.int64 in formal.allowed else next(iter(formal.allowed), None)
            if isinstance(x, (list, tuple)) and any(isinstance(e, Expr) for e in x):
                result.append(self.sizes(x))
            else:
                result.append(self.tensor(x, wanted))
        return result

    def _through(
        self, op: str, schema: OpSchema, values: list[OnnxValue | None]
    ) -> tuple[list[OnnxValue | None], dict[str, DType], dict[str, DType]]:
        """Operands in types that the opset allows and onnxruntime has kernels for; type variables' types, then and now."""
        detour: dict[str, DType] = {}
        through: dict[str, DType] = {}
        for i, v in enumerate(values):
            formal = schema.input(i)
            if v is None or formal is None or formal.variable in through:
                continue
            work = work_type(op, self.opset, formal.variable, v.type.dtype)
            if v.type.dtype in gaps(op, self.opset).get(formal.variable, ()) and work is v.type.dtype:
                self.refuse(f"onnxruntime has no kernel of {op} for {work}")
            if work is not v.type.dtype:
                detour[formal.variable] = v.type.dtype
                through[formal.variable] = work
        if through:
            formals = [schema.input(i) for i in range(len(values))]
            values = [
                self.cast(v, through.get(f.variable)) if v is not None and f is not None else v
                for v, f in zip(values, formals, strict=True)
            ]
        return values, detour, through

    def _check(self, op: str, schema: OpSchema, values: list[OnnxValue | None], attributes: dict[str, Any]) -> None:
        unknown = attributes.keys() - schema.attributes
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
                self.refuse(f"ONNX's {op} at opset {self.opset} does not take {dtype} for {formal.name}")
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
        first = tuple(shape) if shape is not None else infer(op, shapes, attributes)
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

    # -- constants, inputs, weights --------------------------------------------------------------------------------

    def constant(self, array: np.ndarray, name: str = "") -> OnnxValue:
        """A constant: an initializer shared by all equal ones, or a Constant node inside a function."""
        array = np.asarray(array)
        dtype = DType[_ML_NAMES.get(array.dtype.name, array.dtype.name)]
        key = (dtype, array.shape, array.tobytes())
        scope = next((s for s in reversed(self.scopes) if s.function), self.scopes[0])
        found = scope.constants.get(key)
        if found is None:
            tensor = onnx_ir.tensor(array, dtype=TO_ONNX[dtype])
            found = self._hold(tensor, TensorType(dtype, array.shape), name or "const", key)
            found.array = array
            scope.constants[key] = found
        return found

    def weight(self, value: Value, weight: Weight) -> OnnxValue:
        """A weight by reference to the model's own tensor."""
        held = self._hold(_tensor(weight), value.type, weight.name, id(weight))
        if weight.type.is_static and d.product(weight.type.shape) == 1:
            held.array = weight.numpy()
        return held

    def derived(
        self, what: Any, sources: Sequence[OnnxValue], make: Callable[..., np.ndarray], shape: Sequence[int]
    ) -> OnnxValue | None:
        """A weight that is made from the model's own when it is written, and shared by all that ask for the same.

        None where one of the sources is computed at run time; `make` gets their content as arrays.
        """
        held = [s.value.const_value for s in sources]
        if any(t is None for t in held):
            return None
        key = (what, *(id(t) for t in held))
        if key not in self._derived:
            type = TensorType(sources[0].type.dtype, tuple(shape))
            tensor = onnx_ir.LazyTensor(
                lambda: onnx_ir.tensor(np.ascontiguousarray(make(*(t.numpy() for t in held))), dtype=held[0].dtype),
                dtype=TO_ONNX[type.dtype],
                shape=onnx_ir.Shape(type.shape),
            )
            self._derived[key] = self._hold(tensor, type, sources[0].name, key)
        return self._derived[key]

    def _hold(self, tensor: Any, type: TensorType, name: str, key: Any) -> OnnxValue:
        function = next((s for s in reversed(self.scopes) if s.function), None)
        value = onnx_ir.Value(name=self.unique(name), type=onnx_ir.TensorType(TO_ONNX[type.dtype]))
        value.shape = onnx_ir.Shape(type.shape)
        if function is not None:
            node = onnx_ir.Node("", "Constant", [], [onnx_ir.AttrTensor("value", tensor)], outputs=[value])
            function.nodes.insert(0, node)
        else:
            tensor.name = value.name
            value.const_value = tensor
            self.initializers[key, len(self.initializers)] = value
        return OnnxValue(value, type)

    def input(self, value: Value) -> OnnxValue:
        """An input with its dynamic dimensions by name."""
        made = OnnxValue(onnx_ir.Value(name=value.name), value.type)
        describe(made)
        self.inputs.append(made)
        return made

    def convert(self, x: OnnxValue, dtype: DType) -> OnnxValue:
        if x.array is not None and not dtype.is_complex and not x.type.dtype.is_complex:
            return self.const(x.array, dtype)
        if dtype.is_complex or x.type.dtype.is_complex:
            self.refuse(f"ONNX's Cast knows no complex numbers ({x.type.dtype} to {dtype})")
        return self._cached(("cast", id(x.value), dtype), lambda: self.emit("Cast", x, to=dtype))

    def bind(self, result: OnnxValue, value: Value) -> OnnxValue:
        """The result under its name in the graph; the type is the graph's."""
        producer = result.value.producer()
        fresh = producer is not None and bool(result.name) and result.name.startswith(f"{self.node.name}.")
        if fresh and value.name not in self._names:
            result.value.name = self.unique(value.name)
        result.type = value.type if result.type.dtype is value.type.dtype else result.type
        return result

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> OnnxValue:
        """A dimension as an int64 tensor of shape [1]."""
        if not isinstance(dim, Expr):
            return self.const([dim], DType.int64)
        return self._cached(dim, lambda: self._expression(dim, DType.int64))

    def sizes(self, dims: Sequence[Dim]) -> OnnxValue:
        """Dimensions as one int64 tensor of shape [n]."""
        if all(isinstance(x, int) for x in dims):
            return self.const(list(dims), DType.int64)
        if len(dims) == 1:
            return self.size(dims[0])
        return self._cached(tuple(dims), lambda: self._concat_sizes(list(dims)))

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

    def _cached(self, key: Any, make: Any) -> OnnxValue:
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
            if fn in ("truediv", "sqrt") or any(a.type.dtype is DType.float64 for a in args):
                args = [a if a.type.dtype is DType.bool else self.cast(a, DType.float64) for a in args]
            return self.emit(_EXPRESSION_OPS[fn], *args)

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
            return self.emit("Reshape", self.cast(value, DType.int64), [1], shape=(1,))
        size = self.size_of(value, source.axis)
        if source.offset:
            size = self.emit("Sub", size, source.offset)
        return self.emit("Div", size, source.scale) if source.scale != 1 else size

    def size_of(self, x: OnnxValue, axis: int) -> OnnxValue:
        """The run-time size of one axis, an int64 tensor of shape [1]."""
        if self.opset >= 15:
            return self.emit("Shape", x, start=axis, end=axis + 1, shape=(1,))
        return self.emit("Gather", self.emit("Shape", x), [axis], axis=0)

    def wanted(self, index: int) -> bool:
        """True if something reads this result of the node."""
        graph, value = self.driver.scopes[-1], self.node.outputs[index]
        return value in graph.uses or value in graph.results.values()

    def shared(self, key: Any, make: Callable[[], OnnxValue]) -> OnnxValue:
        """What `make` emits, once for all nodes that ask with the same key."""
        return self._cached(key, make)

    def steps(self, count: Dim, step: Dim = 1, first: Dim = 0) -> OnnxValue:
        """`first, first + step, ...`: `count` numbers in int64."""
        if all(isinstance(x, int) for x in (count, step, first)):
            return self.constant(np.arange(count, dtype=np.int64) * step + first)
        bounds = (self.scalar(x, DType.int64) for x in (first, first + count * step, step))
        return self.emit("Range", *bounds, shape=(count,))

    def windows(self, count: Dim, size: Dim, step: Dim = 1, dilation: int = 1) -> OnnxValue:
        """The places that each of `count` windows of `size` reads, int64 [count, size]."""
        starts, inside = self.steps(count, step), self.steps(size, dilation)
        if starts.array is not None and inside.array is not None:
            return self.constant(starts.array[:, None] + inside.array)
        return self.emit("Add", self.unsqueeze(starts, [1]), inside)

    # -- sub-graphs and functions ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def nested(self, function: bool = False) -> Iterator[Scope]:
        """A scope of its own for a branch, a loop body or a function."""
        self.scopes.append(Scope(function=function))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    def subgraph(self, graph: Graph, inputs: Sequence[OnnxValue], name: str) -> onnx_ir.Graph:
        """A sub-graph attribute: `inputs` are its own formal inputs; outer values may be read inside."""
        with self.nested() as scope:
            results = self.fresh_outputs(self.inline(graph, inputs))
        values = [r.value for r in results]
        return onnx_ir.Graph([i.value for i in inputs], values, nodes=scope.nodes, name=self.unique(name))

    def graph_of(
        self, name: str, formals: Sequence[OnnxValue], results: Callable[..., Sequence[OnnxValue]]
    ) -> onnx_ir.Graph:
        """A sub-graph attribute written by a function of its formal inputs; outer values may be read inside."""
        with self.nested() as scope:
            made = self.fresh_outputs(results(*formals))
        return onnx_ir.Graph(
            [f.value for f in formals], [r.value for r in made], nodes=scope.nodes, name=self.unique(name)
        )

    def formal(self, name: str, type: TensorType) -> OnnxValue:
        """A formal input of a sub-graph or function."""
        made = OnnxValue(onnx_ir.Value(name=self.unique(name)), type)
        describe(made)
        return made

    def fresh_outputs(self, results: Sequence[OnnxValue]) -> list[OnnxValue]:
        """Results of a sub-graph, each made by a node of it and named once; an Identity where that is not so."""
        own = {id(n) for n in self.scope.nodes}
        made: list[OnnxValue] = []
        for r in results:
            fresh = id(r.value.producer()) in own and all(r.value is not m.value for m in made)
            made.append(r if fresh else self.emit("Identity", r))
            made[-1].type = r.type
            describe(made[-1])
        return made

    def call(self, body: Body, inputs: Sequence[OnnxValue]) -> list[OnnxValue]:
        """A call of a model-local function that holds the custom op's body."""
        assert body.name is not None
        graph = body.graph
        needed = sorted(free_symbols(graph) - graph.sources.keys())
        sizes = [self._symbol(s) for s in needed]
        if graph not in self.functions:
            self.functions[graph] = self._function(body, needed)
        function = self.functions[graph]
        results = [onnx_ir.Value(name=self.unique(f"{self.node.name}.{function.name}")) for _ in graph.outputs]
        node = onnx_ir.Node(
            function.domain, function.name, [x.value for x in (*inputs, *sizes)], [], outputs=results
        )
        self.scope.nodes.append(node)
        return [OnnxValue(r, v.type) for r, v in zip(results, graph.outputs, strict=True)]

    def _function(self, body: Body, needed: Sequence[str]) -> onnx_ir.Function:
        domain, _, name = str(body.name).partition("::")
        taken = {f.name for f in self.functions.values() if f.domain == domain}
        base, n = name, 0
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        outer = self.driver.scopes, self.symbols, self.node, self._names, self._counts
        self.driver.scopes, self._names, self._counts = [], set(), {}
        with self.nested(function=True) as scope:
            formals = [self.formal(v.name, v.type) for v in body.graph.inputs]
            self.symbols = {s: self.formal(s, TensorType(DType.int64, (1,))) for s in needed}
            results = self.fresh_outputs(self.inline(body.graph, formals))
            formals += self.symbols.values()
        self.driver.scopes, self.symbols, self.node, self._names, self._counts = outer
        self.domains.setdefault(domain, 1)
        inner = onnx_ir.Graph(
            [f.value for f in formals], [r.value for r in results], nodes=scope.nodes,
            opset_imports=self.domains, name=name,
        )  # fmt: skip
        return onnx_ir.Function(domain, name, graph=inner, attributes=[])

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, results: dict[str, OnnxValue]) -> onnx_ir.Model:
        """The model: named outputs, unused nodes and initializers left out."""
        outputs: list[OnnxValue] = []
        taken: set[str] = {i.name for i in self.inputs}
        for name, result in results.items():
            producer = result.value.producer()
            if producer is None or result.name in taken or any(result.value is o.value for o in outputs):
                type = result.type
                result = self.emit("Identity", result)
                result.type = type
            result.value.name = name
            taken.add(name)
            describe(result)
            outputs.append(result)
        return make_model(self, outputs)


_ML_NAMES = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "bool_": "bool"}


def _tensor(weight: Weight) -> Any:
    """An onnx_ir tensor that reads the weight when it is written."""
    if weight.tensor is None:
        shape, dtype = onnx_ir.Shape(weight.type.shape), TO_ONNX[weight.type.dtype]
        return onnx_ir.LazyTensor(lambda: onnx_ir.tensor(weight.numpy()), dtype=dtype, shape=shape, name=weight.name)
    from onnx_ir.tensor_adapters import TorchTensor

    return TorchTensor(weight.tensor.detach(), name=weight.name)


def free_symbols(graph: Graph) -> set[str]:
    """Every symbol in types and arguments of a graph and its sub-graphs."""
    from ir.graph import leaves

    found: set[str] = set()
    for node in graph.nodes:
        for a in leaves(node.args.values()):
            if isinstance(a, Expr):
                found |= a.symbols
            elif isinstance(a, Graph):
                found |= free_symbols(a)
        for v in node.outputs:
            for s in v.type.shape:
                found |= s.symbols if isinstance(s, Expr) else set()
    return found


def describe(x: OnnxValue) -> None:
    """Write our type into the onnx_ir value: element type, sizes, dynamic dimensions by name or expression."""
    x.value.type = onnx_ir.TensorType(TO_ONNX[x.type.dtype])
    if x.type.shape is not None:
        x.value.shape = onnx_ir.Shape([s if isinstance(s, int) else str(s) for s in x.type.shape])


def _attribute(name: str, value: Any) -> onnx_ir.Attr:
    if isinstance(value, DType):
        return onnx_ir.AttrInt64(name, int(TO_ONNX[value]))
    if isinstance(value, np.ndarray):
        return onnx_ir.AttrTensor(name, onnx_ir.tensor(value))
    if isinstance(value, bool):
        return onnx_ir.AttrInt64(name, int(value))
    return onnx_ir.convenience.convert_attribute(name, list(value) if isinstance(value, tuple) else value)
