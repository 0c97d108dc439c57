"""What a pass needs of a graph and what it leaves, as properties that can be looked at.

`@contract(requires=..., ensures=..., undoes=...)` stands at a pass; tests/integration/test_contracts.py checks it
before and after every pass of every target, on the cases and on models, and the order of the passes against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ir.graph import Graph, Node
from ir.importer.schema import op_schema
from ir.ops import CHECKS, overloads_of
from ir.types import DType

Property = Callable[[Graph], bool]
P = TypeVar("P", bound=Callable[..., Graph])

_MADE_BY_PASSES = ("ir::rotary_embedding", "ir::same_size", "nnef::bfloat16")


@dataclass(frozen=True)
class Contract:
    """The names of properties.

    Attributes:
        requires: what holds of the graphs that the pass is given.
        ensures: what holds of those that it makes.
        undoes: what may hold no longer behind it.
    """

    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
    undoes: tuple[str, ...] = ()


def _every(holds: Callable[[Node], bool]) -> Property:
    """The property that something holds of every node, those of sub-graphs included."""
    return lambda graph: all(map(holds, _nodes(graph)))


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.graphs:
            yield from _nodes(inner)


def _has(dtypes: Callable[[DType], bool]) -> Callable[[Node], bool]:
    return lambda node: any(dtypes(v.type.dtype) for v in (*node.inputs, *node.outputs))


PROPERTIES: dict[str, Property] = {
    "functional": _every(lambda n: not any(op_schema(o).writes for o in overloads_of(n.op, n.origin.overload))),
    "real": _every(lambda n: not _has(lambda t: t.is_complex)(n)),
    "without checks": _every(lambda n: n.op not in CHECKS),
    "without bfloat16": _every(lambda n: not _has(lambda t: t is DType.bfloat16)(n)),
    "flat": _every(lambda n: n.op != "ir::call"),  # neighbours stand beside each other, whatever module they are of
    "of torch": _every(lambda n: n.op not in _MADE_BY_PASSES),  # torch can be asked what a node gives
}
IMPORTED = ("functional", "flat", "of torch")  # of every graph that the importer makes
CONTRACTS: dict[Callable[..., Graph], Contract] = {}


def contract(
    requires: tuple[str, ...] = (), ensures: tuple[str, ...] = (), undoes: tuple[str, ...] = (), settles: str = ""
) -> Callable[[P], P]:
    """Put a contract on a pass. `settles` names the property of the graphs that the pass leaves as they are."""

    def noted(fn: P) -> P:
        if settles:
            PROPERTIES[settles] = lambda graph: fn(graph) is graph
        CONTRACTS[fn] = Contract(requires, (*ensures, settles) if settles else ensures, undoes)
        return fn

    return noted


def contract_of(rewrite: Callable[..., Graph]) -> Contract:
    """The contract of a pass; one without needs nothing and promises nothing."""
    return CONTRACTS.get(getattr(rewrite, "__func__", rewrite), Contract())


def broken(graph: Graph, names: tuple[str, ...] | Mapping[str, object]) -> list[str]:
    """Those of the properties that do not hold."""
    return [name for name in names if not PROPERTIES[name](graph)]
