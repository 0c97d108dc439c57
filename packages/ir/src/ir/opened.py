"""An artifact without the model behind it: a file, opened in its own runtime by what the file says of itself."""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Union

from ir.dims import Dim
from ir.errors import ExportError
from ir.graph import Graph, Node, Value
from ir.types import DType

Size = Union[int, str]


@dataclass(frozen=True)
class Port:
    """An input or output as the file declares it; a text among the sizes is a symbol, or sums and products of some."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    is_sparse: bool = False

    @classmethod
    def of(cls, value: Value, name: str = "") -> Port:
        """The port for a value of a graph."""
        return cls(name or value.name, value.type.dtype, tuple(map(_size, value.type.shape)), value.type.is_sparse)

    @property
    def symbols(self) -> set[str]:
        """The names in its sizes."""
        return {n.id for s in self.shape if isinstance(s, str) for n in ast.walk(_parsed(s)) if isinstance(n, ast.Name)}

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Timed:
    """The time of one node of an artifact in one run: its name there, the runtime's op, seconds."""

    name: str
    op: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """Where something in an artifact comes from: the node of the graph, its overload, module and source line.

    What is not known is empty.
    """

    name: str
    op: str = ""
    module: str = ""
    source: str = ""

    @classmethod
    def of(cls, node: Node) -> Place:
        """The place of a node."""
        return cls(node.name, node.overload, node.origin.module, node.origin.source)

    @property
    def line(self) -> str:
        """The source line without the folders of its file: "model.py:12"."""
        return os.path.basename(self.source)


def places_in(graph: Graph) -> dict[str, Place]:
    """The places of a graph's nodes, by the names of their values and of the results that these are.

    Those in a branch or a loop by the path from the value of the node that holds it: "cond/0/add" and, where one of its
    graphs alone has it, "cond/add".
    """
    makers = {v.name: n for n in graph.nodes for v in n.outputs}
    makers |= {name: makers[v.name] for name, v in graph.results.items() if v.name in makers}
    found = {name: Place.of(n) for name, n in makers.items()}
    for name, node in makers.items():
        found |= {f"{name}/{path}": place for path, place in _places_within(node).items()}
    return found


def _places_within(node: Node) -> dict[str, Place]:
    found: dict[str, Place] = {}
    several: set[str] = set()
    for i, graph in enumerate(node.graphs):
        for path, place in places_in(graph).items():
            inner = replace(place, name=f"{node.name}/{place.name}")
            several |= {path} & found.keys()
            found |= {path: inner, f"{i}/{path}": inner}
    return {path: place for path, place in found.items() if path not in several}


class Opened(Protocol):
    """A file in its runtime: torch tensors in, one for each input; torch tensors out."""

    @property
    def inputs(self) -> Sequence[Port]:
        """What it takes, in order."""

    @property
    def outputs(self) -> Sequence[Port]:
        """What it gives, in order."""

    @property
    def threads(self) -> int | None:
        """The threads that it computes with; None where its runtime decides."""

    @property
    def operators(self) -> Mapping[str, int]:
        """Its operations in the words of its format, counted; empty where the file does not tell."""

    @property
    def places(self) -> Mapping[str, Place]:
        """Where its nodes come from, by the names of nodes or of what they make; empty where the file does not tell."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """One run."""


def _size(dim: Dim) -> Size:
    return dim if isinstance(dim, int) else str(dim)


# -- sizes -------------------------------------------------------------------------------------------------------------

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def extent(size: Size, known: Mapping[str, int]) -> int:
    """The number that a declared size is, its symbols having these values.

    Raises:
        ExportError: it is no sum or product of known symbols.
    """
    return size if isinstance(size, int) else _value(_parsed(size), known, size)


def _parsed(size: str) -> ast.expr:
    try:
        return ast.parse(size, mode="eval").body
    except SyntaxError:
        return ast.Constant(None)


def _value(node: ast.expr, known: Mapping[str, int], size: str) -> int:
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.Name(name) if name in known:
            return known[name]
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            found: int = _OPERATORS[type(op)](_value(left, known, size), _value(right, known, size))
            return found
    raise ExportError(f"the size {size!r:.100} cannot be computed from names of dimensions")


def symbols_of(ports: Sequence[Port]) -> Iterator[str]:
    """The names among the sizes, in the order of their appearance."""
    for port in ports:
        for size in port.shape:
            if isinstance(size, str):
                yield from (n.id for n in ast.walk(_parsed(size)) if isinstance(n, ast.Name))
