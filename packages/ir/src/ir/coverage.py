"""Which ops of a graph a target knows: native, through their body, or missing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.errors import RefusedError
from ir.graph import Graph, Node
from ir.lower import Driver
from ir.ops import CHECKS
from ir.preparation import prepared
from ir.target import Target


@dataclass(frozen=True)
class OpRow:
    """One op of a graph; `how` is native, body or missing, `through` the ops that its body uses."""

    op: str
    count: int
    how: str
    through: tuple[str, ...] = ()


def coverage(graph: Graph, target: Target) -> list[OpRow]:
    """A row for each op of the graph and its sub-graphs, the most frequent first.

    The graph is first rewritten as for an export: complex tensors and checks are gone where the target has none.

    Raises:
        RefusedError: it has sparse tensors and the target has none.
    """
    graph = prepared(graph, target, target.registry, graph.context)
    driver = Driver(graph, target, target.registry)
    nodes: dict[str, Node] = {}
    counts: Counter[str] = Counter()
    for node in _all_nodes(graph):
        if not node.op.startswith("ir::"):
            counts[node.overload] += 1
            nodes.setdefault(node.overload, node)
    return [_row(driver, nodes[op], count) for op, count in counts.most_common()]


def ways(graph: Graph, target: Target) -> dict[str, str]:
    """How each op of the graph as it is reaches a target: "native", "body", "check" or "missing".

    The core's own are native. What `prepared` takes away or writes in other ops is not missing: `coverage` and an
    export see the graph after it.
    """
    driver = Driver(graph, target, target.registry)
    first = {n.overload: n for n in reversed(_all_nodes(graph))}
    found = {op: "native" if op.startswith("ir::") else _row(driver, node, 1).how for op, node in first.items()}
    unknown = [op for op, how in found.items() if how == "missing"]
    if unknown:
        with contextlib.suppress(RefusedError):  # of a graph that the target refuses as a whole
            found |= _rewritten(prepared(graph, target, target.registry, graph.context), target, unknown, first)
    return found


def _rewritten(ready: Graph, target: Target, unknown: Sequence[str], first: Mapping[str, Node]) -> dict[str, str]:
    """The way of ops that had none before the graph was made ready: missing where a node from the same place is."""
    driver = Driver(ready, target, target.registry)
    lacking = {str(n.origin) for n in _all_nodes(ready) if _row(driver, n, 1).how == "missing"}
    checks = () if target.has_checks else CHECKS
    return {
        op: "check" if first[op].op in checks else "missing" if str(first[op].origin) in lacking else "body"
        for op in unknown
    }


def _row(driver: Driver, node: Node, count: int) -> OpRow:
    if driver.handler(node) is not None:
        return OpRow(node.overload, count, "native")
    body = driver.body(node)
    if body is None:
        return OpRow(node.overload, count, "missing")
    through = tuple(dict.fromkeys(n.op for n in _all_nodes(body.graph)))
    lacking = driver.missing(driver.graph.replace(nodes=(node,)))
    return OpRow(node.overload, count, "missing" if lacking else "body", through)


def _all_nodes(graph: Graph) -> list[Node]:
    return [n for node in graph.nodes for n in (node, *(i for g in node.graphs for i in _all_nodes(g)))]
