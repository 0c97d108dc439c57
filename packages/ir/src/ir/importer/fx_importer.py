"""torch.export's graph -> ir.Graph: one loop, driven by each operator's schema."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Graph, Node, Origin, Value, Weight, leaves, symbols_in
from ir.importer import conditions, fx_ops
from ir.importer.aliases import Outcome, observe
from ir.importer.conditions import SCATTERS, are_open, may_do_something
from ir.importer.functionalize import Memories
from ir.importer.fx_ops import CAPTURED, HIGHER_ORDER, VANISH, WRAPPERS, handed_out, is_writer, updates_statistics
from ir.importer.memory_uses import Uses, copies_by_size, memories_in
from ir.importer.origins import origin_of
from ir.importer.private_writes import writes
from ir.importer.scalar_inputs import number, reading, scalar
from ir.importer.schema import DTYPES, LAYOUTS, OpSchema, no_dtype, op_schema, plain
from ir.importer.strided import layout
from ir.importer.symbols import Symbols
from ir.importer.tensor_meta import Tensors, holds_tensor
from ir.importer.torch_api import HigherOrderOperator, OpOverload
from ir.importer.training import training_norm
from ir.importer.weights import TorchWeight
from ir.ops import CHECKS, COPIES, DROPOUTS, TRAINING_FLAG, holds_the_same, may_be_view
from ir.passes.graph_editor import without_unread
from ir.types import DType, TensorType


class Importer:
    """Imports one torch graph; sub-graphs go through importers of their own that share the symbols."""

    def __init__(self, symbols: Symbols, owner: torch.nn.Module | None = None) -> None:
        self.symbols = symbols
        self.owner = owner
        self.env: dict[FxNode, Any] = {}
        self.nodes: list[Node] = []
        self._emitted: set[Node] = set()  # those that torch's graph does not have
        self.weights: dict[Value, Weight] = {}
        self.memory: Memories | None = None  # only graphs that write need one
        self.seen: Mapping[FxNode, Outcome] = {}  # what nodes do, in a graph that writes
        self._uses = Uses({})
        self._handed_out: set[Any] = set()  # nodes, or where memory is observed, memories
        self._offsets: set[str] = set()  # symbols of torch's that stand for a place in memory
        self._written_again, self.line = 0, Origin()  # the line of the write that nodes are emitted for
        self._node_names: set[str] = set()

    # -- values ----------------------------------------------------------------------------------------------------

    def type_of(self, fake: Any) -> TensorType:
        """The type of a fake tensor, or of a description."""
        if fake.layout not in LAYOUTS:
            raise CaptureError(f"a tensor of layout {fake.layout} has no form in the IR; densify it in the model")
        if fake.dtype not in DTYPES:
            raise no_dtype(fake.dtype)
        return TensorType(DTYPES[fake.dtype], tuple(map(self.symbols.convert, fake.shape)), LAYOUTS[fake.layout])

    def value(self, name: str, fake: Any) -> Value:
        """A new value for a fake tensor."""
        return Value(name, self.type_of(fake))

    def constant(self, node: FxNode, name: str, tensor: torch.Tensor) -> Value:
        """A weight of the graph for a real tensor."""
        weight = TorchWeight(name, tensor)
        value = Value(node.name, weight.type)
        self.weights[value] = weight
        return value

    def integer_input(self, name: str, read: Any, known: Any) -> Value:
        """An input for an argument that is a Python int: a 0-d tensor, and its reading."""
        value = Value(name, TensorType(DType.int64, ()))
        self.nodes += reading(name, value, read, known, Origin())
        return value

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, graph: FxGraph) -> Any:
        """Import every node whose placeholders are in `env` already; what the graph returns, in the IR's terms."""
        if self.memory is None:
            self._handed_out |= handed_out(graph)
            return self._walk(graph)
        self._handed_out |= memories_in(self.seen[graph.output_node()].result)
        return self.memory.results(self._walk(graph))

    def _walk(self, graph: FxGraph) -> Any:
        self._node_names |= {n.name for n in graph.nodes}
        if self.memory is None:
            self._handed_out |= handed_out(graph)
        for node in graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._call(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                return self.raw(node.args[0])
        return ()

    def remember(self, graph: FxGraph, weights: Mapping[FxNode, torch.Tensor] | None = None) -> None:
        """Keep track of memory, for a graph that writes; `weights` are the real tensors behind placeholders."""
        self.memory, self.seen = Memories(self), observe(graph, self.owner, weights)
        self._uses = Uses(self.seen)
        for node in graph.nodes:
            if node.op == "placeholder" and isinstance(self.env[node], Value):
                self.env[node] = name = self.memory.name(self.seen[node].result, self.env[node])
                self.memory.given[node] = name.view

    def _attribute(self, node: FxNode) -> Any:
        owner: Any = self.owner
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if not isinstance(owner, torch.Tensor):
            return owner
        value = self.constant(node, str(node.target), owner)
        return value if self.memory is None else self.memory.name(self.seen[node].result, value)

    def _call(self, node: FxNode) -> Any:
        target = node.target
        if target is operator.getitem:
            return self.raw(node.args[0])[node.args[1]]
        if isinstance(target, OpOverload):
            return self._operator(node, op_schema(target))
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(node, target.name())
        if not node.users:
            return None  # torch's own bookkeeping, traced along with the model
        value = node.meta.get("val")
        if value is None or isinstance(value, Tensors):
            raise CaptureError(f"{node.target} is no operator of torch.library\n  at {origin_of(node)}")
        return self.symbols.convert(value)

    def _operator(self, node: FxNode, schema: OpSchema) -> Any:
        if schema.op in VANISH:
            return None
        if schema.op in CHECKS:
            return self._check(node, schema)
        if self.memory is None:
            return self._node(node, schema)
        outcome = self.seen[node]
        if is_writer(node) and schema.writes:
            return self.memory.operator(node, schema, outcome)
        known = self.memory.known(outcome.result)
        if known is not None:
            return known
        by_place = "storage_offset" in schema.names and outcome.result.memory in self._uses.written
        made = self.memory.by_place(outcome.result) if by_place else self._node(node, schema)
        return self.memory.made(node, schema, outcome.result, made)

    def _returned(self, node: FxNode) -> Any:
        """What the node returns, as fake tensors."""
        seen = self.seen.get(node)
        return node.meta.get("val") if seen is None or seen.value is None else seen.value

    def _node(self, node: FxNode, schema: OpSchema) -> Any:
        fake = self._returned(node)
        if not holds_tensor(fake):
            return self._scalar(node, schema, fake)
        bound = schema.bind(node.args, node.kwargs)
        given = {name: self._arg(a) for name, a in bound.items()}
        if schema.writes and schema.functional is not None and isinstance(fake, Tensors):  # see `unshared`
            given, schema = schema.functional.bind(given, DTYPES[fake.dtype]), schema.functional.schema
        args = self.typed(node, schema, given)
        if are_open(schema.op, args):
            args = self.required(schema.op, args, node)
        if self._uses.written and may_be_view(schema) and copies_by_size(node, self.seen, self._uses):
            args = self._handed(conditions.copied(schema.op, args, node, self.seen, self.symbols), args, node)
        if schema.op == "export::access_subclass_inner_tensor":
            return self._inner_tensor(node, args["src_subclass_tensor"], args["attr"])
        alike = holds_the_same(schema, isinstance(fake, Tensors) and fake.dtype.is_complex)
        if alike and (same := self._identity(node, schema, args, fake)) is not None:
            return same
        if schema.op in TRAINING_FLAG and updates_statistics(schema, node):
            return training_norm(self, node, args, fake)
        outputs: list[Value] = []
        result = self._results(node.name, fake, outputs)
        self.append(node, schema, args, outputs)
        return result

    def typed(self, node: FxNode, schema: OpSchema, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments with floats where the schema says float, and a tensor where all tensors are numbers."""
        for name in schema.floats & args.keys():
            if type(args[name]) is int:
                args[name] = float(args[name])
        alone = not any(isinstance(a, Value) for a in leaves(args.values()))
        for name in schema.tensors & args.keys() if alone else ():
            if isinstance(args[name], bool | int | float):  # a retrace calls ops on numbers that torch would wrap
                args[name] = self.scalar_tensor(args[name], f"{node.name}_{name}")
        return args

    def required(self, op: str, args: dict[str, Any], node: FxNode) -> dict[str, Any]:
        """The arguments, the operand handed on by a node of its own where the sizes decide what the results are."""
        results: list[Value] = []
        self._results(node.name, self._returned(node), results)
        return self._handed(conditions.required(op, args, results, self.symbols.ranges), args, node)

    def _handed(self, handed: Node | None, args: Mapping[str, Any], node: FxNode) -> dict[str, Any]:
        if handed is None:
            return dict(args)
        self.nodes.append(replace(handed, origin=replace(origin_of(node), overload="")))
        return conditions.reading(args, handed)

    def append(self, node: FxNode, schema: OpSchema, args: Mapping[str, Any], outputs: Sequence[Value]) -> None:
        """Add the node of an operator."""
        args = self._handed(conditions.agreeing(schema.op, args, outputs), args, node)
        returns, origin = "tuple" if schema.fresh else schema.returns, origin_of(node, schema.overload)
        self.nodes.append(Node(schema.op, args, tuple(outputs), origin, returns, schema.defaults))

    def again(self, node: FxNode, schema: OpSchema, args: Mapping[str, Any]) -> list[Value]:
        """A view taken anew from its written base."""
        if schema.op != op_schema(node.target).op and are_open(schema.op, args):  # of `squeeze_`
            args = self.required(schema.op, dict(args), node)
        outputs: list[Value] = []
        self._written_again += 1
        self._results(f"{node.name}_again{self._written_again}", self._returned(node), outputs)
        self.append(node, schema, args, outputs)
        return outputs

    def _inner_tensor(self, node: FxNode, outer: Value, attribute: str) -> Value:
        """A tensor inside a weight of a tensor subclass, such as the integers of one that torchao has quantised."""
        weight = self.weights.get(outer)
        if weight is None:
            raise CaptureError(
                f"%{outer.name} is a tensor subclass that the program computes; only weights may be of one\n"
                f"  at {origin_of(node)}"
            )
        return self.constant(node, f"{weight.name}.{attribute}", getattr(weight.tensor, attribute))

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in another element type."""
        self._written_again += 1
        result = Value(f"{value.name}_cast{self._written_again}", value.type.with_dtype(dtype))
        self._add(Node("ir::cast", {"self": value, "dtype": dtype}, (result,)))
        return result

    def emit(self, overload: Any, type: TensorType, name: str, given: Mapping[str, Any]) -> Value:
        """One node that torch's graph does not have, such as the scatter of a written view into its base."""
        schema = op_schema(overload)
        args = schema.bind((), {k: self._arg(a) for k, a in given.items()})
        self._written_again += 1
        value, origin = Value(f"{name}{self._written_again}", type), replace(self.line, overload=schema.overload)
        if schema.op in SCATTERS and (held := conditions.place(schema.op, args, value, self.symbols.ranges)):
            self._add(replace(held, origin=self.line))
            args = conditions.reading(args, held)
        self._add(Node(schema.op, args, (value,), origin, schema.returns, schema.defaults))
        return value

    def _add(self, *nodes: Node) -> None:
        self.nodes += nodes
        self._emitted.update(nodes)

    def drop_unread(self, results: Iterable[Value]) -> None:
        """Take away emitted nodes that nothing reads: torch does not put a view that is written back into its base."""
        self.nodes[:] = without_unread(self.nodes, results, self._emitted)

    def _results(self, name: str, fake: Any, outputs: list[Value]) -> Any:
        """Values for an op's results, nested as torch nests them, appended to `outputs` flat."""
        if isinstance(fake, Tensors):
            outputs.append(self.value(name, fake))
            return outputs[-1]
        if isinstance(fake, (list, tuple)):
            return tuple(self._results(self.part_name(name, i), f, outputs) for i, f in enumerate(fake))
        return self.symbols.convert(fake)

    def part_name(self, name: str, i: int) -> str:
        """The name of a node's i-th result, which torch may have given to another node."""
        return f"{name}_{i}" if f"{name}_{i}" not in self._node_names else f"{name}_result_{i}"

    def _scalar(self, node: FxNode, schema: OpSchema, value: Any) -> Any:
        """Sizes and their arithmetic become expressions; a number read out of a tensor, a symbol with a source."""
        before = set(self.symbols.nodes) if schema.op == "aten::sym_storage_offset" else set()
        converted, source = self.symbols.convert(value), self._arg(node.args[0]) if node.args else None
        if schema.op in ("aten::item", "aten::_local_scalar_dense") and isinstance(source, Value):
            read = number(node.name, source, value, self.symbols)
            self.nodes += reading(node.name, source, read, converted, origin_of(node))
        if schema.op == "aten::sym_storage_offset" and isinstance(converted, Expr):
            self._offsets |= converted.symbols - before
        return converted

    def _check(self, node: FxNode, schema: OpSchema) -> None:
        """What the model asserts of its data; nothing where the ranges of the sizes say so, or of places in memory."""
        args = {name: self._arg(a) for name, a in schema.bind(node.args, node.kwargs).items()}
        read = [a for a in args.values() if isinstance(a, (Value, Expr))]
        of_memory = any(isinstance(a, Expr) and a.symbols & self._offsets for a in read)
        if (read and not of_memory) or schema.op == "aten::_print":
            self.nodes.append(Node(schema.op, args, (), origin_of(node, schema.overload), "none", schema.defaults))

    def _identity(self, node: FxNode, schema: OpSchema, args: Mapping[str, Any], fake: Any) -> Any:
        """The first argument where the op does nothing, else None.

        A copy whose memory the graph hands out does something: a caller may write to what it is a copy of. So does a
        view by a size that its base does not have: of two rows, `x[:n]` is both of them only from n = 2 on; and a
        squeeze, or a permutation, where a size of 1 may be 0.
        """
        first = next(iter(args.values()))
        if (schema.op in COPIES or args.get("copy") is True) and self.is_handed_out(node):
            return None
        if (flag := DROPOUTS.get(schema.op)) is not None:
            return first if args[flag] is False and isinstance(fake, Tensors) else None
        if not isinstance(first, Value) or not isinstance(fake, Tensors) or first.type != self.type_of(fake):
            return None
        if self.symbols.names and may_do_something(schema.op, first):
            return None
        before, own = node.all_input_nodes[0].meta["val"], symbols_in(args.values()) <= symbols_in(first.type.shape)
        return first if own and layout(before, self.symbols) == layout(fake, self.symbols) else None

    def is_handed_out(self, node: FxNode) -> bool:
        """True if what the node makes or writes to may be memory of a result."""
        if self.memory is None:
            return node in self._handed_out
        outcome = self.seen[node]
        return not self._handed_out.isdisjoint(memories_in((outcome.result, *outcome.written)))

    # -- higher-order operators ------------------------------------------------------------------------------------

    def _higher_order(self, node: FxNode, name: str) -> Any:
        if name in WRAPPERS:
            graph_at, first = WRAPPERS[name]
            return self._inline(node, self._arg(node.args[graph_at]), node.args[first:])
        if name not in HIGHER_ORDER:
            raise fx_ops.no_operator(name, node)
        args = {key: self._arg(arg) for key, arg in zip(HIGHER_ORDER[name], node.args, strict=False)}
        captured = next((k for k in reversed(args) if k in CAPTURED), "")
        operands = args.get(captured, ())
        for key, arg in zip(args, node.args, strict=False):
            if isinstance(arg, FxNode) and isinstance(args[key], torch.nn.Module):
                args[key] = self.subgraph(args[key], str(arg.target), operands)
            elif key == captured:
                args[key] = tuple(o for o in operands if isinstance(o, Value))
        outputs: list[Value] = []
        result = self._results(node.name, node.meta["val"], outputs)
        self.nodes.append(Node(f"higher_order::{name}", args, tuple(outputs), origin_of(node), "list"))
        return result if self.memory is None else self.memory.made(node, None, self.seen[node].result, result)

    def _inline(self, node: FxNode, module: Any, operands: Sequence[Any]) -> Any:
        """Import a wrapped graph in place; its placeholders are the operands under other names."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.env.update(zip(placeholders, map(self.raw, operands), strict=True))
        outer = self.owner, self.seen
        self.owner = module
        if self.memory is not None:
            self.seen = self.seen[node].inner or {}
        result = self._walk(module.graph)
        self.owner, self.seen = outer
        return result

    def subgraph(self, module: Any, name: str, captured: Sequence[Any] = ()) -> Graph:
        """The graph of a branch or loop body; `captured` are its last operands, those of them that are no tensors
        (sizes, which dynamo makes operands where it has met several) stand in the graph as what they are outside."""
        inner = Importer(self.symbols, module)
        inputs = []
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        outside = [None] * (len(placeholders) - len(captured)) + list(captured)
        for p, operand in zip(placeholders, outside, strict=True):
            if isinstance(fake := p.meta.get("val"), Tensors):
                inner.env[p] = inner.value(p.name, fake)
                inputs.append(inner.env[p])
            else:
                inner.env[p] = self.symbols.convert(fake) if operand is None else operand
        if writes(module):
            inner.remember(module.graph)
        results = inner.run(module.graph)
        outputs = inner.tensors(results if isinstance(results, tuple) else (results,), f"{name}_out")
        if inner.memory is not None and any(inner.memory.updates()):
            raise CaptureError(f"the sub-graph {name} writes to a tensor from outside of it; return the new value")
        inner.drop_unread(outputs)
        names = tuple(f"out_{i}" for i in range(len(outputs)))
        return Graph(tuple(inputs), tuple(inner.nodes), outputs, names, inner.weights, name=name)

    def tensors(self, results: Sequence[Any], prefix: str) -> tuple[Value, ...]:
        """Results as values; a number becomes a 0-d tensor."""
        return tuple(
            r if isinstance(r, Value) else self.scalar_tensor(r, f"{prefix}_{i}") for i, r in enumerate(results)
        )

    def scalar_tensor(self, number: Any, name: str) -> Value:
        """A 0-d tensor that holds a number or a size expression."""
        self.nodes.append(node := scalar(number, name))
        return node.outputs[0]

    # -- arguments -------------------------------------------------------------------------------------------------

    def _arg(self, arg: Any) -> Any:
        return self.raw(arg) if self.memory is None else self.memory.read(self.raw(arg))

    def raw(self, arg: Any) -> Any:
        """An argument in the IR's terms, its tensors as names where memory is observed."""
        if isinstance(arg, FxNode):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return tuple(self.raw(a) for a in arg)
        if isinstance(arg, slice):
            raise CaptureError("a slice object as an argument has no form in the IR")
        return plain(self.symbols.convert(arg))
