"""torch.export's graph -> ir.Graph: one loop, driven by each operator's schema."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Graph, Node, Origin, Value, Weight, leaves
from ir.importer.memory import TRAINING_FLAG, Memory, handed_out, nodes_in, updates_statistics, view_parent, writers
from ir.importer.numbers import reading
from ir.importer.origins import origin_of
from ir.importer.schema import DTYPES, LAYOUTS, OpSchema, op_schema, plain
from ir.importer.symbols import Symbols
from ir.importer.training import training_norm
from ir.importer.weights import TorchWeight
from ir.passes.checks import CHECKS
from ir.types import DType, TensorType

# Higher-order operators that become nodes; "*" takes the rest.
HIGHER_ORDER: dict[str, tuple[str, ...]] = {
    "cond": ("pred", "true_graph", "false_graph", "operands"),
    "while_loop": ("cond_graph", "body_graph", "carried_inputs", "additional_inputs"),
    "scan": ("combine_graph", "init", "xs", "additional_inputs"),
    "associative_scan": ("combine_graph", "xs", "additional_inputs"),
    "map_impl": ("graph", "xs", "pos_args"),
}
CAPTURED = ("operands", "additional_inputs", "pos_args")  # what sub-graphs read from outside, after all else
# Those that only wrap a sub-graph: (index of the graph, index of its first operand).
WRAPPERS: dict[str, tuple[int, int]] = {
    "wrap_with_set_grad_enabled": (1, 2),
    "wrap_with_autocast": (4, 5),
    "wrap": (0, 1),
    "invoke_subgraph": (0, 2),
    "tag_activation_checkpoint": (0, 1),
    "hints_wrapper": (0, 1),
}
VANISH = frozenset({
    "aten::_assert_tensor_metadata", "aten::_functional_assert_async", "aten::_functional_assert_scalar",
    "aten::_functional_sym_constrain_range", "aten::_functional_sym_constrain_range_for_size",
    "inductor::accumulate_grad_", "aten::_nested_tensor_storage",
})  # fmt: skip
# Results that hold what their first argument holds, in a graph without writes.
IDENTITIES = frozenset({
    "aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::detach_", "aten::lift", "aten::lift_fresh",
    "aten::lift_fresh_copy", "aten::_lazy_clone", "aten::view_as", "aten::requires_grad", "prims::view_of",
    "aten::resolve_conj", "aten::resolve_neg", "aten::pin_memory", "aten::to", "aten::_to_copy", "aten::type_as",
    "aten::expand_as", "aten::expand", "aten::reshape", "aten::view", "aten::_unsafe_view", "aten::_reshape_copy",
    "aten::squeeze", "aten::flatten", "aten::slice", "aten::narrow", "aten::repeat", "aten::tile",
    "prims::convert_element_type",
})  # fmt: skip
_DROPOUTS = {"aten::dropout": "train", "aten::alpha_dropout": "train", "aten::feature_dropout": "train",
             "aten::feature_alpha_dropout": "train", "aten::native_dropout": "train"}  # fmt: skip


class Importer:
    """Imports one torch graph; sub-graphs go through importers of their own that share the symbols."""

    def __init__(self, symbols: Symbols, owner: torch.nn.Module | None = None) -> None:
        self.symbols = symbols
        self.owner = owner
        self.env: dict[FxNode, Any] = {}
        self.nodes: list[Node] = []
        self.weights: dict[Value, Weight] = {}
        self.memory: Memory | None = None  # only graphs that write need one
        self._handed_out: set[FxNode] = set()
        self._offsets: set[str] = set()  # symbols of torch's that stand for a place in memory
        self._written_again = 0

    # -- values ----------------------------------------------------------------------------------------------------

    def type_of(self, fake: torch.Tensor) -> TensorType:
        """The type of a fake tensor."""
        if fake.layout not in LAYOUTS:
            raise CaptureError(f"a tensor of layout {fake.layout} has no form in the IR; densify it in the model")
        if fake.dtype not in DTYPES:
            raise CaptureError(f"dtype {fake.dtype} has no form in the IR")
        return TensorType(DTYPES[fake.dtype], tuple(map(self.symbols.convert, fake.shape)), LAYOUTS[fake.layout])

    def value(self, name: str, fake: torch.Tensor) -> Value:
        """A new value for a fake tensor."""
        return Value(name, self.type_of(fake))

    def constant(self, node: FxNode, name: str, tensor: torch.Tensor) -> Value:
        """A weight of the graph for a real tensor."""
        weight = TorchWeight(name, tensor)
        value = Value(node.name, weight.type)
        self.weights[value] = weight
        return value

    def integer_input(self, name: str, fake: torch.SymInt) -> Value:
        """An input for an argument that is a Python int: a 0-d tensor, and its reading."""
        value = Value(name, TensorType(DType.int64, ()))
        self.nodes += reading(name, value, self.symbols.read(fake, name), self.symbols.convert(fake), Origin())
        return value

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, graph: FxGraph) -> Any:
        """Import every node whose placeholders are in `env` already; what the graph returns, in the IR's terms."""
        self._handed_out |= handed_out(graph)
        for node in graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._call(node)
                if self.memory is not None:
                    self.memory.track(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                return self._arg(node.args[0])
        return ()

    def remember(self) -> None:
        """Keep track of memory: the graph writes."""
        self.memory = Memory(self.env, self._view_again, self.emit)

    def _attribute(self, node: FxNode) -> Any:
        owner: Any = self.owner
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if isinstance(owner, torch.Tensor):
            return self.constant(node, str(node.target), owner)
        return owner

    def _call(self, node: FxNode) -> Any:
        target = node.target
        if target is operator.getitem:
            return self._arg(node.args[0])[node.args[1]]
        if isinstance(target, OpOverload):
            return self._operator(node, op_schema(target))
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(node, target.name())
        if not node.users:
            return None  # torch's own bookkeeping, traced along with the model
        value = node.meta.get("val")
        if value is None or isinstance(value, torch.Tensor):
            raise CaptureError(f"{node.target} is no operator of torch.library\n  at {origin_of(node)}")
        return self.symbols.convert(value)

    def _operator(self, node: FxNode, schema: OpSchema) -> Any:
        if schema.op in VANISH:
            return None
        if schema.op in CHECKS:
            return self._check(node, schema)
        fake = node.meta.get("val")
        if not _holds_tensor(fake) and not schema.fresh:
            return self._scalar(node, schema, fake)
        used = schema.functional or schema
        bound = schema.bind(node.args, node.kwargs)
        args = {name: self._arg(a) for name, a in zip(used.names, bound.values(), strict=True)}
        if schema.op == "export::access_subclass_inner_tensor":
            return self._inner_tensor(node, args["src_subclass_tensor"], args["attr"])
        for name in used.floats & args.keys():
            if type(args[name]) is int:
                args[name] = float(args[name])
        alone = not any(isinstance(a, Value) for a in leaves(args.values()))
        for name in used.tensors & args.keys() if alone else ():
            if isinstance(args[name], bool | int | float):  # a retrace calls ops on numbers that torch would wrap
                args[name] = self.scalar_tensor(args[name], f"{node.name}_{name}")
        if used.op in IDENTITIES or used.op in _DROPOUTS:
            same = self._identity(node, used, args, fake)
            if same is not None:
                return same
        if schema.op in TRAINING_FLAG and updates_statistics(schema, node):
            return training_norm(self, node, args, fake)
        if used.op == "aten::copy" and args["src"].type == args["self"].type and node not in self._handed_out:
            result = args["src"]
        else:
            outputs: list[Value] = []
            result = self._results(node.name, fake, outputs)
            origin = origin_of(node, used.overload)
            if schema.fresh:
                self._written(node, used, args, outputs)
                return result
            self.nodes.append(Node(used.op, args, tuple(outputs), origin, used.returns, used.defaults))
        if schema.writes and self.memory is not None:
            self.memory.write(bound[schema.writes[0]], result)
        return result

    def _written(self, node: FxNode, schema: OpSchema, args: dict[str, Any], outputs: list[Value]) -> None:
        """A custom op that writes to its arguments: a node that returns their new contents after its results."""
        bound = schema.bind(node.args, node.kwargs)
        written = [w for name in schema.writes for w in nodes_in(bound[name])]
        new = [Value(f"{node.name}_{w.name}", self.type_of(w.meta["val"])) for w in written]
        self.nodes.append(
            Node(schema.op, args, (*outputs, *new), origin_of(node, schema.overload), "tuple", schema.defaults)
        )
        assert self.memory is not None
        for name, value in zip(written, new, strict=True):
            self.memory.write(name, value)

    def _inner_tensor(self, node: FxNode, outer: Value, attribute: str) -> Value:
        """A tensor inside a weight of a tensor subclass, such as the integers of one that torchao has quantised."""
        weight = self.weights.get(outer)
        if weight is None:
            raise CaptureError(
                f"%{outer.name} is a tensor subclass that the program computes; only weights may be of one\n"
                f"  at {origin_of(node)}"
            )
        return self.constant(node, f"{weight.name}.{attribute}", getattr(weight.tensor, attribute))

    def _view_again(self, node: FxNode, base: Any) -> Any:
        """A view taken anew from its written base."""
        if not isinstance(node.target, OpOverload):
            return base[node.args[1]]
        schema = op_schema(node.target)
        bound = schema.bind(node.args, node.kwargs)
        args = {name: self._arg(a) for name, a in bound.items()} | {schema.views[0]: base}
        self._written_again += 1
        outputs: list[Value] = []
        result = self._results(f"{node.name}_again{self._written_again}", node.meta["val"], outputs)
        self.nodes.append(Node(schema.op, args, tuple(outputs), origin_of(node, schema.overload), schema.returns,
                               schema.defaults))  # fmt: skip
        return result

    def emit(self, overload: Any, type: TensorType, name: str, given: Mapping[str, Any]) -> Value:
        """One node that torch's graph does not have, such as the scatter of a written view into its base."""
        schema = op_schema(overload)
        args = schema.bind((), {k: self._arg(a) for k, a in given.items()})
        self._written_again += 1
        value = Value(f"{name}{self._written_again}", type)
        self.nodes.append(Node(schema.op, args, (value,), Origin(schema.overload), schema.returns, schema.defaults))
        return value

    def _results(self, name: str, fake: Any, outputs: list[Value]) -> Any:
        """Values for an op's results, nested as torch nests them, appended to `outputs` flat."""
        if isinstance(fake, torch.Tensor):
            outputs.append(self.value(name, fake))
            return outputs[-1]
        if isinstance(fake, (list, tuple)):
            return tuple(self._results(f"{name}_{i}", f, outputs) for i, f in enumerate(fake))
        return self.symbols.convert(fake)

    def _scalar(self, node: FxNode, schema: OpSchema, value: Any) -> Any:
        """Sizes and their arithmetic become expressions; a number read out of a tensor, a symbol with a source."""
        before = set(self.symbols.names.values()) if schema.op == "aten::sym_storage_offset" else set()
        converted = self.symbols.convert(value)
        source = self._arg(node.args[0]) if node.args else None
        if schema.op in ("aten::item", "aten::_local_scalar_dense") and isinstance(source, Value):
            self.nodes += reading(node.name, source, self.symbols.read(value), converted, origin_of(node))
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
        """The first argument where the op does nothing in a graph without writes, else None.

        A copy whose memory the graph hands out is not nothing: a caller may write to what it is a copy of.
        """
        if node in self._handed_out and view_parent(node) is None:
            return None
        first = next(iter(args.values()))
        flag = _DROPOUTS.get(schema.op)
        if flag is not None:
            return first if args[flag] is False and isinstance(fake, torch.Tensor) else None
        same = isinstance(first, Value) and isinstance(fake, torch.Tensor) and first.type == self.type_of(fake)
        return first if same and self._layout(node.all_input_nodes[0].meta["val"]) == self._layout(fake) else None

    def _layout(self, fake: torch.Tensor) -> list[Any]:
        """The strides that matter: a copy that changes them is kept, since torch's views and kernels depend on them."""
        if fake.layout is not torch.strided:
            return [fake.layout]
        return [
            self.symbols.convert(s)
            for s, size in zip(fake.stride(), fake.shape, strict=True)
            if not (isinstance(size, int) and size == 1)
        ]

    # -- higher-order operators ------------------------------------------------------------------------------------

    def _higher_order(self, node: FxNode, name: str) -> Any:
        if name in WRAPPERS:
            graph_at, first = WRAPPERS[name]
            return self._inline(self._arg(node.args[graph_at]), node.args[first:])
        if name not in HIGHER_ORDER:
            raise CaptureError(f"the higher-order operator {name} has no form in the IR\n  at {origin_of(node)}")
        args = {key: self._arg(arg) for key, arg in zip(HIGHER_ORDER[name], node.args, strict=False)}
        captured = next((k for k in reversed(args) if k in CAPTURED), "")
        operands = args.get(captured, ())
        for key, arg in zip(args, node.args, strict=False):
            if isinstance(arg, FxNode) and isinstance(args[key], torch.fx.GraphModule):
                args[key] = self.subgraph(args[key], str(arg.target), operands)
            elif key == captured:
                args[key] = tuple(o for o in operands if isinstance(o, Value))
        outputs: list[Value] = []
        result = self._results(node.name, node.meta["val"], outputs)
        self.nodes.append(Node(f"higher_order::{name}", args, tuple(outputs), origin_of(node), "list"))
        return result

    def _inline(self, module: torch.fx.GraphModule, operands: Sequence[Any]) -> Any:
        """Import a wrapped graph in place; its placeholders are the operands under other names."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            self.env[placeholder] = self._arg(operand)
            if self.memory is not None and isinstance(operand, FxNode):
                self.memory.alias(placeholder, operand)
        outer, self.owner = self.owner, module
        result = self.run(module.graph)
        self.owner = outer
        return result

    def subgraph(self, module: torch.fx.GraphModule, name: str, captured: Sequence[Any] = ()) -> Graph:
        """The graph of a branch or loop body; `captured` are its last operands, those of them that are no tensors
        (sizes, which dynamo makes operands where it has met several) stand in the graph as what they are outside."""
        inner = Importer(self.symbols, module)
        if writers(module.graph):
            inner.remember()
        inputs = []
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        outside = [None] * (len(placeholders) - len(captured)) + list(captured)
        for p, operand in zip(placeholders, outside, strict=True):
            fake = p.meta.get("val")
            if isinstance(fake, torch.Tensor):
                inner.env[p] = inner.value(p.name, fake)
                inputs.append(inner.env[p])
            else:
                inner.env[p] = self.symbols.convert(fake) if operand is None else operand
        results = inner.run(module.graph)
        outputs = inner.tensors(results if isinstance(results, tuple) else (results,), f"{name}_out")
        if inner.memory is not None and any(n.op == "placeholder" for n in inner.memory.writes):
            raise CaptureError(
                f"the sub-graph {name} writes to a tensor from outside of it; return the new value instead"
            )
        names = tuple(f"out_{i}" for i in range(len(outputs)))
        return Graph(tuple(inputs), tuple(inner.nodes), outputs, names, inner.weights, name=name)

    def tensors(self, results: Sequence[Any], prefix: str) -> tuple[Value, ...]:
        """Results as values; a number becomes a 0-d tensor."""
        return tuple(
            r if isinstance(r, Value) else self.scalar_tensor(r, f"{prefix}_{i}") for i, r in enumerate(results)
        )

    def scalar_tensor(self, number: Any, name: str) -> Value:
        """A 0-d tensor that holds a number or a size expression."""
        if isinstance(number, Expr):
            dtype = {"int": DType.int64, "float": DType.float64, "bool": DType.bool}[number.kind]
        elif isinstance(number, bool | int | float):
            dtype = {bool: DType.bool, int: DType.int64, float: DType.float64}[type(number)]
        else:
            raise CaptureError(f"an output of the graph is {number!r}, which is neither a tensor nor a number")
        value = Value(name, TensorType(dtype, ()))
        self.nodes.append(Node("ir::scalar", {"value": number, "dtype": dtype}, (value,)))
        return value

    # -- arguments -------------------------------------------------------------------------------------------------

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, FxNode):
            return self.env[arg] if self.memory is None else self.memory.read(arg)
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(a) for a in arg)
        if isinstance(arg, slice):
            raise CaptureError("a slice object as an argument has no form in the IR")
        return plain(self.symbols.convert(arg))


def _holds_tensor(fake: Any) -> bool:
    if isinstance(fake, (list, tuple)):
        return any(map(_holds_tensor, fake))
    return isinstance(fake, torch.Tensor)
