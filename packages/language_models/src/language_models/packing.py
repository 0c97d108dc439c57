"""What stands around GroupQueryAttention, put into it or joined: rotary embeddings, and products of the same rows.

    queries and keys turned alike, by angles of positions alone    -> the op's own rotary embedding, over tables
    linear layers of the same rows (q, k, v; gate, up)             -> one product of their stacked weights, then a Split
    queries, keys and values that are one tensor's pieces          -> that tensor

All of it is found in the graph, by what nodes compute. What does not match stays as it is. Stacked weights are made
when the file is written, one after the other. Layers in float whose results would have to be split stay apart: a step
of one token reads such a weight row by row, and was measured to take 1.1 times as long over two in one; layers of
integers round the rows to int8 once where they are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ir.dims import Expr
from ir.dims import evaluate as number
from ir.graph import ComputedWeight, Graph, Node, Value, map_arg
from ir.passes.collapse_views import collapse_views
from ir.passes.cse import cse
from ir.passes.graph_editor import GraphEditor
from ir.types import DType, TensorType

ATTENTION = "language_models::grouped"  # attention as the op has it, with packed operands and tables of angles
PIECES = ("aten::split", "aten::split_with_sizes", "aten::chunk")
_GROUPS = "quantized_decomposed::dequantize_per_channel_group"
_ROWS = "quantized_decomposed::dequantize_per_channel"


def packed(graph: Graph, positions: str, longest: int, stack: bool = True) -> Graph:
    """The graph with rotary embeddings inside of attention, and products of the same rows as one.

    Args:
        positions: the input that says where tokens stand in their text; it goes where nothing reads it any more.
        longest: the tokens of the longest text, for tables of angles.
        stack: False keeps weights as they lie in a checkpoint, for files that refer to it.
    """
    graph = collapse_views(cse(graph))
    graph = rotary_inside(graph, positions, longest)
    if stack:
        graph = stacked(graph)
    graph = whole(graph)
    read = {v for n in graph.nodes for v in n.inputs}.union(graph.results.values())
    inputs = tuple(v for v in graph.inputs if v.name != positions or v in read)
    return graph if len(inputs) == len(graph.inputs) else graph.replace(inputs=inputs)


# -- rotary embeddings -------------------------------------------------------------------------------------------------


def rotary_inside(graph: Graph, positions: str, longest: int) -> Graph:
    """Attention whose queries and keys are turned alike, by angles of positions alone, turns them itself.

    onnxruntime's kernel counts positions in each text as transformers does, and wants heads of 16 n and tables of 8 n.
    """
    edit = GraphEditor(graph)
    angles = _Angles(edit, positions, longest)
    for node in graph.nodes:
        if node.op != "language_models::attend":
            continue
        args = {**node.args, "cos": None, "sin": None, "interleaved": False}
        turns = [edit.producer(args[name], "language_models::turn", alone=True) for name in ("query", "key")]
        q, k = turns
        if q is not None and k is not None and all(q.args[n] is k.args[n] for n in ("cos", "sin", "interleaved")):
            tables = angles.table(q.args["cos"]), angles.table(q.args["sin"])
            fits = args["past_key"].type.shape[3] % 16 == 0 and q.args["cos"].type.shape[-1] % 8 == 0
            if fits and tables[0] is not None and tables[1] is not None:
                args |= {"query": q.args["input"], "key": k.args["input"], "interleaved": q.args["interleaved"]}
                args |= {"cos": tables[0], "sin": tables[1]}
                edit.release(q, k, *angles.read)
        edit.replace(node, Node(ATTENTION, args, node.outputs, node.origin, node.returns))
    return edit.graph()


class _Angles:
    """Cosines or sines of positions in a text, as tables by position."""

    def __init__(self, edit: GraphEditor, positions: str, longest: int) -> None:
        self.edit, self.longest = edit, longest
        self.positions = next((v for v in edit.source.inputs if v.name == positions), None)
        self.read: dict[Node, None] = {}  # what tables stand for
        self._tables: dict[Value, Value | None] = {}

    def table(self, value: Value) -> Value | None:
        """A weight [positions, W] with a row for each; None for what is no function of the position alone."""
        if value not in self._tables:
            self._tables[value] = self._made(value)
        return self._tables[value]

    def _made(self, value: Value) -> Value | None:
        nodes = self._upstream(value)
        if nodes is None or self.positions is None or not _alone(lambda at: self._at(nodes, value, at), self.longest):
            return None
        type = TensorType(value.type.dtype, (self.longest, value.type.shape[-1]))
        made = self.edit.value(f"{value.name}_by_position", type)
        every = np.arange(self.longest)[None]
        self.edit.weights[made] = ComputedWeight(made.name, type, lambda: self._at(nodes, value, every)[0])
        self.read |= dict.fromkeys(nodes)
        return made

    def _upstream(self, value: Value) -> tuple[Node, ...] | None:
        """The nodes between positions and a value, in order; None where it depends on anything else."""
        graph, found = self.edit.source, {value}
        for node in reversed(graph.nodes):
            if found.intersection(node.outputs):
                found.update(node.inputs)
        if any(v in found for v in graph.inputs if v is not self.positions) or self.positions not in found:
            return None
        return tuple(n for n in graph.nodes if found.intersection(n.outputs))

    def _at(self, nodes: Sequence[Node], value: Value, at: np.ndarray) -> np.ndarray:
        """The rows of these positions [texts, tokens]."""
        assert self.positions is not None
        graph, type = self.edit.source, self.positions.type
        sizes = {str(d): n for d, n in zip(type.shape, at.shape, strict=True)}
        given = ComputedWeight("positions", type, lambda: at)
        held = {v: graph.weights[v] for n in nodes for v in n.inputs if v in graph.weights}
        known = [replace(n, args={k: map_arg(a, lambda x: _sized(x, sizes)) for k, a in n.args.items()}) for n in nodes]
        made: np.ndarray = graph.context.evaluate(known, {**held, self.positions: given}, value)
        return np.broadcast_to(made, (*at.shape, made.shape[-1]))


def _sized(arg: Any, sizes: dict[str, int]) -> Any:
    return number(arg, sizes) if isinstance(arg, Expr) else arg


def _alone(rows: Any, longest: int) -> bool:
    """True if the row of a position is the same whatever other positions are asked for (some models look at the
    farthest), and whatever the number of texts."""
    last = longest - 1
    try:
        several = rows(np.array([[0, 1 % longest, last], [last, 0, longest // 2]]))
        each = {at: rows(np.array([[at]]))[0, 0] for at in (0, 1 % longest, longest // 2, last)}
    except Exception:  # a size of another input, or an op that torch does not run so
        return False
    places = ((0, 0, 0), (0, 1, 1 % longest), (0, 2, last), (1, 0, last), (1, 1, 0), (1, 2, longest // 2))
    return all(np.allclose(several[i, j].astype("f4"), each[at].astype("f4"), rtol=0, atol=1e-5) for i, j, at in places)


# -- products ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A linear layer whose weight is one of the model's, in float or in integers with scales."""

    node: Node
    dequantised: Node | None  # what makes the weight of integers

    @classmethod
    def of(cls, edit: GraphEditor, node: Node) -> _Layer | None:
        """The layer, if nothing else reads its weight."""
        if node.op != "aten::linear":
            return None
        weight = node.args["weight"]
        made = edit.producer(weight, _GROUPS, _ROWS, alone=True)
        parts = [weight] if made is None else [made.args[n] for n in ("input", "scales", "zero_points")]
        bias = node.args["bias"]
        parts += [] if bias is None else [bias]
        own = all(p in edit.weights and edit.is_read_once(p) and p.type.is_static for p in parts)
        along = made is None or made.op == _GROUPS or made.args["axis"] == 0
        return cls(node, made) if own and along and weight.type.rank == 2 else None

    @property
    def alike(self) -> Any:
        """What layers have in common whose weights can be stacked."""
        args = self.node.args
        made = self.dequantised
        rest = None if made is None else tuple(repr(a) for a in made.args.values() if not isinstance(a, Value))
        of = args["weight"].type.dtype if made is None else (made.op, made.args["input"].type.dtype, rest)
        return args["input"], args["bias"] is None, args["weight"].type.shape[1], of

    def part(self, name: str) -> Value:
        """One of the layer's own tensors."""
        args = self.node.args if name in ("weight", "bias") or self.dequantised is None else self.dequantised.args
        value: Value = args[name]
        return value


def stacked(graph: Graph) -> Graph:
    """Queries, keys and values are one product over stacked weights, and so are other layers of integers."""
    edit = GraphEditor(graph)
    layers = {n.outputs[0]: layer for n in graph.nodes if (layer := _Layer.of(edit, n)) is not None}
    groups: list[list[_Layer]] = []
    for node in graph.nodes:
        if node.op == ATTENTION:
            three = [layers.get(node.args[name]) for name in ("query", "key", "value")]
            found = [x for x in three if x is not None and edit.is_read_once(x.node.outputs[0])]
            if len(found) == 3 and len({x.alike for x in found}) == 1:
                groups.append(found)
                for x in found:
                    del layers[x.node.outputs[0]]
    rest: dict[Any, list[_Layer]] = {}
    for layer in layers.values():
        if layer.dequantised is not None:
            rest.setdefault(layer.alike, []).append(layer)
    for group in (*groups, *rest.values()):
        if len(group) > 1:
            _stack(edit, group)
    return edit.graph()


def _stack(edit: GraphEditor, group: Sequence[_Layer]) -> None:
    """One product in the place of the first, whose pieces are the results of all."""
    first = group[0].node
    made: list[Node] = []
    weight = _weight(edit, group, made)
    bias = None if first.args["bias"] is None else _joined(edit, [x.part("bias") for x in group])
    sizes = tuple(x.node.outputs[0].type.shape[-1] for x in group)
    type = first.outputs[0].type
    rows = edit.value(f"{first.name}_stacked", type.with_shape((*type.shape[:-1], sum(sizes))))
    pieces = tuple(edit.value(f"{x.node.name}_piece", x.node.outputs[0].type) for x in group)
    linear = replace(first, args={**first.args, "weight": weight, "bias": bias}, outputs=(rows,))
    split = {"self": rows, "split_sizes": sizes, "dim": type.rank - 1}
    cut = Node("aten::split_with_sizes", split, pieces, replace(first.origin, overload=""), "list")
    place = min((x.node for x in group), key=edit.source.nodes.index)
    for layer, piece in zip(group, pieces, strict=True):
        others = (*made, linear, cut) if layer.node is place else ()
        edit.replace(layer.node, *others, results=(piece,))
        edit.release(*(n for n in (layer.dequantised,) if n is not None))


def _weight(edit: GraphEditor, group: Sequence[_Layer], made: list[Node]) -> Value:
    """The stacked weight, and the node that makes it where it is one of integers."""
    node = group[0].dequantised
    if node is None:
        return _joined(edit, [x.part("weight") for x in group])
    parts = {name: _joined(edit, [x.part(name) for x in group]) for name in ("input", "scales", "zero_points")}
    type = node.outputs[0].type
    weight = edit.value(f"{node.name}_stacked", type.with_shape(parts["input"].type.shape))
    made.append(replace(node, args={**node.args, **parts}, outputs=(weight,)))
    return weight


def _joined(edit: GraphEditor, values: Sequence[Value]) -> Value:
    """A weight of the rows of several, put together when it is written."""
    weights = [edit.weights[v] for v in values]
    shapes = [v.type.shape for v in values]
    type = values[0].type.with_shape((sum(s[0] for s in shapes if isinstance(s[0], int)), *shapes[0][1:]))
    made = edit.value(f"{values[0].name}_stacked", type)
    name = f"{weights[0].name}.stacked"
    edit.weights[made] = ComputedWeight(name, type, lambda: np.concatenate([w.numpy() for w in weights]))
    return made


def whole(graph: Graph) -> Graph:
    """Attention over the pieces of one tensor, queries, keys and values in this order, reads the tensor.

    In all layers or in none: nodes of both kinds could not share a function.
    """
    edit = GraphEditor(graph)
    nodes = [n for n in graph.nodes if n.op == ATTENTION]
    pieces = {n: [n.args[name] for name in ("query", "key", "value")] for n in nodes}
    sources = {n: _pieces_of(edit, pieces[n]) for n in nodes}
    if any(s is None for s in sources.values()):
        return graph
    for node, source in sources.items():
        edit.release(*(n for p in pieces[node] if (n := edit.producer(p)) is not None))
        edit.replace(node, replace(node, args={**node.args, "query": source, "key": None, "value": None}))
    return edit.graph()


def _pieces_of(edit: GraphEditor, pieces: Sequence[Value]) -> Value | None:
    """What is cut into these pieces along its last axis, and nothing else."""
    nodes = [edit.producer(p, *PIECES, "aten::slice") for p in pieces]
    sources = {n.args["self"] for n in nodes if n is not None}
    if None in nodes or len(sources) != 1 or pieces[0].type.dtype is DType.bfloat16:
        return None
    source: Value = sources.pop()
    starts = [_start(n, p) for n, p in zip(nodes, pieces, strict=True) if n is not None]
    widths = [p.type.shape[-1] for p in pieces]
    wanted = [0, widths[0], widths[0] + widths[1]]
    return source if starts == wanted and sum(widths) == source.type.shape[-1] else None


def _start(node: Node, piece: Value) -> Any:
    """Where a piece begins on the last axis; None for a cut of another kind."""
    if node.args["dim"] not in (-1, piece.type.rank - 1):
        return None
    if node.op != "aten::slice":
        return sum(v.type.shape[-1] for v in node.outputs[: node.outputs.index(piece)])
    return node.args["start"] or 0 if node.args["step"] == 1 else None
