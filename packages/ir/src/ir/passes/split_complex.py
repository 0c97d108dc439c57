"""Complex element types taken out of a graph, for targets that have none.

Inside, a complex value is two real ones of its shape. What is linear with real coefficients, or moves elements, is
applied to both (PARTWISE); other ops have a rule, traced for the node's types (`Context.parts`), or are expanded
through their decomposition. At the border (inputs, outputs, updates, operands of sub-graphs and of custom ops that the
target handles) a complex tensor is a real one with a trailing dimension of 2, as torch.view_as_real makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Union

from ir.errors import RefusedError
from ir.graph import ComputedWeight, Context, Graph, Node, Origin, Value, Weight, leaves, map_arg
from ir.passes.graph_editor import GraphEditor, without_unread
from ir.types import DType, TensorType

_SELF = ("self",)

# op -> the arguments that hold elements; the op is applied to their real and to their imaginary parts
PARTWISE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("neg", "negative", "positive", "sum", "mean", "cumsum", "trace", "clone", "contiguous", "alias",
         "detach", "lift_fresh_copy", "view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten",
         "view_as", "reshape_as", "expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave",
         "permute", "transpose", "t", "mT", "swapaxes", "swapdims", "movedim", "moveaxis", "numpy_T", "squeeze",
         "unsqueeze", "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit",
         "vsplit", "dsplit", "unbind", "unfold", "flip", "fliplr", "flipud", "roll", "rot90", "tril", "triu", "diag",
         "diagonal", "diag_embed", "diagflat", "index_select", "index", "gather", "take", "take_along_dim",
         "masked_select", "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d",
         "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
         "_pad_circular", "ravel", "squeeze_copy", "unsqueeze_copy", "expand_copy", "view_copy",
         "permute_copy", "transpose_copy", "t_copy", "select_copy", "slice_copy", "diagonal_copy", "unfold_copy",
         "alias_copy", "detach_copy", "split_copy", "split_with_sizes_copy", "unbind_copy", "channel_shuffle",
         "native_channel_shuffle", "resolve_conj"),
        _SELF,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack",
                     "row_stack", "meshgrid", "block_diag", "broadcast_tensors", "atleast_1d", "atleast_2d",
                     "atleast_3d"), ("tensors", "self")),
    **dict.fromkeys(("where",), ("self", "other")),
    "constant_pad_nd": ("self", "value"),
    "masked_fill": ("self", "value"),
    "index_fill": ("self", "value"),
    "index_put": ("self", "values"),
    "_unsafe_index_put": ("self", "values"),
    "put": ("self", "source"),
    "index_copy": ("self", "source"),
    "copy": ("self", "src"),
    "scatter_add": ("self", "src"),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter"), ("self", "src")),
    **dict.fromkeys(("full", "new_full", "full_like"), ("self", "fill_value")),
    **dict.fromkeys(("zeros", "empty", "zeros_like", "empty_like", "new_zeros", "new_empty"), ("self",)),
}  # fmt: skip
# products, linear in both operands: op -> the two, and what is added at the end
PRODUCTS: Mapping[str, tuple[str, str, str]] = {
    "matmul": ("self", "other", ""),
    **dict.fromkeys(("mm", "bmm"), ("self", "mat2", "")),
    "mv": ("self", "vec", ""),
    "dot": ("self", "tensor", ""),
    **dict.fromkeys(("outer", "ger"), ("self", "vec2", "")),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
                     "conv_transpose3d"), ("input", "weight", "bias")),
}  # fmt: skip
# partwise only with this argument at this value: elsewhere the op is no linear one
ONLY: Mapping[str, Mapping[str, Any]] = {"scatter": {"reduce": None}, "index_add": {"alpha": 1}}


class Split:
    """A complex value: its two parts or its packed form, each made of the other when it is first asked for."""

    __slots__ = ("name", "packed", "parts", "type")

    def __init__(self, value: Value, *, parts: Any = None, packed: Value | None = None) -> None:
        self.name = value.name
        self.type = value.type
        self.parts: tuple[Value, Value] | None = parts
        self.packed = packed


Item = Union[Value, Split]


def split_complex(graph: Graph, context: Context | None, handled: Callable[[Node], bool]) -> Graph:
    """The graph over real tensors; the graph itself where it has no complex ones.

    Args:
        context: gives rules and decompositions.
        handled: True for ops whose handler takes packed operands.

    Raises:
        RefusedError: complex32, which no target computes in.
    """
    return Splitter(graph, context, handled).run() if _has_complex(graph) else graph


def _has_complex(graph: Graph) -> bool:
    values = (*graph.inputs, *graph.weights, *(v for n in graph.nodes for v in n.outputs))
    return any(v.type.dtype.is_complex for v in values) or any(_has_complex(g) for n in graph.nodes for g in n.graphs)


class Splitter:
    """The work on one graph."""

    def __init__(self, graph: Graph, context: Context | None, handled: Callable[[Node], bool]) -> None:
        self.graph = graph
        self.context = context
        self.handled = handled
        self.nodes: list[Node] = []
        self.made: set[Node] = set()  # nodes of our own, which may turn out not to be read
        self.weights: dict[Value, Weight] = {}
        self.value = GraphEditor(graph).value  # a new value of this graph
        self._held: dict[Weight, Item] = {}
        self._open: list[str] = []
        self._origin = Origin()

    def run(self) -> Graph:
        inputs, items = [], []
        for value in self.graph.inputs:
            inputs.append(_packed_value(value) if value.type.dtype.is_complex else value)
            items.append(Split(value, packed=inputs[-1]) if inputs[-1] is not value else value)
        env = self.walk(self.graph, items, None)
        outputs = tuple(self.pack(env[v]) for v in self.graph.outputs)
        updates = {name: self.pack(env[v]) for name, v in self.graph.updates.items()}
        nodes = without_unread(self.nodes, {*outputs, *updates.values()}, self.made)
        read = {v for n in nodes for v in n.inputs} | {*outputs, *updates.values()}
        weights = {v: w for v, w in self.weights.items() if v in read}
        return self.graph.replace(inputs=tuple(inputs), nodes=nodes, outputs=outputs, updates=updates, weights=weights)

    # -- values ----------------------------------------------------------------------------------------------------

    def emit(self, op: str, overload: str, args: Mapping[str, Any], name: str, type: TensorType) -> Value:
        """One node of our own; every argument that has no default is given."""
        made = self.value(name, type)
        node = Node(op, args, (made,), Origin(overload, self._origin.stack, self._origin.modules), "one", args)
        self.nodes.append(node)
        self.made.add(node)
        return made

    def parts(self, item: Item) -> tuple[Value, Value]:
        """Real and imaginary part; the second is zeros for a real value."""
        if isinstance(item, Value):
            zeros = {"size": item.type.shape, "fill_value": 0, "dtype": item.type.dtype, "layout": None,
                     "device": None, "pin_memory": None}  # fmt: skip
            return item, self.emit("aten::full", "", zeros, f"{item.name}_im", item.type)
        if item.parts is None:
            assert item.packed is not None
            last = len(item.type.shape)
            re, im = (
                self.emit("aten::select", "int", {"self": item.packed, "dim": last, "index": i},
                          f"{item.name}_{part}", _real(item.type))
                for i, part in enumerate(("re", "im"))
            )  # fmt: skip
            item.parts = re, im
        return item.parts

    def pack(self, item: Item) -> Value:
        """The value as the border has it: a complex one with a trailing dimension of 2."""
        if isinstance(item, Value):
            return item
        if item.packed is None:
            last = len(item.type.shape)
            item.packed = self.emit("aten::stack", "", {"tensors": item.parts, "dim": last}, item.name,
                                    _packed_type(item.type))  # fmt: skip
        return item.packed

    def weight(self, value: Value, weight: Weight, own: bool) -> Item:
        """A weight of this graph (`own`) or of a body: itself, or its two parts."""
        if weight not in self._held:
            if not value.type.dtype.is_complex:
                real = value if own else self.value(value.name, value.type)
                self.weights[real] = weight
                self._held[weight] = real
            else:
                parts = tuple(self._part(value, weight, part) for part in ("real", "imag"))
                self._held[weight] = Split(value, parts=parts)
        return self._held[weight]

    def _part(self, value: Value, weight: Weight, part: str) -> Value:
        type = _real(value.type)
        made = self.value(f"{value.name}_{part[:2]}", type)
        self.weights[made] = ComputedWeight(f"{weight.name}.{part}", type, lambda: getattr(weight.numpy(), part).copy())
        return made

    # -- nodes -----------------------------------------------------------------------------------------------------

    def walk(self, graph: Graph, inputs: Sequence[Item], via: Node | None) -> dict[Value, Item]:
        """Every node of a graph, in place; what each of its values has become."""
        env: dict[Value, Item] = dict(zip(graph.inputs, inputs, strict=True))
        for value, weight in graph.weights.items():
            env[value] = self.weight(value, weight, via is None)
        for node in graph.nodes:
            if via is not None:  # a body's node tells the line of the model that it stands for
                origin = Origin(node.origin.overload, via.origin.stack, via.origin.modules)
                node = replace(node, origin=origin)
            self._origin = node.origin
            self._node(node, env, via)
        return env

    def _node(self, node: Node, env: dict[Value, Item], via: Node | None) -> None:
        types = [v.type.dtype for v in (*node.inputs, *node.outputs)]
        if DType.complex32 in types:
            reason = "complex32 is no type to compute in; use complex64"
            raise RefusedError(f"{node.overload}: {reason}\n  at {node.origin}")
        if node.graphs or not any(t.is_complex for t in types):
            self._packed(node, env, via)
        elif node.op in ("aten::view_as_real", "aten::view_as_complex"):
            (value,), source = node.outputs, env[node.args["self"]]
            env[value] = self.pack(source) if value.type.rank else source
            if value.type.dtype.is_complex:
                env[value] = Split(value, packed=self.pack(source))
        elif self.handled(node):
            self._packed(node, env, via, alone=True)
        elif node.op == "ir::scalar":
            number = complex(node.args["value"])
            type = _real(node.outputs[0].type)
            numbers = [{"value": n, "dtype": type.dtype} for n in (number.real, number.imag)]
            made = tuple(self.emit("ir::scalar", "", n, node.name, type) for n in numbers)
            env[node.outputs[0]] = Split(node.outputs[0], parts=made)
        elif self._is_partwise(node) or node.op == "ir::require":
            self._partwise(node, env)
        elif node.op.removeprefix("aten::") in PRODUCTS:
            self._product(node, env)
        else:
            self._expand(node, env, via)

    def _packed(self, node: Node, env: dict[Value, Item], via: Node | None, alone: bool = False) -> None:
        """The node on packed operands, the same object where nothing changes; `alone`: a handler must serve it."""

        def inner(arg: Any) -> Any:
            if isinstance(arg, Graph):
                return split_complex(arg, self.context, self.handled)
            return self.pack(env[arg]) if isinstance(arg, Value) else arg

        args = {k: map_arg(a, inner) for k, a in node.args.items()}
        changed = any(a is not b for a, b in zip(leaves(args.values()), leaves(node.args.values()), strict=True))
        outputs = []
        for value in node.outputs:
            made = value if via is None else self.value(f"{via.name}.{value.name}", value.type)
            if value.type.dtype.is_complex:
                packed = _packed_value(made)
                env[value] = Split(made, packed=packed)
                made = packed
            else:
                env[value] = made
            outputs.append(made)
        if changed or tuple(outputs) != node.outputs or alone:
            node = replace(node, args=args, outputs=tuple(outputs), packed=alone)
        self.nodes.append(node)
        if via is not None:
            self.made.add(node)

    def _is_partwise(self, node: Node) -> bool:
        name = node.op.removeprefix("aten::")
        if name in ONLY and all(node.args.get(k) == v for k, v in ONLY[name].items()):
            return True
        return node.op.startswith("aten::") and name in PARTWISE and all(v.type.dtype.is_complex for v in node.outputs)

    def _partwise(self, node: Node, env: dict[Value, Item]) -> None:
        name = node.op.removeprefix("aten::")
        elements = PARTWISE.get(name, ("self", "src", "source", "value"))
        made = []
        for i, part in enumerate(("re", "im")):

            def inner(held: bool, arg: Any, i: int = i) -> Any:
                if isinstance(arg, Value):
                    item = env[arg]
                    return self.parts(item)[i] if held else item
                if held and isinstance(arg, (int, float, complex)):
                    return (arg.real, arg.imag)[i]
                return arg.real if isinstance(arg, DType) else arg

            args = {k: map_arg(a, partial(inner, k in elements)) for k, a in node.args.items()}
            outputs = tuple(self.value(f"{v.name}_{part}", _real(v.type)) for v in node.outputs)
            self.nodes.append(replace(node, args=args, outputs=outputs))
            self.made.add(self.nodes[-1])
            made.append(outputs)
        for value, parts in zip(node.outputs, zip(*made, strict=True), strict=True):
            env[value] = Split(value, parts=parts)

    def _product(self, node: Node, env: dict[Value, Item]) -> None:
        """`(a + ib)(c + id) = (ac - bd) + i(ad + bc)`; a real operand leaves two products."""
        first, second, added = PRODUCTS[node.op.removeprefix("aten::")]
        (out,) = node.outputs
        type = _real(out.type)
        operands = [env[node.args[name]] for name in (first, second)]
        (a, b), (c, d) = (self.parts(x) if isinstance(x, Split) else (x, None) for x in operands)
        bias = node.args.get(added)
        biases = (None, None) if bias is None else self.parts(env[bias])

        def times(x: Value, y: Value, more: Value | None, name: str) -> Value:
            args = {**node.args, first: x, second: y, **({added: more} if added else {})}
            made = self.value(f"{out.name}_{name}", type)
            self.nodes.append(replace(node, args=args, outputs=(made,)))
            self.made.add(self.nodes[-1])
            return made

        def sum_of(op: str, x: Value, y: Value, name: str) -> Value:
            return self.emit(op, "Tensor", {"self": x, "other": y, "alpha": 1}, f"{out.name}_{name}", type)

        if d is None:
            parts = (times(a, c, biases[0], "re"), times(self.parts(operands[0])[1], c, biases[1], "im"))
        elif b is None:
            parts = (times(a, c, biases[0], "re"), times(a, d, biases[1], "im"))
        else:
            re = sum_of("aten::sub", times(a, c, biases[0], "ac"), times(b, d, None, "bd"), "re")
            parts = (re, sum_of("aten::add", times(a, d, biases[1], "ad"), times(b, c, None, "bc"), "im"))
        env[out] = Split(out, parts=parts)

    def _expand(self, node: Node, env: dict[Value, Item], via: Node | None) -> None:
        """Through the node's rule, else its body; a node with neither stays, for the driver to name it."""
        rule = body = None
        if self.context is not None and node.overload not in self._open[-8:]:
            rule = self.context.parts(node)
            body = self.context.body(node) if rule is None else None
        if rule is None and body is None:
            self._packed(node, env, via, alone=True)
            return
        items = [env[v] for v in node.inputs]
        self._open.append(node.overload)
        if rule is not None:
            operands: list[Item] = [x for i in items for x in (self.parts(i) if isinstance(i, Split) else (i,))]
            graph = rule
        else:
            assert body is not None
            operands, graph = items, body.graph
        inner = self.walk(graph, operands, node)
        self._open.pop()
        self._origin = node.origin
        results = iter([inner[v] for v in graph.outputs])
        for value in node.outputs:
            result = next(results)
            if value.type.dtype.is_complex and isinstance(result, Value):
                result = Split(value, parts=(result, next(results)))
            env[value] = result


def _real(type: TensorType) -> TensorType:
    return type.with_dtype(type.dtype.real)


def _packed_type(type: TensorType) -> TensorType:
    return TensorType(type.dtype.real, (*type.shape, 2))


def _packed_value(value: Value) -> Value:
    return Value(value.name, _packed_type(value.type))
