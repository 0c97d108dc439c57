"""OnnxHelper: constants, weights, sub-graphs, functions, the finished model. The verbs stand in the files below it:
emission <- sizes <- verbs <- helper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir

from ir import dims as d
from ir.dims import Expr
from ir.graph import Body, Graph, Value, Weight
from ir.types import DType, TensorType
from onnx_backend.dtypes import TO_ONNX
from onnx_backend.emission import Scope
from onnx_backend.finish import make_model
from onnx_backend.value import OnnxValue as OnnxValue
from onnx_backend.verbs import Verbs


class OnnxHelper(Verbs):
    """Builds one onnx_ir.Model."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.inputs: list[OnnxValue] = []
        self.initializers: dict[Any, onnx_ir.Value] = {}
        self.functions: dict[Graph, onnx_ir.Function] = {}
        self._derived: dict[Any, OnnxValue] = {}

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
        held: list[Any] = [s.value.const_value for s in sources]
        if any(t is None for t in held):
            return None
        key = (what, *(id(t) for t in held))
        if key not in self._derived:
            type = TensorType(sources[0].type.dtype, tuple(shape))
            tensor = onnx_ir.LazyTensor(
                lambda: onnx_ir.tensor(_dense(make(*(t.numpy() for t in held))), dtype=held[0].dtype),
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
        node = onnx_ir.Node(function.domain, function.name, [x.value for x in (*inputs, *sizes)], [], outputs=results)
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


def _dense(array: np.ndarray) -> np.ndarray:
    """The array without strides; torch turns a matrix twice as fast as numpy."""
    if array.flags.c_contiguous or array.dtype.name not in ("float32", "float64", "float16"):
        return np.ascontiguousarray(array)
    import torch

    return torch.from_numpy(array).contiguous().numpy()


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
