"""What depends on weights alone becomes a weight, computed by torch's own kernels when the artifact is written.

Only where it costs little: a folded weight is at most SMALL bytes, or TABLE unless it is the floats of as many
integers (a quantised weight), or no larger than the weights that it replaces. What needs more on the way, the sum of
2**32 zeros say, is left to the runtime: a file of 6 kB must not take the memory of the machine that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ir.dims import Expr, product
from ir.graph import ComputedWeight, Graph, Node, Value, leaves
from ir.ops import UNINITIALIZED
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import TensorType

SMALL = 1 << 16
TABLE = 1 << 18  # for what is no weight in integers: window attention looks its positions up in a smaller table
ON_THE_WAY = 1 << 28  # bytes of all that is made for one of them, beside what the weights that it reads have


@contract(requires=("functional",))
def fold_constants(graph: Graph) -> Graph:
    """Nodes that read weights alone, or nothing, and draw no random numbers, give way to weights."""
    return _folded(graph, replace_weights=True)


@contract(requires=("functional",))
def fold_small_constants(graph: Graph) -> Graph:
    """As fold_constants, for what is small alone: every large weight stays as the model has it."""
    return _folded(graph, replace_weights=False)


def _folded(graph: Graph, replace_weights: bool) -> Graph:
    if graph.context is None or graph.random:
        return graph
    constant: dict[Value, Node] = {}
    for node in graph.nodes:
        known = _foldable(node) and all(v in graph.weights or v in constant for v in node.inputs)
        if known and _computes(graph, node, constant):
            constant.update((v, node) for v in node.outputs)
    if not constant:
        return graph
    edit, inside = GraphEditor(graph), set(constant.values())
    freed = {v for v in graph.weights if v not in edit.results and inside.issuperset(graph.uses.get(v, ()))}
    freed = freed if replace_weights else set()
    for value, node in constant.items():
        needed = _upstream(node, constant)
        bases = _bases(graph, needed)
        small = SMALL if any(_dequantised(v.type, value.type) for v in bases) else TABLE
        if _is_large(needed, bases):
            continue
        if _bytes(value.type) <= max(small, sum(_bytes(v.type) for v in bases if v in freed)):
            edit.weights[value] = ComputedWeight(value.name, value.type, _compute(graph, needed, value, bases))
    edit.release(*inside)  # a constant too large to be kept is computed at run time, if anything reads it
    return edit.graph()


def _foldable(node: Node) -> bool:
    """True for an op of torch itself whose arguments and results are all known when the artifact is written."""
    if not node.op.startswith("aten::") and node.op != "ir::cast":
        return False  # dequantised weights are to stay as they are
    static = all(v.type.is_static for v in node.outputs)
    return (
        static
        and node.op not in UNINITIALIZED
        and not any(isinstance(a, Expr | Graph) for a in leaves(node.args.values()))
    )


def _upstream(node: Node, constant: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The node and all that it needs, in order."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for v in node.inputs:
                if v in constant:
                    visit(constant[v])
            found[node] = None

    visit(node)
    return tuple(found)


def _bases(graph: Graph, nodes: tuple[Node, ...]) -> dict[Value, None]:
    return dict.fromkeys(v for n in nodes for v in n.inputs if v in graph.weights)


def _is_large(nodes: tuple[Node, ...], bases: Mapping[Value, None]) -> bool:
    made = sum(_bytes(v.type) for n in nodes for v in n.outputs)
    return made > ON_THE_WAY + 8 * sum(_bytes(v.type) for v in bases)


def _computes(graph: Graph, node: Node, constant: Mapping[Value, Node]) -> bool:
    """False of a node whose kernel is not run on these numbers, or one too large to try that may not be."""
    if graph.context is None or not graph.context.is_doubtful(node):
        return True
    needed = _upstream(node, constant)
    bases = _bases(graph, needed)
    held = {v: graph.weights[v] for v in bases}
    return not _is_large(needed, bases) and graph.context.computes(needed, held)


def _compute(graph: Graph, nodes: tuple[Node, ...], value: Value, bases: Mapping[Value, None]) -> Callable[[], Any]:
    held = {v: graph.weights[v] for v in bases}
    return lambda: graph.context.evaluate(nodes, held, value)


def _dequantised(base: TensorType, made: TensorType) -> bool:
    return not base.dtype.is_float and made.dtype.is_float and product(base.shape) == product(made.shape)


def _bytes(type: TensorType) -> int:
    count = product(type.shape)
    assert isinstance(count, int)
    return count * type.dtype.bits // 8
