"""The rules that a graph obeys, as a table; run after the import and, in tests, after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ir.errors import GraphError
from ir.graph import Graph, Node, Value, leaves
from ir.types import DType

Rule = Callable[[Graph], Iterator[str]]


def _defined_before_use(graph: Graph) -> Iterator[str]:
    known = {*graph.inputs, *graph.weights}
    for node in graph.nodes:
        yield from (f"{node.name} reads %{v.name} before it is made" for v in node.inputs if v not in known)
        known.update(node.outputs)
    yield from (f"the result {n} is made nowhere" for n, v in graph.results.items() if v not in known)


def _made_once(graph: Graph) -> Iterator[str]:
    seen: set[Value] = {*graph.inputs, *graph.weights}
    for node in graph.nodes:
        yield from (f"%{v.name} is made twice" for v in node.outputs if v in seen)
        seen.update(node.outputs)


def _ops_have_namespaces(graph: Graph) -> Iterator[str]:
    yield from (f"{n.op!r} is no 'namespace::name'" for n in graph.nodes if n.op.count("::") != 1)


def _arguments_are_plain(graph: Graph) -> Iterator[str]:
    allowed = (Value, Graph, DType, str, bool, int, float, complex, type(None))
    for node in graph.nodes:
        for leaf in leaves(node.args.values()):
            if not isinstance(leaf, allowed) and type(leaf).__name__ != "Expr":
                yield f"{node.name} has an argument of type {type(leaf).__name__}"


def _results_fit(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.returns == "one" and len(node.outputs) != 1:
            yield f"{node.name} returns one tensor and has {len(node.outputs)} outputs"


def _names_are_unique(graph: Graph) -> Iterator[str]:
    names = [v.name for v in (*graph.inputs, *graph.weights)]
    names += [v.name for n in graph.nodes for v in n.outputs]
    yield from (f"the name %{n} is taken twice" for n in {n for n in names if names.count(n) > 1})


def _weights_fit(graph: Graph) -> Iterator[str]:
    for value, weight in graph.weights.items():
        if value.type != weight.type:
            yield f"weight {weight.name} is {weight.type}, its value {value.type}"


RULES: dict[str, Rule] = {
    "defined before use": _defined_before_use,
    "made once": _made_once,
    "ops have namespaces": _ops_have_namespaces,
    "arguments are plain": _arguments_are_plain,
    "results fit": _results_fit,
    "names are unique": _names_are_unique,
    "weights fit": _weights_fit,
}


def check(graph: Graph) -> Graph:
    """The graph itself, sub-graphs checked too.

    Raises:
        GraphError: with every broken rule.

    Examples:
        >>> ir.check(graph) is graph
        True
    """
    broken = [f"{name}: {message}" for name, rule in RULES.items() for message in rule(graph)]
    if broken:
        raise GraphError(f"graph {graph.name}:\n  " + "\n  ".join(broken))
    for node in graph.nodes:
        for inner in _graphs(node):
            check(inner)
    return graph


def _graphs(node: Node) -> tuple[Graph, ...]:
    return node.graphs
