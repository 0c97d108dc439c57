"""`ir diff`: two models or artifacts by what they take and give, what they are made of, and what they compute."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import ir
from ir.cli import arrays, sources
from ir.cli.pairs import paired
from ir.opened import Opened, Port, places_in, symbols_of
from ir.opening import target_of
from ir.plugins import find_target
from ir.text import arg_text
from ir.verify import Row, rows
from ir.view.facts import all_nodes, short
from ir.view.listing import kept_args

_LINES = 60  # of changed nodes
_NAMED = 8  # weights


class Side:
    """One of the two: a file in its runtime, or a model as its graph, which the eager target runs."""

    def __init__(self, name: str, target: str | None, inputs: Sequence[str], task: str | None) -> None:
        self.name = name
        self.graph: ir.Graph | None = None
        sources.check_there(name)
        is_file = Path(name).exists()
        found = target_of(name, target) if is_file else None
        if found is None or found.name == "eager":
            described = [text for text in inputs if "[" in text] if not is_file else []
            self.graph = sources.captured(name, described, task)
        self._open: Callable[[], Opened] = lambda: _run_graph(self.graph) if found is None else found.open(Path(name))
        self.words = "graph" if self.graph is not None or found is None else found.name

    @cached_property
    def program(self) -> Opened:
        """What runs."""
        return self._open()

    @property
    def operators(self) -> Mapping[str, int]:
        """Its operations, counted."""
        if self.graph is not None:
            return Counter(n.overload for n in all_nodes(self.graph))
        return self.program.operators


class _GraphProgram:
    """A model's graph in the eager target."""

    threads = None

    def __init__(self, graph: ir.Graph) -> None:
        self.runner = ir.export(graph, target=find_target("eager", {"optimize": False})).runner
        self.inputs = [Port.of(v) for v in graph.inputs]
        self.outputs = [Port.of(v, name) for name, v in graph.results.items()]
        self.operators: Mapping[str, int] = Counter(n.overload for n in all_nodes(graph))
        self.places = places_in(graph)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self.runner(*inputs)


def _run_graph(graph: ir.Graph | None) -> Opened:
    assert graph is not None
    return _GraphProgram(graph)


@dataclass(frozen=True)
class Difference:
    """What differs: lines about the interface, the operations, the weights, the nodes, and the results as rows."""

    interface: list[str]
    operators: dict[str, tuple[int, int]]
    weights: list[str]
    nodes: list[str]
    numbers: list[Row]
    sizes: dict[str, int]

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        changed = self.interface or self.operators or self.weights or self.nodes
        return bool(changed) or not all(r.ok for r in self.numbers)

    def data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"different": self.any}


def diff(
    first: Side,
    second: Side,
    inputs: Sequence[str],
    sizes: Sequence[str],
    seed: int,
    rtol: float | None = None,
    atol: float | None = None,
) -> Difference:
    """The differences of two sides; numbers are compared where both take the same types.

    Raises:
        ExportError: one of them cannot be opened or run.
    """
    first.program, second.program = paired(first.program, second.program), paired(second.program, first.program)
    programs = first.program, second.program
    interface = [*_ports("input", *(p.inputs for p in programs)), *_ports("output", *(p.outputs for p in programs))]
    known: dict[str, int] = {}
    results: list[Row] = []
    if _take_the_same(*(p.inputs for p in programs)):
        results, known = _numbers(first, second, arrays.given(inputs), arrays.sizes(sizes), seed, rtol, atol)
    counts: dict[str, tuple[int, int]] = {}
    if first.words == second.words:
        a, b = first.operators, second.operators
        counts = {op: (a.get(op, 0), b.get(op, 0)) for op in sorted({*a, *b}) if a.get(op, 0) != b.get(op, 0)}
    if first.graph is None or second.graph is None:
        return Difference(interface, counts, [], [], results, known)
    graphs = first.graph, second.graph
    return Difference(interface, counts, _weights(*graphs), _nodes(*graphs), results, known)


def _ports(kind: str, first: Sequence[Port], second: Sequence[Port]) -> Iterator[str]:
    for a, b in zip(first, second, strict=False):
        if a.name != b.name:
            yield f"the {kind} {a.name} is called {b.name}"
        if a.dtype is not b.dtype or _fixed(a) != _fixed(b):
            yield f"the {kind} {a.name} is {a} and {b}"
    for gone in first[len(second) :]:
        yield f"the {kind} {gone.name}: {gone} is only in the first"
    for new in second[len(first) :]:
        yield f"the {kind} {new.name}: {new} is only in the second"


def _fixed(port: Port) -> list[int | None]:
    """The sizes, None for dynamic ones: files call them differently."""
    return [s if isinstance(s, int) else None for s in port.shape]


def _take_the_same(first: Sequence[Port], second: Sequence[Port]) -> bool:
    """Whether some inputs fit both."""
    alike = ((a.dtype, len(a.shape)) == (b.dtype, len(b.shape)) for a, b in zip(first, second, strict=False))
    sizes = (pair for a, b in zip(first, second, strict=False) for pair in zip(_fixed(a), _fixed(b), strict=False))
    return len(first) == len(second) and all(alike) and all(a == b or a is None or b is None for a, b in sizes)


def _numbers(
    first: Side,
    second: Side,
    given: Mapping[str, Any],
    chosen: Mapping[str, int],
    seed: int,
    rtol: float | None,
    atol: float | None,
) -> tuple[list[Row], dict[str, int]]:
    sides = sorted((first, second), key=lambda s: len({*symbols_of(s.program.inputs)}))  # fixed sizes decide
    lead = next((s for s in sides if chosen.keys() <= {*symbols_of(s.program.inputs)}), first)
    tensors, known = arrays.fitting(lead.program, given, chosen, seed)
    made = [[arrays.as_array(t) for t in side.program(*[t.clone() for t in tensors])] for side in (first, second)]
    count = min(map(len, made))
    names = [p.name for p in first.program.outputs][:count]
    return list(rows(names, made[1][:count], made[0][:count], rtol, atol)), known


def _weights(first: ir.Graph, second: ir.Graph) -> list[str]:
    """Which weights are only in one graph, or are others."""
    a, b = ({w.name: (v.type, w) for v, w in g.weights.items()} for g in (first, second))
    lines = [f"{n} {a[n][0]} is only in the first" for n in a if n not in b]
    lines += [f"{n} {b[n][0]} is only in the second" for n in b if n not in a]
    for name in a.keys() & b.keys():
        (left, held), (right, other) = a[name], b[name]
        if left != right:
            lines.append(f"{name} is {left} and {right}")
        elif not np.array_equal(x := held.numpy(), y := other.numpy(), equal_nan=x.dtype.kind in "fc"):
            gap = np.abs(x.astype(np.complex128) - y.astype(np.complex128)).max()
            lines.append(f"{name} {left} differs by {gap:.3g} at most")
    return sorted(lines)


def _nodes(first: ir.Graph, second: ir.Graph) -> list[str]:
    """The nodes that are only in one graph, in order, with the module before them."""
    renamed = _names_of_sizes(first, second)
    before = [_text(first, n, {}) for n in all_nodes(first)]
    after = [_text(second, n, renamed) for n in all_nodes(second)]
    lines = list(difflib.unified_diff(before, after, "first", "second", lineterm="", n=1))[2:]
    return lines[:_LINES] + ([f"... and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else [])


def _names_of_sizes(first: ir.Graph, second: ir.Graph) -> dict[str, str]:
    """What the first graph calls the dynamic sizes of the second: those of the same axes of inputs."""
    places = [
        {name: (g.inputs.index(s.value), s.axis) for name, s in g.sources.items() if s.value in g.inputs}
        for g in (first, second)
    ]
    names = {place: name for name, place in places[0].items()}
    return {name: names[place] for name, place in places[1].items() if place in names}


def _text(graph: ir.Graph, node: ir.Node, renamed: Mapping[str, str]) -> str:
    """A node without the names of values, which count on through a graph: one more would change all that follow."""
    weights = {v: w.name for v, w in graph.weights.items()}
    kept = {k: a for k, a in kept_args(node).items() if not isinstance(a, ir.Value) or a in weights}
    given = ", ".join(f"{k}={weights.get(a, '') if isinstance(a, ir.Value) else arg_text(a)}" for k, a in kept.items())
    types = ", ".join(str(v.type) for v in node.outputs)
    said = re.sub(r"[^\W\d]\w*", lambda m: renamed.get(m[0], m[0]), f"({given}) {types}")
    return f"{node.origin.module or '(top)'}: {node.short_op}{said}"


def lines(found: Difference, first: Side, second: Side) -> Iterator[str]:
    """What is printed."""
    for part, said in (("interface", found.interface), ("weights", found.weights)):
        for line in said[:_NAMED]:
            yield f"{part}: {line}"
        if len(said) > _NAMED:
            yield f"{part}: and {len(said) - _NAMED} more (--json has them all)"
    for op, (a, b) in found.operators.items():
        yield f"operations: {op}: {a} in the first, {b} in the second"
    if first.words != second.words:
        totals = [f"{sum(s.operators.values())} of {s.words}" for s in (first, second)]
        yield f"operations: {' and '.join(totals)}, which are not compared"
    yield from (f"  {line}" for line in found.nodes)
    at = f" at {', '.join(f'{n}={s}' for n, s in found.sizes.items())}" if found.sizes else ""
    for row in found.numbers:
        same = "the same" if row.error == 0 and row.ok else f"max error {short_error(row)}"
        yield f"numbers: {row.name} {row.dtype}{list(row.shape)}{at}: {same}" + (
            f"; {row.reason}" if row.reason else ""
        )
    if not found.numbers:
        yield "numbers: not compared, since they take different inputs"


def short_error(row: Row) -> str:
    """An error and what it is measured against."""
    return f"{row.error:.3g} (largest {short(row.scale)})" if row.scale else f"{row.error:.3g}"
