"""Calls of nn.Modules -> `ir::call` nodes over graphs of their own, nested as the modules nest.

torch notes at each node the stack of module calls that it ran in. The nodes of one call are a region: what it reads
becomes its operands, weights last, what is read after it becomes its results. Calls of one class that compute the same
on operands of the same types share one graph, so a layer that is there twelve times is written once.

A call stays where it is, its inner calls still outlined, if its nodes do not stand together, or if it brings a size
that is only known at run time (nonzero, item): such a size is read off tensors that stay inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ir.dims import Expr
from ir.errors import ExportError, warn
from ir.graph import Graph, Node, Value, leaves, map_arg
from ir.words import meant

Call = tuple[str, Any]  # torch's key of one call of a module, and (path, class)


@dataclass(frozen=True)
class Placed:
    """A node with the calls around it, and the span of nodes of the original graph that it stands for."""

    node: Node
    calls: tuple[Call, ...]
    start: int
    end: int


def outline(graph: Graph, classes: Collection[str] | None = None) -> Graph:
    """Every call of a module as an `ir::call`, or those of some classes, named with or without their module."""
    return Outliner(graph, classes).run()


def check_classes(graph: Graph, classes: Collection[str]) -> None:
    """Whether the model has modules of these classes, named with or without their module.

    Warns:
        UserWarning: no node lies in one; of a program without its model, or of a stage, that may be so.

    Raises:
        ExportError: there are none in the model.
    """
    full = {_class_name(call) for n in graph.nodes for call in (n.origin.modules or {}).items()}
    live = getattr(graph.context, "live", None)
    full |= {_class_name(("", ("", type(m)))) for m in live.model.modules()} if live is not None else set()
    known = full | {name.rpartition(".")[2] for name in full}
    for name in classes:
        if name not in known:
            what = f"functions= names the class {name!r:.80}, and the model has no module of it{meant(name, known)}"
            if live is not None:
                raise ExportError(what)
            warn(what)


class Outliner:
    """One graph; `known` holds the graphs made so far by what they compute."""

    def __init__(self, graph: Graph, classes: Collection[str] | None) -> None:
        self.graph = graph
        self.classes = classes
        self.known: dict[Any, Graph] = {}
        self.readers: dict[Value, list[int]] = {}
        self.made_at: dict[Value, int] = {}
        for i, node in enumerate(graph.nodes):
            for v in node.inputs:
                self.readers.setdefault(v, []).append(i)
            self.made_at.update((v, i) for v in node.outputs)
        self.results = set(graph.results.values())
        self.sizes_made_at = set(_new_sizes(graph))

    def run(self) -> Graph:
        """The graph with calls in it."""
        placed = [
            Placed(node, calls, i, i + 1)
            for i, (node, calls) in enumerate(zip(self.graph.nodes, _stacks(self.graph.nodes), strict=True))
        ]
        nodes = tuple(p.node for p in self._level(placed, 1))
        return self.graph if nodes == self.graph.nodes else self.graph.replace(nodes=nodes)

    def _level(self, placed: Sequence[Placed], depth: int) -> list[Placed]:
        """The nodes with every call at this depth or below outlined."""
        runs = [(key, list(ps)) for key, ps in groupby(placed, lambda p: _key(p, depth))]
        keys = [key for key, _ in runs]
        made: list[Placed] = []
        for key, inside in runs:
            if key is None:
                made += inside
                continue
            inner = self._level(inside, depth + 1)
            whole = keys.count(key) == 1 and self._wanted(inside[0].calls[depth])
            call = self._call(inner, depth) if whole else None
            made += inner if call is None else [call]
        return made

    def _wanted(self, call: Call) -> bool:
        full = _class_name(call)
        return self.classes is None or full in self.classes or full.rpartition(".")[2] in self.classes

    def _call(self, inside: Sequence[Placed], depth: int) -> Placed | None:
        start, end = inside[0].start, inside[-1].end
        if any(start <= i < end for i in self.sizes_made_at):
            return None
        nodes = [p.node for p in inside]
        outputs = tuple(v for n in nodes for v in n.outputs if self._read_outside(v, start, end))
        if not outputs:
            return None
        read = dict.fromkeys(v for n in nodes for v in n.inputs if not start <= self.made_at.get(v, -1) < end)
        operands = tuple(sorted(read, key=lambda v: v in self.graph.weights))  # stable: in the order of reading
        calls = inside[0].calls[: depth + 1]
        key = _class_name(calls[-1]), _signature(operands, nodes, outputs)
        if key not in self.known:
            self.known[key] = self._graph(calls[-1], operands, inside, outputs, depth)
        origin = replace(nodes[0].origin, overload="", modules=dict(calls))
        returns = "one" if len(outputs) == 1 else "tuple"
        node = Node("ir::call", {"graph": self.known[key], "operands": operands}, outputs, origin, returns)
        return Placed(node, calls, start, end)

    def _read_outside(self, value: Value, start: int, end: int) -> bool:
        return value in self.results or any(not start <= i < end for i in self.readers.get(value, ()))

    def _graph(
        self, call: Call, operands: Sequence[Value], inside: Sequence[Placed], outputs: tuple[Value, ...], depth: int
    ) -> Graph:
        """The region as a graph; its weights are named below the module, `query.weight`."""
        path = f"{call[1][0]}."
        taken = {v.name for p in inside for v in p.node.outputs}
        formals: dict[Value, Value] = {}
        for v in operands:
            name = self.graph.weights[v].name.removeprefix(path) if v in self.graph.weights else v.name
            while name in taken:
                name += "_"
            taken.add(name)
            formals[v] = Value(name, v.type)
        nodes = []
        for p in inside:
            args = {k: map_arg(a, lambda x: formals.get(x, x) if isinstance(x, Value) else x)
                    for k, a in p.node.args.items()}  # fmt: skip
            nodes.append(replace(p.node, args=args, origin=replace(p.node.origin, modules=dict(p.calls[depth:]))))
        names = tuple(v.name for v in outputs)
        return Graph(tuple(formals.values()), tuple(nodes), outputs, names, name=_function_name(call))


def _stacks(nodes: Sequence[Node]) -> Iterator[tuple[Call, ...]]:
    """The calls around each node; one that a pass put in without saying where belongs to both of its neighbours."""
    given = [tuple(n.origin.modules.items()) if n.origin.modules else None for n in nodes]
    after: list[tuple[Call, ...]] = []
    following: tuple[Call, ...] | None = None
    for calls in reversed(given):
        following = calls or following
        after.append(following or ())
    before: tuple[Call, ...] | None = None
    for calls, following in zip(given, reversed(after), strict=True):
        if calls is None:
            shared = zip(before or (), following, strict=False)
            yield tuple(a for a, b in shared if a[0] == b[0])
        else:
            before = calls
            yield calls


def _key(placed: Placed, depth: int) -> str | None:
    return placed.calls[depth][0] if len(placed.calls) > depth else None


def _new_sizes(graph: Graph) -> Iterator[int]:
    """The places of nodes that bring a size no input has."""
    known = {s for v in graph.inputs for d in v.type.shape if isinstance(d, Expr) for s in d.symbols}
    for i, node in enumerate(graph.nodes):
        dims = [d for v in node.outputs for d in v.type.shape] + list(leaves(node.args.values()))
        found = {s for d in dims if isinstance(d, Expr) for s in d.symbols} - known
        if found:
            known |= found
            yield i


def _signature(operands: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]) -> Any:
    """Equal for regions that compute the same, names aside; graphs among the arguments are compared by identity."""
    places = {v: i for i, v in enumerate([*operands, *(v for n in nodes for v in n.outputs)])}

    def leaf(x: Any) -> Any:
        return ("%", places[x]) if isinstance(x, Value) else (type(x), repr(x) if isinstance(x, float) else x)

    return (
        tuple(v.type for v in operands),
        tuple((n.overload, tuple((k, map_arg(a, leaf)) for k, a in n.args.items()), tuple(v.type for v in n.outputs))
              for n in nodes),
        tuple(places[v] for v in outputs),
    )  # fmt: skip


def _class_name(call: Call) -> str:
    cls = call[1][1]
    return cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"


def _function_name(call: Call) -> str:
    """`transformers.models.bert::BertLayer`: the class in its package, the file that defines it left out."""
    *parts, name = (p for p in _class_name(call).split(".") if p != "<locals>")
    return f"{'.'.join(parts[:-1] or parts) or 'module'}::{name}"
