"""`x * cos + rotated(x) * sin`, as language models write rotary embeddings out, -> one `ir::rotary_embedding`.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2. The node turns pairs of
elements of `input` [B, H, S, D] by angles of which `cos` and `sin` [B or 1, S, W/2] are given; the last D - W elements
pass. A pair is (i, i + W/2), or (2i, 2i + 1) where `interleaved`. Models compute every cosine twice, once for either
element of a pair; the node takes it once, which is right only where both are the same value by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ir.dims import Dim
from ir.graph import Graph, Node, Value
from ir.ops import CASTS, RESHAPES, is_pointwise, is_random
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import DType

_DTYPES = (DType.float32, DType.float16, DType.bfloat16)


@contract(requires=("functional", "flat"), undoes=("of torch",))
def fuse_rotary(graph: Graph) -> Graph:
    """Each such sum becomes one node, what passes beside it included; half of the angles' table goes."""
    edit = GraphEditor(graph)
    search = _Search(edit)
    fused: dict[Node, Node] = {}
    for node in graph.nodes:
        found = search.rotation(node)
        if found is not None:
            x, cos, sin, interleaved = found
            whole, last = search.partial(node, x)
            args = {"input": whole, "cos": cos, "sin": sin, "interleaved": interleaved}
            fused[last] = Node("ir::rotary_embedding", args, last.outputs, replace(last.origin, overload=""))
    if not fused:
        return graph
    edit.release(*search.inner, *search.made)
    for node, others in search.made.items():
        edit.replace(node, node, *others)
    for node, other in fused.items():
        edit.replace(node, other)
    return edit.graph()


@dataclass
class _Search:
    """What has been recognised: nodes that are no longer needed, and those made, by the node that they follow."""

    edit: GraphEditor
    inner: set[Node] = field(default_factory=set)
    made: dict[Node, list[Node]] = field(default_factory=dict)
    _halves: dict[tuple[Value, bool], Value | None] = field(default_factory=dict)

    def rotation(self, node: Node) -> tuple[Value, Value, Value, bool] | None:
        """What a sum turns, cosines, sines, and how elements pair; None for any other node."""
        if node.op != "aten::add" or node.args["alpha"] != 1:
            return None
        for plain, turned in _both(node):
            p, q = self.edit.producer(plain, "aten::mul"), self.edit.producer(turned, "aten::mul")
            for rotated, sin in _both(q) if p and q else ():
                source = self._rotated(rotated)
                for x, cos in _both(p) if p and source else ():
                    if source is None or x is not source[0] or x.type != node.outputs[0].type:
                        continue
                    tables = [self._table(t, x, source[1]) for t in (cos, sin)]
                    if tables[0] is not None and tables[1] is not None:
                        self.inner |= {node, p, q, *source[2]}  # type: ignore[arg-type]
                        return x, tables[0], tables[1], source[1]
        return None

    def partial(self, node: Node, x: Value) -> tuple[Value, Node]:
        """The whole tensor, and the node that puts it together, where `x` is the front of one whose rest passes."""
        front = self.edit.producer(x, "aten::slice")
        if front is None or not self.edit.is_read_once(node.outputs[0]):
            return x, node
        (join,) = self.edit.source.uses[node.outputs[0]]
        parts = join.args.get("tensors", ())
        rest = self.edit.producer(parts[-1], "aten::slice") if join.op == "aten::cat" and len(parts) == 2 else None
        if rest is None or parts[0] is not node.outputs[0] or not _last(join.args["dim"], 4):
            return x, node
        whole, width = front.args["self"], x.type.shape[-1]
        fits = rest.args["self"] is whole and _cut(front, 0, 1) and _cut(rest, width, 1)
        if not fits or whole.type != join.outputs[0].type:
            return x, node
        self.inner |= {node, front, rest}
        return whole, join

    def _rotated(self, value: Any) -> tuple[Value, bool, list[Node]] | None:
        """What a value is the quarter turn of, whether neighbours pair, and the nodes between."""
        flat = self.edit.producer(value, *RESHAPES)
        join = self.edit.producer(value, "aten::cat") or self.edit.producer(
            flat and flat.args.get("self"), "aten::stack"
        )
        if join is None or len(join.args["tensors"]) != 2:
            return None
        second, first = join.args["tensors"]
        neg = self.edit.producer(second, "aten::neg")
        a, b = self.edit.producer(first, *_PARTS), self.edit.producer(neg and neg.args["self"], *_PARTS)
        if not (neg and a and b) or a.args["self"] is not b.args["self"]:
            return None
        x: Value = a.args["self"]
        width, rank = x.type.shape[-1], x.type.rank
        if rank != 4 or x.type.dtype not in _DTYPES or not isinstance(width, int) or width % 2 or value.type != x.type:
            return None
        nodes = [join, neg, a, b]
        if flat is None:
            halves = _is_half(a, first, 0, width) and _is_half(b, neg.args["self"], 1, width)
            return (x, False, nodes) if halves and _last(join.args["dim"], rank) else None
        pairs = _cut(a, 0, 2) and _cut(b, 1, 2) and _last(join.args["dim"], rank + 1)
        return (x, True, [flat, *nodes]) if pairs else None

    def _table(self, value: Any, x: Value, interleaved: bool) -> Value | None:
        """Cosines or sines [B or 1, S, W/2] of those [B or 1, 1, S, W] that `x` is multiplied by."""
        if not isinstance(value, Value) or value.type.dtype is not x.type.dtype or value.type.rank != 4:
            return None
        batch, heads, length, width = value.type.shape
        if heads != 1 or batch not in (1, x.type.shape[0]) or (length, width) != x.type.shape[2:]:
            return None
        half = self._half(value, interleaved)
        return None if half is None else self._squeezed(value, half)

    def _half(self, value: Value, interleaved: bool) -> Value | None:
        """Every second of a table's columns, made without the others; None unless they are equal two by two."""
        key = value, interleaved
        if key not in self._halves:
            self._halves[key] = self._made_half(value, interleaved)
        return self._halves[key]

    def _made_half(self, value: Value, interleaved: bool) -> Value | None:
        node = self.edit.producer(value)
        if node is None:
            return None
        if node.op in ("aten::cat", "aten::repeat_interleave"):
            twice = _repeats(node) if interleaved else _doubles(node)
            if twice is not None:
                self.inner.add(node)
            return twice
        width = value.type.shape[-1]
        first = node.args.get("self")
        if not _keeps_halves(node):
            return None
        args = dict(node.args)
        for name, arg in args.items():
            if isinstance(arg, Value) and arg.type.shape[-1:] == (width,):
                args[name] = self._half(arg, interleaved)
                if args[name] is None:
                    return None
            elif isinstance(arg, Value) and arg.type.shape[-1:] not in ((), (1,)):
                return None
        if args["self"] is first:
            return None  # the width comes from elsewhere
        half = self.edit.value(f"{value.name}_half", value.type.with_shape((*value.type.shape[:-1], width // 2)))
        self.inner.add(node)
        self.made.setdefault(node, []).append(replace(node, args=args, outputs=(half,)))
        return half

    def _squeezed(self, table: Value, half: Value) -> Value:
        """The half of a table without the axis of the heads."""
        node = self.edit.source.producer[table]
        for made in self.made.setdefault(node, []):
            if made.op == "aten::squeeze" and made.args["self"] is half:
                return made.outputs[0]
        batch, _, length, width = half.type.shape
        flat = self.edit.value(f"{half.name}_table", half.type.with_shape((batch, length, width)))
        origin = replace(node.origin, overload="dim")
        self.made[node].append(Node("aten::squeeze", {"self": half, "dim": 1}, (flat,), origin))
        return flat


_PARTS = ("aten::slice", "aten::chunk", "aten::split")


def _both(node: Node) -> Iterator[tuple[Any, Any]]:
    a, b = node.args["self"], node.args["other"]
    yield from ((a, b), (b, a))


def _keeps_halves(node: Node) -> bool:
    """True for what keeps the two halves of its operands apart: element by element, or by an axis before the last."""
    if node.op == "aten::unsqueeze":
        return not _last(node.args["dim"], node.outputs[0].type.rank)
    return node.op in CASTS or (is_pointwise(node) and not is_random(node) and len(node.outputs) == 1)


def _last(dim: int, rank: int) -> bool:
    return dim in (-1, rank - 1)


def _cut(node: Node, start: Dim, step: int) -> bool:
    """True for what a slice of the last axis takes from `start` on, whatever its end."""
    args = node.args
    given = node.op == "aten::slice" and _last(args["dim"], args["self"].type.rank)
    return given and (args["start"] or 0, args["step"]) == (start, step)


def _is_half(node: Node, value: Value, which: int, width: int) -> bool:
    """True if a value is the first or the second half of the last axis."""
    if value.type.shape[-1] != width // 2:
        return False
    if node.op == "aten::slice":
        return _cut(node, which * (width // 2), 1)
    return _last(node.args["dim"], value.type.rank) and len(node.outputs) == 2 and node.outputs[which] is value


def _doubles(node: Node) -> Value | None:
    """What a concatenation along the last axis holds twice."""
    given = node.args.get("tensors", ())
    twice = len(given) == 2 and given[0] is given[1] and _last(node.args["dim"], given[0].type.rank)
    return given[0] if twice else None


def _repeats(node: Node) -> Value | None:
    """What a repetition holds every element of the last axis twice of."""
    given = node.args.get("self")
    twice = node.op == "aten::repeat_interleave" and node.args.get("repeats") == 2 and node.args["dim"] is not None
    return given if isinstance(given, Value) and twice and _last(node.args["dim"], given.type.rank) else None
