"""Inputs that models do not see every day, and how single nodes do on them in a target's runtime."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ir.debug.errors import distance
from ir.debug.running import Runs, watched_values
from ir.debug.unwritten import without_unwritten
from ir.debug.values import Values
from ir.dims import evaluate
from ir.graph import Graph, Node, Value, symbols_in
from ir.importer.evaluate import tensor_of
from ir.registry import Registry
from ir.target import Target

FIXED = "its sizes are fixed"
JUDGED = ("random", "ties", "zeros")  # kinds on which a difference fails the verification


@dataclass(frozen=True)
class Tried:
    """One kind of inputs: the worst error of scale, and what differs; or why it was not tried.

    `fails` where the difference is an error of the verification.
    """

    kind: str
    error: float = 0.0
    differs: str = ""
    not_tried: str = ""
    fails: bool = False


def _floats(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda t: make(t).to(t.dtype) if t.dtype.is_floating_point else t


def _with(*numbers: float) -> Callable[[Tensor], Tensor]:
    """Random numbers, every third of which is one of these."""

    def make(t: Tensor) -> Tensor:
        made = torch.randn(t.shape).flatten()
        for i, number in enumerate(numbers):
            made[3 * i :: 3 * len(numbers)] = number
        return made.reshape(t.shape)

    return _floats(make)


def _extremes(t: Tensor) -> Tensor:
    info = torch.finfo(t.dtype)
    numbers = torch.tensor([info.max, info.min, info.tiny, 1.0, -1.0, 0.0], dtype=torch.float64)
    return numbers[torch.arange(t.numel()) % len(numbers)].reshape(t.shape)


def _integers(t: Tensor) -> Tensor:
    """The ends of the type, without what a processor stops at: 0, and the number that has no negative."""
    if t.dtype == torch.bool or t.dtype.is_floating_point or t.dtype.is_complex:
        return t
    info = torch.iinfo(t.dtype)
    ends = [info.max, -info.max, 1, -1] if info.min else [info.max, info.max - 1, 1, 2]
    numbers = torch.tensor(ends, dtype=t.dtype)
    return numbers[torch.arange(t.numel()) % len(numbers)].reshape(t.shape)


KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "random": _floats(lambda t: torch.randn(t.shape)),
    "ties": _floats(lambda t: torch.randint(-1, 2, t.shape)),
    "zeros": _with(0.0, -0.0),
    "nan": _with(math.nan),
    "infinities": _with(math.inf, -math.inf),
    "extremes": _floats(_extremes),
    "integers": _integers,
}


def tried_on_all(
    graph: Graph, target: Target, registry: Registry, example: Values, nodes: Mapping[str, Node]
) -> dict[str, tuple[Tried, ...]]:
    """How nodes, by a name for each, do on every kind of inputs, and at sizes of 1 and 0."""
    found: dict[str, list[Tried]] = {t: [] for t in nodes}
    for kind, make in KINDS.items():
        torch.manual_seed(0)
        given = {v: make(t) for v, t in example.of.items() if v not in graph.weights}
        chosen = nodes if kind != "integers" else dict(_of_integers(graph, nodes))
        for text, tried in _compared(graph, target, registry, chosen, given, example.sizes, kind):
            found[text].append(tried)
    for kind, size in (("size 1", 1), ("empty", 0)):
        for text, tried in _at_size(graph, target, registry, example, nodes, kind, size):
            found[text].append(tried)
    return {t: tuple(tried) for t, tried in found.items()}


def _of_integers(graph: Graph, nodes: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """The nodes that read integers which decide no sizes: a count of 2**63 elements fills memory."""
    for text, node in nodes.items():
        if any(v.type.dtype.is_integer for v in node.inputs) and not _is_decided_by_data(graph, node):
            yield text, node


def _is_decided_by_data(graph: Graph, node: Node) -> bool:
    """Whether numbers in tensors decide sizes of the node."""
    values = (*node.inputs, *node.outputs)
    read = symbols_in([*node.args.values(), *(d for v in values for d in v.type.shape)])
    return any(graph.sources[n].value not in graph.inputs for n in read if n in graph.sources)


def _at_size(
    graph: Graph,
    target: Target,
    registry: Registry,
    example: Values,
    nodes: Mapping[str, Node],
    kind: str,
    size: int,
) -> Iterator[tuple[str, Tried]]:
    """The nodes with every dynamic dimension of the inputs at this size, where its range has it."""
    symbols = {n for n, s in graph.sources.items() if s.value in graph.inputs}
    ranges = graph.symbols
    sizes = {n: size if n in symbols and (ranges[n].min or 0) <= size else v for n, v in example.sizes.items()}
    given = dict(_resized(graph, example, sizes)) if sizes != example.sizes else {}
    dynamic: dict[str, Node] = {}
    for text, node in nodes.items():
        if all(v.type.is_static for v in node.inputs):
            yield text, Tried(kind, not_tried=FIXED)
        elif not given:
            yield text, Tried(kind, not_tried="no range has this size")
        elif _is_decided_by_data(graph, node) or not all(v in given or v in graph.weights for v in node.inputs):
            yield text, Tried(kind, not_tried="data decides its sizes")
        else:
            dynamic[text] = node
    yield from _compared(graph, target, registry, dynamic, given, sizes, kind)


def _resized(graph: Graph, example: Values, sizes: Mapping[str, Any]) -> Iterator[tuple[Value, Tensor]]:
    """Random values of other sizes; indices are 0."""
    for value, tensor in example.of.items():
        if value in graph.weights:
            continue
        with contextlib.suppress(KeyError, ZeroDivisionError, ValueError):
            shape = [evaluate(d, sizes) for d in value.type.shape]
            if min(shape, default=0) >= 0:
                made = torch.randn(shape).to(tensor.dtype) if tensor.dtype.is_floating_point else None
                yield value, torch.zeros(shape, dtype=tensor.dtype) if made is None else made


def _compared(
    graph: Graph,
    target: Target,
    registry: Registry,
    nodes: Mapping[str, Node],
    given: Mapping[Value, Tensor],
    sizes: Mapping[str, Any],
    kind: str,
) -> Iterator[tuple[str, Tried]]:
    """How these nodes do on operands of one kind."""
    runs = Runs(graph, target, registry)
    expected: dict[Node, Values] = {}
    for text, node in nodes.items():
        wanted = _by_torch(graph, node, given, sizes)
        if isinstance(wanted, str):
            yield text, Tried(kind, not_tried=f"torch refuses it: {wanted}")
        else:
            expected[node] = wanted
    made = runs.alone(list(expected), given)
    for text, node in nodes.items():
        if node not in expected:
            continue
        if node in runs.failed:
            said = runs.failed[node].partition("\n")[0]
            refused = kind == "empty"  # said aloud by a runtime without empty tensors
            yield text, Tried(kind, not_tried=said) if refused else Tried(kind, math.inf, said, fails=kind in JUDGED)
            continue
        of = expected[node].of
        found = {v: made[v] for v in watched_values(graph, [node]) if v in made}
        errors = {v: distance(t, of[v]) for v, t in found.items()}
        if any(e.largest for e in errors.values()):
            errors = {v: distance(*pair) for v, pair in without_unwritten(expected[node], node, found).items()}
        worst = max(errors.values(), key=lambda e: (bool(e.reason), e.largest), default=None)
        if worst is not None:
            fails = any(e.reason and _is_judged(node, v, of[v], kind) for v, e in errors.items())
            yield text, Tried(kind, worst.relative, worst.reason, fails=fails)


def _is_judged(node: Node, value: Value, expected: Tensor, kind: str) -> bool:
    """Whether a difference of this result is an error.

    Among ties and zeros none is of integers that an op makes of floats, for torch leaves open which of equal numbers
    topk names; nor where torch's own result is not finite, as a complex number by zero.
    """
    places = value.type.dtype.is_integer and any(v.type.dtype.is_float for v in node.inputs)
    return kind == "random" or (kind in JUDGED and not places and bool(expected.isfinite().all()))


def _by_torch(graph: Graph, node: Node, given: Mapping[Value, Tensor], sizes: Mapping[str, Any]) -> Values | str:
    """torch's operands and results of a node; or why it has none."""
    run = Values(graph, sizes=dict(sizes))
    try:
        for value in node.inputs:
            run.of[value] = given[value] if value in given else tensor_of(graph.weights[value])
        with torch.no_grad():
            run.node(node)
        return run
    except Exception as error:  # torch's own, of any kind
        return str(error).partition("\n")[0] or type(error).__name__
