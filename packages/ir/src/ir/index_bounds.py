"""Indices that torch's kernels refuse: runtimes count from the end of the axis, read its last element, or end.

A program looks at them before it runs, where they are inputs or integers that the model makes of inputs by torch's
operators, which are computed by torch's kernels for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ir.conditions import sizes_of
from ir.dims import evaluate, product
from ir.errors import RefusedError
from ir.graph import Graph, Node, Value, symbols_in
from ir.importer.evaluate import Kernels
from ir.indexed import INDEXED, Bound
from ir.ops import CASTS, COPIES, UNINITIALIZED, is_random, is_view
from ir.types import DType

MOST_NODES = 24  # of a computation that is repeated before each run


@dataclass(frozen=True, eq=False)
class _Indices:
    """The indices of one node: the numbers of an input, or of what these nodes make of the inputs with these names."""

    node: Node
    bound: Bound
    source: Value
    nodes: frozenset[Node]
    names: str


class IndexBounds:
    """The indices in a graph that can be looked at before it runs."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._makers = {v: n for n in graph.nodes for v in n.outputs}
        self._sized = symbols_in(v.type.shape for v in graph.inputs)
        found: dict[tuple[Value, Any], _Indices] = {}
        for node in graph.nodes:
            for bound in INDEXED[node.op](node.args) if node.op in INDEXED else ():
                source = self._source(bound.indices)
                nodes = frozenset() if source in graph.inputs else self._nodes(source)
                if nodes or source in graph.inputs:
                    read = {source}.union(*(n.inputs for n in nodes))
                    names = ", ".join(v.name for v in graph.inputs if v in read)
                    found.setdefault((source, bound[1:]), _Indices(node, bound, source, nodes, names))
        self._changing = [f for f in found.values() if f.names]
        self._of_sizes = [f for f in found.values() if not f.names]
        self._accepted: Any = None  # the sizes at which the second were last looked at

    def check(self, inputs: Sequence[Any]) -> None:
        """Look at the indices of a run; those on another device than the CPU are not waited for.

        Raises:
            RefusedError: one is below what torch's kernel takes, or not below the size of the axis.
        """
        if not (self._changing or self._of_sizes) or any(x.device.type != "cpu" for x in inputs):
            return
        values = dict(zip(self._graph.inputs, inputs, strict=True))
        sizes = sizes_of(self._graph, inputs)
        if self._of_sizes and sizes != self._accepted:
            _check(self._of_sizes, _computed(self._kernels_of_sizes, values, sizes), sizes)
            self._accepted = sizes
        _check(self._changing, _computed(self._kernels, values, sizes), sizes)

    @cached_property
    def _kernels(self) -> Kernels | None:
        return self._ready(self._changing)

    @cached_property
    def _kernels_of_sizes(self) -> Kernels | None:
        return self._ready(self._of_sizes)

    def _ready(self, indices: Sequence[_Indices]) -> Kernels | None:
        wanted = frozenset[Node]().union(*(f.nodes for f in indices))
        if not wanted:
            return None
        read = {v for n in wanted for v in n.inputs}
        weights = {v: w for v, w in self._graph.weights.items() if v in read}
        return Kernels((n for n in self._graph.nodes if n in wanted), weights)

    def _source(self, value: Value) -> Value:
        """What the indices are taken from as they are: views and copies of all elements, in another type or not."""
        while (node := self._makers.get(value)) is not None and (is_view(node) or node.op in CASTS | COPIES):
            before = next(iter(node.inputs), None)
            if before is None or product(before.type.shape) != product(value.type.shape) or before.type.dtype.is_float:
                break
            value = before
        return value

    def _nodes(self, value: Value) -> frozenset[Node]:
        """The nodes that make integers of inputs and weights by torch's operators on integers; none if not all do."""
        made: set[Node] = set()
        open_ = [value]
        while open_:
            node = self._makers.get(open_.pop())
            if node is None or node in made:
                continue
            if len(made) == MOST_NODES or not self._is_of_integers(node):
                return frozenset()
            made.add(node)
            open_ += node.inputs
        return frozenset(made)

    def _is_of_integers(self, node: Node) -> bool:
        values = (*node.inputs, *node.outputs)
        discrete = all(v.type.dtype.is_integer or v.type.dtype is DType.bool for v in values)
        sized = symbols_in([*node.args.values(), *(v.type.shape for v in values)]) <= self._sized
        known = node.op.startswith(("aten::", "ir::require")) and not node.graphs and node.op not in UNINITIALIZED
        context = self._graph.context
        harmless = context is None or not (context.of_file and context.is_doubtful(node))
        return discrete and sized and known and harmless and not is_random(node)


def _computed(kernels: Kernels | None, values: dict[Value, Any], sizes: Mapping[str, int]) -> Mapping[Value, Any]:
    if kernels is None:
        return values
    try:
        return kernels.run(values, sizes)
    except Exception:  # the model does not come to these indices either
        return values


def _check(indices: Sequence[_Indices], numbers: Mapping[Value, Any], sizes: Mapping[str, int]) -> None:
    for found in indices:
        bound = found.bound
        x = numbers.get(found.source)
        if x is None or not symbols_in([bound.lowest, bound.size]) <= sizes.keys():
            continue
        x = x.long()  # unsigned numbers have no `aminmax`
        if bound.ignored is not None:
            x = x[x != bound.ignored]
        if not x.numel():
            continue
        low, high = (int(n) for n in x.aminmax())
        lowest, size = evaluate(bound.lowest, sizes), evaluate(bound.size, sizes)
        if low < lowest or high >= size:
            raise _refused(found, f"{lowest} to {size - 1}", str(low) if low == high else f"from {low} to {high}")


def _refused(found: _Indices, bounds: str, given: str) -> RefusedError:
    what = "what the model computes" if found.nodes else f"the input {found.names}"
    of = f" of {found.names}" if found.nodes and found.names else ""
    return RefusedError(
        f"{found.node.short_op} takes {what}{of} as indices from {bounds}, and it has {given}; torch refuses that too\n"
        f"  at {found.node.origin}"
    )
