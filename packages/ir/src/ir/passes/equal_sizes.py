"""One form for sizes that torch.export found to be one: `2*(h//4)` and `h//2`, of a map upsampled beside another.

A target that compares sizes as expressions takes no sum of two such maps. Here each size gets the shorter of its forms,
and where an operation makes it in the other one, `ir::same_size` stands behind it, which a target writes as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.dims import Dim, Expr, quotient
from ir.graph import Graph, Node, Value
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor

Rules = Sequence[tuple[Expr, Dim]]


@contract(undoes=("of torch",))
def equal_sizes(graph: Graph) -> Graph:
    """The graph with one form for each size, and `ir::same_size` where a result has another one."""
    rules = _rules(graph.equal)
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
