"""Sizes below those that torch.export traces for: at size 1, `x[:2]` is shorter than its trace says.

torch.export takes a dynamic size to be 2 at least, and gives `x[:2]` the size 2. Here it becomes `min(2, n)`, and what
is computed from it follows: torch's meta kernels tell the shapes at 0, 1 and larger sizes, and an expression is taken
that agrees with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ir import geometry
from ir.bounds import Range, bounds
from ir.conditions import SHORTER, symbols_of
from ir.dims import Dim, Expr, call, evaluate, maximum, minimum, quotient
from ir.graph import Context, Graph, Node, Value, leaves
from ir.passes.checks import all_of, required
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor, reading
from ir.types import TensorType

_LARGE = ((290, 2), (410, 3))  # a size that the slices of an example hardly reach, and the gap to the next symbol's

Sizes = Mapping[str, int]


@contract(requires=("of torch", "flat"))
def exact_sizes(graph: Graph) -> Graph:
    """The graph with sizes that hold for all values of the symbols, where a slice has a fixed size in the trace.

    Where no such size is found, the graph requires the sizes that it was traced for. A slice of one, `x[:1]`, becomes
    `min(1, n)` where such sizes are found for all that is computed from it, and stays as it is where not. So it does
    where it is part of a result, whose size a file states as `n + 1`.
    """
    if graph.context is None:
        return graph
    several = _cuts(graph, (1).__lt__)
    exact = _Exact(graph, graph.context, several)
    usual = (exact.graph() or exact.required()) if several else graph
    made = with_empty_slices(graph) if _cuts(graph, (1).__eq__) else None
    return made if made is not None and _types(made) == _types(usual) else usual


def with_empty_slices(graph: Graph) -> Graph | None:
    """The graph with sizes that hold where slices of one are empty too; None where they are not found."""
    return None if graph.context is None else _Exact(graph, graph.context, _cuts(graph, (0).__lt__), one=True).graph()


def _cuts(graph: Graph, chosen: Callable[[int], bool]) -> set[Node]:
    """The slices with such fixed sizes that may be shorter."""
    return {n for n in graph.nodes if n.op in SHORTER and any(map(chosen, may_be_shorter(n, graph.symbols)))}


def _types(graph: Graph) -> list[TensorType]:
    return [v.type for v in graph.results.values()]


def may_be_shorter(node: Node, ranges: Mapping[str, Range]) -> list[int]:
    """Fixed sizes of a result that are cut from a dynamic size, or at a dynamic place, that may be less."""
    whole = node.args["self"].type.shape
    if node.op == "aten::diagonal":
        sides = [whole[geometry.axis(node.args[a], len(whole))] for a in ("dim1", "dim2")]
        d, past = node.outputs[0].type.shape[-1], abs(node.args["offset"])
        dynamic = [n for n in sides if isinstance(n, Expr)]
        return [d] if isinstance(d, int) and any(bounds(n, ranges)[0] < d + past for n in dynamic) else []
    ends = [a for a in leaves(node.args.values()) if isinstance(a, Expr)]
    axis = geometry.axis(node.args["dim"], len(whole))
    return [
        d
        for v in node.outputs
        for i, (n, d) in enumerate(zip(whole, v.type.shape, strict=True))
        if isinstance(d, int)
        and any(isinstance(e, Expr) and bounds(e, ranges)[0] < d for e in (n, *(ends if i == axis else ())))
    ]


def _samples(ranges: Mapping[str, Range]) -> list[Sizes]:
    """Values of the symbols: large ones, and 0 and 1 for all of them and for each alone."""

    def within(size: int, r: Range) -> int:
        size = max(size, r.min or 0)
        return size if r.max is None else min(size, r.max)

    large, others = (
        {n: within(size + step * i, r) for i, (n, r) in enumerate(ranges.items())} for size, step in _LARGE
    )
    small = [{name: within(size, r) for name, r in ranges.items()} for size in (0, 1)]
    alone = [large | {name: s[name]} for s in small for name in ranges]
    return [large, others, *small, *alone]


@dataclass
class _Exact:
    """One walk over a graph."""

    source: Graph
    context: Context
    cuts: set[Node]
    one: bool = False  # a size of 1 may be 0 in truth

    def graph(self) -> Graph | None:
        """The graph with exact sizes, None where they are not found."""
        edit = GraphEditor(self.source)
        for node in self.source.nodes:
            made = edit.reading(node)
            if made is not node or node in self.cuts:
                outputs = self._outputs(made)
                if outputs is None:
                    return None
                edit.replace(node, replace(made, outputs=outputs), results=outputs)
        return edit.graph()

    def _outputs(self, node: Node) -> tuple[Value, ...] | None:
        """The results with sizes that agree with torch's at all samples; None where none are found.

        Nor where a size of 1 is 0 in truth, unless `one` says that its users are looked at as well.
        """
        if node.graphs:
            return None
        samples = _samples({n: self.source.symbols.get(n, Range()) for n in sorted(symbols_of(node))})
        shapes = [self.context.result_shapes(node, s) for s in samples]
        taken = [(s, m) for s, m in zip(samples, shapes, strict=True) if m is not None]
        if shapes[0] is None or shapes[1] is None:
            return None
        found = []
        for i, value in enumerate(node.outputs):
            if any(len(m[i]) != value.type.rank for _, m in taken):
                return None
            dims: list[Dim] = []
            for axis, d in enumerate(value.type.shape):
                exact = (c for c in _candidates(d, node) if all(evaluate(c, s) == m[i][axis] for s, m in taken))
                size = next(exact, None)
                if size is None or (d == 1 and size != 1 and not self.one):
                    return None
                dims.append(size)
            same = tuple(dims) == value.type.shape
            found.append(value if same else Value(value.name, replace(value.type, shape=tuple(dims))))
        return tuple(found)

    def required(self) -> Graph:
        """The graph that requires of each slice the length that it was traced with."""
        edit = GraphEditor(self.source)
        for node in self.source.nodes:
            condition = self._condition(node) if node in self.cuts else None
            if condition is not None:
                x = node.args["self"]
                message = f"{node.short_op} gives the sizes of the trace only where {condition}; capture the model anew"
                handed = edit.value(f"{node.name}_of", x.type)
                first = required(x, handed, condition, f"{message} for other sizes", node.origin)
                edit.replace(node, first, reading(node, {x: handed}))
        return edit.graph()

    def _condition(self, node: Node) -> Expr | None:
        """Where the results of a slice have the sizes of the trace."""
        exact = self._outputs(node) or ()
        pairs = [
            (a, b)
            for v, o in zip(node.outputs, exact, strict=False)
            for a, b in zip(v.type.shape, o.type.shape, strict=True)
        ]
        return all_of(call("eq", b, a) for a, b in dict.fromkeys(pairs) if a != b)


def _numbers(node: Node) -> list[int]:
    return [a for a in leaves(node.args.values()) if type(a) is int and abs(a) < 2**31]


def _candidates(size: Dim, node: Node) -> Iterator[Dim]:
    """What a size of the trace may be in truth."""
    yield size
    yield maximum(size, 0)
    operands = [d for v in node.inputs for d in v.type.shape if isinstance(d, Expr)]
    operands += [a for a in leaves(node.args.values()) if isinstance(a, Expr)]
    yield from dict.fromkeys(operands)
    for n in dict.fromkeys(operands):
        yield minimum(size, n)
        for start in _numbers(node):
            yield minimum(size, maximum(n - start, 0))
    for n in dict.fromkeys(operands):
        traced = evaluate(n, dict.fromkeys(n.symbols, _LARGE[0][0]))  # of min(2, n), say: 2
        if isinstance(traced, int) and traced > 0:
            yield size - traced + n
            if isinstance(size, int) and size % traced == 0:
                yield size // traced * n
            elif isinstance(size, Expr) and (share := quotient(size, traced)) is not None:
                yield share * n
