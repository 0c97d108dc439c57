"""Numbers of a program that equal a size of its example: what another size might find fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ir.graph import Graph, Node, Value, leaves
from ir.importer.schema import overload_of
from ir.importer.torch_api import schema_of
from ir.text import arg_text

_SHORT = 8  # elements up to which a constant of integers is a shape and no table


@dataclass(frozen=True)
class Literal:
    """A number that stands in a program though it equals the example's size of a dynamic dimension.

    Attributes:
        where: the node's name, or the constant's.
        what: "size=[2, 16]", or the constant's elements.
        symbols: the dynamic dimensions that have this size in the example.
        number: the size.
        module: the path of the nn.Module that it stands in.
        source: "model.py:12", empty where it is not known.
    """

    where: str
    what: str
    symbols: tuple[str, ...]
    number: int
    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = ", ".join(p for p in (self.module, self.source) if p)
        equal = " and ".join(f"{n}={self.number}" for n in self.symbols)
        return f"%{self.where} {self.what} equals {equal}" + (f" ({place})" if place else "")


def literals(graph: Graph, sizes: Mapping[str, Any]) -> tuple[Literal, ...]:
    """Extents that a node makes of a literal, factors and short constants of integers that equal one of these sizes.

    They are for reading: a width may equal the batch by chance, and what verify runs at other sizes tells which do.
    Sizes of 0 and 1 are left out, they stand everywhere.
    """
    known: dict[int, list[str]] = {}
    for name, source in graph.sources.items():
        if source.value in graph.inputs and sizes.get(name, 0) > 1:
            known.setdefault(sizes[name], []).append(name)
    if not known:
        return ()
    return (*_in_nodes(graph, known), *_constants(graph, known))


def _in_nodes(graph: Graph, known: Mapping[int, list[str]]) -> Iterator[Literal]:
    for node in graph.nodes:
        for key, arg in node.args.items():
            for number in dict.fromkeys(a for a in leaves(arg) if _is_number(a) and a in known):
                if _makes(node, number) or _is_factor(node, key):
                    origin = node.origin
                    source = f"{origin.file.rpartition('/')[2]}:{origin.line}" if origin.file else ""
                    found = tuple(known[number])
                    yield Literal(node.name, f"{key}={arg_text(arg)}", found, int(number), origin.module, source)
        for inner in node.graphs:
            yield from _in_nodes(inner, known)


def _is_number(arg: Any) -> bool:
    return isinstance(arg, (int, float)) and not isinstance(arg, bool)


def _makes(node: Node, number: int) -> bool:
    """Whether more dimensions of a result have this fixed extent than those of any operand."""

    def count(value: Value) -> int:
        return list(value.type.shape).count(number)

    return max(map(count, node.outputs), default=0) > max(map(count, node.inputs), default=0)


def _is_factor(node: Node, key: str) -> bool:
    """Whether the argument is a number beside a tensor, as the 7 in `x.sum() / 7`."""
    overload = overload_of(node.op, node.origin.overload) if "::" in node.op else None
    if overload is None or not node.inputs or node.defaults.get(key) is not None:
        return False
    kinds = {a.name: str(a.type) for a in schema_of(overload).arguments}
    return "number" in kinds.get(key, "") or "Tensor" in kinds.get(key, "")


def _constants(graph: Graph, known: Mapping[int, list[str]]) -> Iterator[Literal]:
    for value, weight in graph.weights.items():
        dims = value.type.shape
        if value.type.dtype.is_integer and len(dims) < 2 and all(d <= _SHORT for d in dims):  # type: ignore[operator]
            numbers = weight.numpy().flatten().tolist()
            for number in dict.fromkeys(n for n in numbers if n in known):
                yield Literal(weight.name, str(numbers), tuple(known[number]), number)
