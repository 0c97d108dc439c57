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
from ir.graph import Graph, Node, Origin, Value, Weight
from ir.importer.schema import DTYPES, OpSchema, op_schema, plain
from ir.importer.symbols import Symbols
from ir.importer.weights import TorchWeight
from ir.types import DType, TensorType

# Higher-order operators that become nodes; "*" takes the rest.
HIGHER_ORDER: dict[str, tuple[str, ...]] = {
    "cond": ("pred", "true_graph", "false_graph", "operands"),
    "while_loop": ("cond_graph", "body_graph", "carried_inputs", "additional_inputs"),
    "scan": ("combine_graph", "init", "xs", "additional_inputs"),
    "associative_scan": ("combine_graph", "xs", "additional_inputs"),
    "map_impl": ("graph", "xs", "pos_args"),
}
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
    "aten::_assert_async", "aten::_assert_scalar", "aten::_assert_tensor_metadata", "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size", "aten::_print", "aten::_functional_assert_async",
    "aten::_functional_assert_scalar", "aten::_functional_sym_constrain_range",
    "aten::_functional_sym_constrain_range_for_size", "inductor::accumulate_grad_", "aten::_nested_tensor_storage",
})  # fmt: skip
# Results that hold what their first argument holds, in a graph without writes.
IDENTITIES = frozenset({
    "aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::lift", "aten::lift_fresh",
    "aten::lift_fresh_copy", "aten::_lazy_clone", "aten::view_as", "aten::requires_grad", "prims::view_of",
    "aten::resolve_conj", "aten::resolve_neg", "aten::pin_memory", "aten::to", "aten::_to_copy", "aten::type_as",
    "aten::expand_as", "aten::expand", "aten::reshape", "aten::view", "aten::_unsafe_view", "aten::_reshape_copy",
    "aten::squeeze", "aten::flatten", "aten::slice", "aten::narrow", "aten::repeat", "aten::tile", "prims::convert_element_type",
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
        self._types: dict[Any, TensorType] = {}

    # -- values ----------------------------------------------------------------------------------------------------

    def type_of(self, fake: torch.Tensor) -> TensorType:
        """The type of a fake tensor."""
        if fake.layout is not torch.strided:
            raise CaptureError(f"a tensor of layout {fake.layout} has no form in the IR; densify it in the model")
        if fake.dtype not in DTYPES:
            raise CaptureError(f"dtype {fake.dtype} has no form in the IR")
        return TensorType(DTYPES[fake.dtype], tuple(self.symbols.convert(d) for d in fake.shape))

    def value(self, name: str, fake: torch.Tensor) -> Value:
        """A new value for a fake tensor."""
        return Value(name, self.type_of(fake))

    def constant(self, node: FxNode, name: str, tensor: torch.Tensor) -> Value:
        """A weight of the graph for a real tensor."""
        weight = TorchWeight(name, tensor)
        value = Value(node.name, weight.type)
        self.weights[value] = weight
        return value

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, graph: FxGraph) -> Any:
        """Import every node whose placeholders are in `env` already; what the graph returns, in the IR's terms."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._call(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                return self._arg(node.args[0])
        return ()

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
            return self.env[node.args[0]][node.args[1]]
        if isinstance(target, OpOverload):
            return self._operator(node, op_schema(target))
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(node, target.name())
        value = node.meta.get("val")
        if value is None or isinstance(value, torch.Tensor):
            raise CaptureError(f"{node.target} is no operator of torch.library\n  at {_origin(node, '')}")
        return self.symbols.convert(value)

    def _operator(self, node: FxNode, schema: OpSchema) -> Any:
        if schema.op in VANISH:
            return None
        fake = node.meta.get("val")
        if not _holds_tensor(fake):
            return self._scalar(node, schema, fake)
        used = schema.functional or schema
        bound = schema.bind(node.args, node.kwargs)
        args = {name: self._arg(a) for name, a in bound.items()}
        for name in schema.floats & args.keys():
            if type(args[name]) is int:
                args[name] = float(args[name])
        if schema.op in IDENTITIES or schema.op in _DROPOUTS:
            same = self._identity(schema, args, fake)
            if same is not None:
                return same
        outputs: list[Value] = []
        result = self._results(node.name, fake, outputs)
        self.nodes.append(
            Node(used.op, args, tuple(outputs), _origin(node, used.overload), used.returns, used.defaults)
        )
        if schema.writes:
            written = bound[schema.writes[0]]
            if isinstance(written, FxNode):
                self.env[written] = result
        return result

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
        converted = self.symbols.convert(value)
        source = self._arg(node.args[0]) if node.args else None
        if schema.op in ("aten::item", "aten::_local_scalar_dense") and isinstance(converted, Expr):
            if converted.as_symbol is None:
                raise CaptureError(f"{node} reads {converted}, not a plain symbol\n  at {_origin(node, '')}")
            args = {"self": source, "symbol": converted}
            self.nodes.append(Node("ir::item", args, (), _origin(node, ""), "none"))
        return converted

    def _identity(self, schema: OpSchema, args: Mapping[str, Any], fake: Any) -> Any:
        """The first argument where the op does nothing in a graph without writes, else None."""
        first = next(iter(args.values()))
        flag = _DROPOUTS.get(schema.op)
        if flag is not None:
            return first if args[flag] is False and isinstance(fake, torch.Tensor) else None
        same = isinstance(first, Value) and isinstance(fake, torch.Tensor) and first.type == self.type_of(fake)
        return first if same else None

    # -- higher-order operators ------------------------------------------------------------------------------------

    def _higher_order(self, node: FxNode, name: str) -> Any:
        if name in WRAPPERS:
            graph_at, first = WRAPPERS[name]
            return self._inline(self._arg(node.args[graph_at]), [self._arg(a) for a in node.args[first:]])
        if name not in HIGHER_ORDER:
            raise CaptureError(f"the higher-order operator {name} has no form in the IR\n  at {_origin(node, '')}")
        args = {}
        for key, arg in zip(HIGHER_ORDER[name], node.args, strict=False):
            if isinstance(arg, FxNode) and isinstance(self.env[arg], torch.fx.GraphModule):
                args[key] = self.subgraph(self.env[arg], str(arg.target))
            else:
                args[key] = self._arg(arg)
        outputs: list[Value] = []
        result = self._results(node.name, node.meta["val"], outputs)
        self.nodes.append(Node(f"higher_order::{name}", args, tuple(outputs), _origin(node, ""), "list"))
        return result

    def _inline(self, module: torch.fx.GraphModule, operands: Sequence[Any]) -> Any:
        inner = Importer(self.symbols, module)
        inner.nodes, inner.weights = self.nodes, self.weights
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        inner.env.update(zip(placeholders, operands, strict=True))
        return inner.run(module.graph)

    def subgraph(self, module: torch.fx.GraphModule, name: str) -> Graph:
        """The graph of a branch or loop body; what is no tensor among its inputs must be a size known outside."""
        inner = Importer(self.symbols, module)
        inputs = []
        for p in (n for n in module.graph.nodes if n.op == "placeholder"):
            fake = p.meta.get("val")
            if isinstance(fake, torch.Tensor):
                inner.env[p] = inner.value(p.name, fake)
                inputs.append(inner.env[p])
            else:
                inner.env[p] = self.symbols.convert(fake)
        results = inner.run(module.graph)
        outputs = inner.tensors(results if isinstance(results, tuple) else (results,), f"{name}_out")
        names = tuple(f"out_{i}" for i in range(len(outputs)))
        return Graph(tuple(inputs), tuple(inner.nodes), outputs, names, inner.weights, name=name)

    def tensors(self, results: Sequence[Any], prefix: str) -> tuple[Value, ...]:
        """Results as values; a number becomes a 0-d tensor."""
        return tuple(r if isinstance(r, Value) else self.scalar_tensor(r, f"{prefix}_{i}") for i, r in enumerate(results))

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
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(a) for a in arg)
        if isinstance(arg, slice):
            raise CaptureError("a slice object as an argument has no form in the IR")
        return plain(self.symbols.convert(arg))


def _holds_tensor(fake: Any) -> bool:
    if isinstance(fake, (list, tuple)):
        return any(map(_holds_tensor, fake))
    return isinstance(fake, torch.Tensor)


def _origin(node: FxNode, overload: str) -> Origin:
    return Origin(overload, node.meta.get("stack_trace") or "", node.meta.get("nn_module_stack"))


