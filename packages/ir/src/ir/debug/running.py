"""Nodes in a target's runtime: each by itself, and all together as the whole program computes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ir.debug.parts import Part, isolated, results_of, tapped
from ir.errors import ExportError
from ir.graph import Graph, Node, Value
from ir.loading import loaded
from ir.lower import lower
from ir.registry import Registry
from ir.target import Target

MEMORY = 1 << 30  # bytes of values that one program takes and gives
_IN_A_FILE = 1 << 30  # bytes of weights from which an artifact is written to a file to be run
_TRIES = 24  # programs made to find the values that a target cannot give as results


@dataclass(eq=False)
class Runs:
    """Runs of parts of one graph; what a target refused or failed at is noted, by node, and left out.

    Attributes:
        ops: the target's own ops that each node came to.
        failed: why a node has no value of its own, or the whole program none of it.
    """

    graph: Graph
    target: Target
    registry: Registry
    memory: int = MEMORY
    ops: dict[Node, list[str]] = field(default_factory=dict)
    failed: dict[Node, str] = field(default_factory=dict)
    whole_failed: str = ""

    def alone(self, nodes: Sequence[Node], values: Mapping[Value, Tensor]) -> dict[Value, Tensor]:
        """The results of nodes that are each fed these values, as many in one program as memory allows."""
        found: dict[Value, Tensor] = {}
        for chunk in _chunks(nodes, lambda n: _extent([*n.inputs, *n.outputs], values), self.memory):
            found.update(self._alone(chunk, values))
        return found

    def _alone(self, nodes: Sequence[Node], values: Mapping[Value, Tensor]) -> dict[Value, Tensor]:
        part = isolated(self.graph, nodes)
        if not part.graph.outputs:
            return {}
        try:
            made = self.run(part, [values[v] for v in part.feeds])
        except Exception as error:
            if len(nodes) == 1:
                self.failed[nodes[0]] = f"{type(error).__name__}: {error}"
                return {}
            half = len(nodes) // 2
            return self._alone(nodes[:half], values) | self._alone(nodes[half:], values)
        return dict(zip(part.graph.outputs, made, strict=True))

    def run(self, part: Part, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results of a part; the target's ops of its nodes are noted."""
        noted: dict[Node, list[str]] = {}

        def seen(node: Node, op: str) -> None:
            whole = part.node_of(node)
            if whole is not None:
                noted.setdefault(whole, []).append(op)

        inputs = [t.detach() for t in inputs]  # views of weights want gradients
        part.graph.context.given = tuple(inputs)
        artifact = lower(part.graph, self.target, self.registry, watch=seen)
        self.ops.update(noted)
        with running(self.target, artifact, part.graph) as runner:
            return list(runner(*inputs))  # themselves: a copy would be laid out otherwise, and be rounded otherwise

    def together(self, values: Sequence[Value], given: Mapping[Value, Tensor]) -> dict[Value, Tensor]:
        """These values as the whole program computes them, `given` its own inputs and what each value will take."""
        inputs = [given[v] for v in self.graph.inputs]
        tries = [_TRIES]

        def run(chosen: Sequence[Value]) -> dict[Value, Tensor]:
            graph = tapped(self.graph, chosen)
            graph.context.given = tuple(inputs)
            artifact = lower(graph, self.target, self.registry)
            with running(self.target, artifact, graph) as runner:
                return dict(zip(chosen, runner(*[t.clone() for t in inputs]), strict=True))

        def some(chosen: Sequence[Value]) -> dict[Value, Tensor]:
            tries[0] -= 1
            try:
                return run(chosen)
            except Exception as error:
                self.whole_failed = f"{type(error).__name__}: {error}"
                if len(chosen) == 1 or tries[0] <= 0:
                    return {}
                half = len(chosen) // 2
                return some(chosen[:half]) | some(chosen[half:])

        found: dict[Value, Tensor] = {}
        for chunk in _chunks(list(values), lambda v: _extent([v], given), self.memory):
            found.update(some(chunk))
        if len(found) == len(values):
            self.whole_failed = ""
        return found


@contextmanager
def running(target: Target, artifact: Any, graph: Graph) -> Iterator[Callable[..., Sequence[Tensor]]]:
    """The artifact in its runtime, without memory of calls before; forgotten there at the end."""
    held = (w.tensor for w in graph.weights.values())
    weights = sum(t.nbytes for t in held if t is not None and t.layout is torch.strided)
    with tempfile.TemporaryDirectory(prefix="ir-debug-") as folder:
        path = None
        if weights > _IN_A_FILE:
            path = Path(folder, "inner", f"model{target.suffix}")
            path.parent.mkdir()
            try:
                target.write(artifact, path)
            except ExportError:  # of a target that writes whole programs alone, and runs parts from memory
                path = None
        runner = loaded(target, artifact, graph, path)
        try:
            yield getattr(runner, "stateless", runner)
        finally:
            close = getattr(runner, "close", None)
            if close is not None:
                close()


def _extent(values: Sequence[Value], tensors: Mapping[Value, Tensor]) -> int:
    return sum(tensors[v].nbytes for v in values if v in tensors and tensors[v].layout is torch.strided)


def _chunks(items: Sequence[Any], extent: Callable[[Any], int], limit: int) -> Iterator[Sequence[Any]]:
    """The items in order, cut where their bytes together pass the limit."""
    chunk: list[Any] = []
    total = 0
    for item in items:
        size = extent(item)
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


def watched_values(graph: Graph, nodes: Sequence[Node]) -> list[Value]:
    """The values that a table has: what something reads, of nodes that compute."""
    return results_of(graph, [n for n in nodes if not n.op.startswith(("ir::item", "ir::require"))])
