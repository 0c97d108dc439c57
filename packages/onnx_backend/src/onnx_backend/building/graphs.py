"""Sub-graphs, and model-local functions: the bodies of custom ops, and nn.Modules where they are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir

from ir.dims import Expr
from ir.graph import Body, Graph, Node, leaves
from ir.types import DType, TensorType
from onnx_backend.building.assemble import domains, fingerprint, live, reads
from onnx_backend.building.emission import Scope
from onnx_backend.building.names import Names
from onnx_backend.building.values import OnnxValue
from onnx_backend.building.verbs import Verbs


@dataclass(frozen=True)
class Function:
    """A function and how it is called: the sizes that come in after the operands, where each result comes out."""

    made: onnx_ir.Function
    symbols: Sequence[str]
    results: Sequence[tuple[bool, int]]  # (True, i): its output i; (False, i): the operand i itself


class Graphs(Verbs):
    """Scopes of their own: branches and loop bodies see what is around them, functions do not."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.functions: dict[Any, Function] = {}  # by graph, or by name where the function is written elsewhere
        self._known: dict[Any, onnx_ir.Function] = {}  # by what they compute

    @contextlib.contextmanager
    def nested(self, function: bool = False) -> Iterator[Scope]:
        """A scope of its own for a branch, a loop body or a function."""
        self.scopes.append(Scope(function=function))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    # -- sub-graphs ------------------------------------------------------------------------------------------------

    def subgraph(self, graph: Graph, inputs: Sequence[OnnxValue], name: str) -> onnx_ir.Graph:
        """A sub-graph attribute: `inputs` are its own formal inputs; outer values may be read inside."""
        return self.graph_of(name, inputs, lambda *formals: self.inline(graph, formals))

    def graph_of(
        self, name: str, formals: Sequence[OnnxValue], results: Callable[..., Sequence[OnnxValue]]
    ) -> onnx_ir.Graph:
        """A sub-graph attribute written by a function of its formal inputs; outer values may be read inside."""
        with self.nested() as scope:
            made = self.fresh_outputs(results(*formals))
        values = [r.value for r in made]
        nodes = live(scope.nodes, values)
        return onnx_ir.Graph([f.value for f in formals], values, nodes=nodes, name=self.names.unique(name))

    def formal(self, name: str, type: TensorType) -> OnnxValue:
        """A formal input of a sub-graph or function."""
        made = OnnxValue(onnx_ir.Value(name=self.names.unique(name)), type)
        made.describe()
        return made

    def fresh_outputs(self, results: Sequence[OnnxValue]) -> list[OnnxValue]:
        """Results of a sub-graph, each made by a node of it and named once; an Identity where that is not so."""
        own = {id(n) for n in self.scope.nodes}
        made: list[OnnxValue] = []
        for r in results:
            fresh = id(r.value.producer()) in own and all(r.value is not m.value for m in made)
            made.append(r if fresh else self.emit("Identity", r))
            made[-1].type = r.type
            made[-1].describe()
        return made

    # -- functions -------------------------------------------------------------------------------------------------

    def call(self, body: Body, inputs: Sequence[OnnxValue]) -> list[OnnxValue]:
        """A call of the model-local function that holds a body; each graph is written once."""
        graph = body.graph
        if graph not in self.functions:
            self.functions[graph] = self._function(body)
        function = self.functions[graph]
        made = function.made
        count = len(made.outputs)
        results = [onnx_ir.Value(name=self.names.unique(f"{self.node.name}.{made.name}")) for _ in range(count)]
        if count:
            operands = [*inputs, *(self._symbol(s) for s in function.symbols)]
            self.scope.nodes.append(self.node_of(made.domain, made.name, operands, [], results))
        return [
            OnnxValue(results[i], v.type) if computed else inputs[i]
            for (computed, i), v in zip(function.results, graph.outputs, strict=True)
        ]

    def add_function(self, key: tuple[str, str], made: onnx_ir.Function) -> None:
        """Take in a function that is written elsewhere, under its own domain and name."""
        self.functions[key] = Function(made, (), ())
        self._known[key] = made

    def _function(self, body: Body) -> Function:
        graph = body.graph
        # A custom op stands for itself; modules are handed the sizes, so that each is computed once in the model.
        own = set() if self.node.op == "ir::call" else _own_symbols(graph, self.node)
        outer = self.symbols, self.names, self.node_names
        self.names, self.node_names = Names(), Names()
        try:
            with self.driver.isolated(), self.nested(function=True) as scope:
                formals = [self.formal(v.name, v.type) for v in graph.inputs]
                needed = sorted(free_symbols(graph) - own)
                self.symbols = {s: self.formal(s, TensorType(DType.int64, (1,))) for s in needed}
                sizes = dict(self.symbols)
                made = self.inline(graph, formals)
        finally:
            self.symbols, self.names, self.node_names = outer
        given = {id(f.value): i for i, f in enumerate(formals)}
        outputs = list({id(m.value): m.value for m in made if id(m.value) not in given}.values())
        place = {id(v): i for i, v in enumerate(outputs)}
        results = [(id(m.value) in place, {**given, **place}[id(m.value)]) for m in made]
        nodes = live(scope.nodes, outputs)
        used = {id(v) for n in nodes for v in reads(n)}
        symbols = [s for s, v in sizes.items() if id(v.value) in used]
        inputs = [f.value for f in formals] + [sizes[s].value for s in symbols]
        return Function(self._unique(str(body.name), inputs, outputs, nodes), symbols, results)

    def _unique(
        self, name: str, inputs: list[onnx_ir.Value], outputs: list[onnx_ir.Value], nodes: list[onnx_ir.Node]
    ) -> onnx_ir.Function:
        """The function of this content, made now or found."""
        key = name, fingerprint(inputs, outputs, nodes)
        if key not in self._known:
            domain, _, base = name.partition("::")
            taken = Names(f.name for f in self._known.values() if f.domain == domain)
            self.use_domain(domain)
            imports = {d: self.domains[d] for d in domains(nodes)} | {"": self.opset}
            graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name=base)
            self._known[key] = onnx_ir.Function(domain, taken.unique(base), graph=graph, attributes=[])
        return self._known[key]


def _own_symbols(graph: Graph, node: Node) -> set[str]:
    """The symbols that the body of a node reads off its inputs, and those that only its own results have."""
    args = [*leaves(node.args.values()), *(s for v in node.inputs for s in v.type.shape)]
    given = {s for a in args if isinstance(a, Expr) for s in a.symbols}
    carried = {s for s, source in graph.sources.items() if source.value in graph.inputs}
    return carried | (graph.sources.keys() - given)


def free_symbols(graph: Graph) -> set[str]:
    """Every symbol in types and arguments of a graph and its sub-graphs."""
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
