"""One form for sizes that torch.export found to be one: `2*(h//4)` and `h//2`, of a map upsampled beside another.

A target that compares sizes as expressions takes no sum of two such maps. Here each size gets the shorter of its forms,
and where an operation makes it in the other one, `ir::same_size` stands behind it, which a target writes as it can.

torch also notes what it asked of sizes without a need, such as whether a crop is the whole and so lies densely in
memory. Where torch's shape rules take every node at sizes that differ, the two are not one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ir.bounds import Range, divides_by_size, within
from ir.conditions import TEXTS, holds, holds_at, may_differ, symbols_of
from ir.dims import Dim, Expr, call, quotient
from ir.graph import Graph, Node, Value, symbols_in
from ir.passes.checks import check, held_input
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor

Rules = Sequence[tuple[Expr, Dim]]
_ROUND = 192  # a size that what halves and doubles maps, up to six times, takes and gives back
_BESIDE = (1, 2, 4, 8, 16, 32, 3, 5, 7)  # what is added to it: only the first levels of such maps round an 8 more


@contract(undoes=("of torch",))
def equal_sizes(graph: Graph) -> Graph:
    """The graph with one form for each size, and `ir::same_size` where a result has another one."""
    rules = _rules(_needed(graph))
    if not rules:
        return graph
    edit = GraphEditor(graph)
    for node in graph.nodes:
        read, outputs, stands, behind = _changed(node, edit), [], [], []
        for value in node.outputs:
            meant = tuple(_rewritten(d, rules) for d in value.type.shape)
            made = meant if _says_shape(node) else tuple(_rewritten(d, read) for d in value.type.shape)
            kept = value if made == value.type.shape else Value(value.name, replace(value.type, shape=made))
            outputs.append(kept)
            if made != meant:
                kept = edit.value(f"{value.name}_same", replace(value.type, shape=meant))
                origin = replace(node.origin, overload="")
                behind.append(Node("ir::same_size", {"self": outputs[-1]}, (kept,), origin))
            stands.append(kept)
        if tuple(stands) != node.outputs:
            edit.replace(node, replace(node, outputs=tuple(outputs)), *behind, results=stands)
    return edit.graph()


@contract()
def hold_equal_sizes(graph: Graph) -> Graph:
    """The graph with its smallest input held to them, for a runtime that broadcasts sizes or skips what is empty."""
    from_inputs = {n for n, s in graph.sources.items() if s.value in graph.inputs and s.axis is not None}
    given = [pair for pair in graph.equal if symbols_in(pair) <= from_inputs]
    pairs = [pair for pair in given if not any(map(divides_by_size, pair))]  # noted of their product too
    if not pairs:
        return graph
    needed = [(a, b) for a, b in _needed(graph) if (a, b) in pairs and may_differ(a, b, graph.symbols)]
    return held_input(graph, [check(call("eq", a, b), f"the operators need {a} == {b}") for a, b in needed])


def _needed(graph: Graph) -> Sequence[tuple[Dim, Dim]]:
    """The pairs of sizes that are one wherever torch computes the graph, as far as its shape rules tell."""
    left, context = list(graph.equal), graph.context
    if not left or context is None:
        return left
    varying = symbols_in([d for pair in left for d in pair])
    nodes = [n for n in graph.nodes if n.op not in TEXTS and not symbols_of(n).isdisjoint(varying)]
    symbols = frozenset().union(*map(symbols_of, nodes), varying)
    for sizes in _samples({n: graph.symbols.get(n, Range()) for n in sorted(symbols)}, varying):
        same = [(a, b) for a, b in left if holds(call("eq", a, b), sizes)]
        if len(same) < len(left) and all(holds_at(n, sizes, context) for n in nodes):
            left = same
    return left


def _samples(ranges: Mapping[str, Range], varying: frozenset[str]) -> Iterator[dict[str, int]]:
    """Values of the symbols: those that vary a little above a round size, all of them and each alone."""
    names = [n for n in ranges if n in varying]
    for chosen in (names, *([n] for n in names if len(names) > 1)):
        for more in _BESIDE:
            wished = {n: _ROUND * (i + 1) + (more if n in chosen else 0) for i, n in enumerate(ranges)}
            yield {n: within(size, ranges[n]) for n, size in wished.items()}


def _rules(equal: Sequence[tuple[Dim, Dim]]) -> Rules:
    """From each longer form to the shortest that it equals; what holds of multiples comes after what holds of more."""
    alike: dict[Dim, list[Dim]] = {}
    for pair in equal:
        joined = list(dict.fromkeys(d for size in pair for d in alike.get(size, [size])))
        alike |= dict.fromkeys(joined, joined)
    shortest = {size: min(sizes, key=_length) for size, sizes in alike.items()}
    found = [(size, short) for size, short in shortest.items()
             if isinstance(size, Expr) and size.as_symbol is None and size != short]  # fmt: skip
    return sorted(found, key=lambda rule: _length(rule[0]), reverse=True)


def _length(size: Dim) -> tuple[int, str]:
    return len(str(size)), str(size)


def _says_shape(node: Node) -> bool:
    """True of a reshape or an expansion: its result has the sizes that it is asked for, in whatever form."""
    return isinstance(node.args.get("self"), Value) and not {"size", "shape"}.isdisjoint(node.args)


def _changed(node: Node, edit: GraphEditor) -> Rules:
    """What the sizes of the operands have become."""
    pairs = [(v.type.shape, edit.current(v).type.shape) for v in node.inputs]
    return [(a, b) for old, new in pairs for a, b in zip(old, new, strict=True) if isinstance(a, Expr) and a != b]


def _rewritten(size: Dim, rules: Rules) -> Dim:
    for long, short in rules:
        share = quotient(size, long) if isinstance(size, Expr) else None
        if share is not None:
            made = share * short  # whose own form may be a shorter one yet: 4*(h//16), 2*(h//8), h//4
            return _rewritten(made, rules) if _length(made) < _length(size) else made
    if not isinstance(size, Expr) or len(size.terms) == 1:
        return size
    return sum((_rewritten(Expr((term,)), rules) if term[0] else term[1] for term in size.terms), 0)
