"""What there is to say of a graph in numbers: tensors, weights, ops, floating-point operations, each target's way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ir.conditions import sizes_of
from ir.coverage import ways
from ir.errors import ExportError
from ir.graph import Graph, Node, Value, leaves
from ir.target import Target
from ir.text import arg_text

_UNKNOWN = 16  # of a dynamic dimension where the graph has no example


@dataclass(frozen=True)
class Tensor:
    """An input, output or weight by name, with its type as text and its bytes (of a weight)."""

    name: str
    type: str
    bytes: int = 0


@dataclass(frozen=True)
class Weights:
    """All weights of one element type."""

    type: str
    tensors: int
    numbers: int
    bytes: int


@dataclass(frozen=True)
class Op:
    """All nodes of one op; `ways` has native, body, check or missing by target."""

    op: str
    count: int
    flops: int
    ways: dict[str, str]


@dataclass(frozen=True)
class Facts:
    """A graph in numbers. `flops` counts products, convolutions and attention, as torch counts them, at `sizes`."""

    name: str
    nodes: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    dynamic: dict[str, str]
    weights: list[Weights]
    largest: list[Tensor]
    ops: list[Op]
    flops: int
    sizes: dict[str, int]
    targets: list[str]
    notes: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    @property
    def numbers(self) -> int:
        """The numbers in all weights."""
        return sum(w.numbers for w in self.weights)

    @property
    def bytes(self) -> int:
        """The bytes of all weights."""
        return sum(w.bytes for w in self.weights)


def facts(graph: Graph, targets: Sequence[Target] = (), largest: int = 5) -> Facts:
    """The facts of a graph, and what each of these targets would do with its ops."""
    found = {t.name: ways(graph, t) for t in targets}
    sizes = example_sizes(graph)
    nodes = all_nodes(graph)
    counts = Counter(n.overload for n in nodes)
    sums: Counter[str] = Counter()
    for node, flops in zip(nodes, flops_of(graph, nodes, sizes), strict=True):
        sums[node.overload] += flops
    weights = [Tensor(w.name, str(v.type), v.type.nbytes) for v, w in graph.weights.items()]
    return Facts(
        graph.name,
        len(nodes),
        [Tensor(v.name, str(v.type)) for v in graph.inputs],
        [Tensor(name, str(v.type)) for name, v in graph.results.items()],
        {s: f"from {r.min}" + ("" if r.max is None else f" to {r.max}") for s, r in graph.symbols.items()},
        _by_type(graph),
        sorted(weights, key=lambda w: -w.bytes)[:largest],
        [Op(op, n, sums[op], {t: by[op] for t, by in found.items()}) for op, n in counts.most_common()],
        sum(sums.values()),
        sizes,
        list(found),
    )


def _by_type(graph: Graph) -> list[Weights]:
    groups: dict[str, list[Value]] = {}
    for value in graph.weights:
        groups.setdefault(value.type.dtype.name, []).append(value)
    return [
        Weights(name, len(vs), sum(v.type.numbers for v in vs), sum(v.type.nbytes for v in vs))
        for name, vs in groups.items()
    ]


def all_nodes(graph: Graph) -> list[Node]:
    """The nodes, those of sub-graphs behind the node that holds them."""
    return [n for node in graph.nodes for n in (node, *(i for g in node.graphs for i in all_nodes(g)))]


def example_sizes(graph: Graph) -> dict[str, int]:
    """The sizes of the example that a graph was captured with; 16 for what it does not tell."""
    known: Mapping[str, int] = {}
    if graph.context is not None and graph.structure is not None:
        try:
            known = sizes_of(graph, graph.structure.flatten(*graph.context.example()))
        except ExportError:  # a file saved without one
            known = {}
    return {name: known.get(name, _UNKNOWN) for name in graph.symbols}


def flops_of(graph: Graph, nodes: Sequence[Node], sizes: Mapping[str, int]) -> list[int]:
    """The floating-point operations of each node at these sizes; 0 where torch has no formula for it."""
    known: dict[tuple[str, ...], int] = {}  # torch is asked once for equal ones
    found = []
    for node in nodes:
        rest = (arg_text(a) for a in leaves(node.args.values()) if not isinstance(a, (Value, Graph)))
        key = (node.overload, *(str(v.type) for v in node.inputs), "", *rest)
        if key not in known:
            known[key] = 0 if graph.context is None else graph.context.flops(node, sizes)
        found.append(known[key])
    return found


_UNITS = ("", "K", "M", "G", "T", "P")


def short(number: float, unit: str = "") -> str:
    """A number of three digits and a letter: 11.7 M, 46.8 MB."""
    place = 0
    while abs(number) >= 999.5 and place < len(_UNITS) - 1:
        number, place = number / 1000, place + 1
    return f"{number:.3g} {_UNITS[place]}{unit}".strip()


def joined(items: Iterable[str], most: int = 4) -> str:
    """A list for people, cut behind some."""
    every = list(items)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
