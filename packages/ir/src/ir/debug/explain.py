"""What a failed verification adds to its error: the node that differs by itself, or the smallest part that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ir.debug.nodes import table_of
from ir.debug.search import smallest, tried
from ir.debug.values import Values
from ir.graph import Graph, Node
from ir.registry import Registry
from ir.target import Target
from ir.trial import described

_SECONDS = 20.0
_NAMED = 6


def explained(graph: Graph, target: Target, registry: Registry, inputs: Sequence[Any]) -> str:
    """The node whose own error is not rounding, or the smallest part that differs where no node does by itself.

    Empty where that cannot be told: the first error is what counts, and nothing here must hide it.
    """
    try:
        return _explained(graph, target, registry, inputs)
    except Exception as error:
        return f"(which node differs is not known: {type(error).__name__}: {str(error).partition(chr(10))[0]})"


def _explained(graph: Graph, target: Target, registry: Registry, inputs: Sequence[Any]) -> str:
    table = table_of(graph, target, registry, inputs)
    if table.wrong:
        worst = f"the node with the largest error of its own:\n  {table.wrong[0]}"
        others = len(table.wrong) - 1
        by = "differs by itself" if others == 1 else "differ by themselves"
        return f"{worst}\n  ({others} more {by}: ir.debug(program) lists them)" if others else worst
    torch.manual_seed(0)
    expected = Values(graph).run(inputs)

    def fails(nodes: Sequence[Node]) -> bool:
        return tried(graph, target, registry, expected, nodes).kind == "mismatch"

    if not fails(graph.nodes):
        nearest = "no node differs by itself, and with torch's own values of what is read nothing does"
        return f"{nearest}: the errors add up. The largest: \n  {table.ranked[0]}"
    found = smallest(graph.nodes, fails, _SECONDS)
    return "no node differs by itself; the smallest part that does:\n  " + "\n  ".join(_lines(found, described))


def _lines(nodes: Sequence[Node], line: Callable[[Node], str]) -> list[str]:
    shown = [f"%{n.name} = {line(n)}" for n in nodes[:_NAMED]]
    return [*shown, f"and {len(nodes) - _NAMED} more"] if len(nodes) > _NAMED else shown
