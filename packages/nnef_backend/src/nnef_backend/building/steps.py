"""The document while it is being written: values, operations whose names may still change, and scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ir.graph import Node
from ir.opened import Place
from ir.types import DType, TensorType
from nnef_backend.format import document as doc
from nnef_backend.format.document import Operation
from nnef_backend.format.places import comment

X = TypeVar("X")


class NnefValue:
    """A tensor of the document under construction; `array` is its content where it is a constant.

    The name of a number is the number itself (`0.5`, `tract_core_cast(3, to='i64')`), a `document.Expr`.
    """

    __slots__ = ("after", "alike", "array", "batches", "fixed", "name", "packed", "repeated", "source", "type")

    def __init__(
        self,
        name: str,
        type: TensorType,
        array: np.ndarray | None = None,
        fixed: bool = False,
        packed: bool = False,
        after: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.type = type
        self.array = array
        self.fixed = fixed  # made of constants and sizes alone
        self.packed = packed  # stored in blocks of 4 bits, which few operations read
        self.after = after  # counts that are known when it is
        self.repeated = frozenset[int]()  # axes along which one element is repeated, to tract
        self.alike = frozenset[int]()  # axes along which all elements are equal
        self.batches = frozenset[int]()  # axes over which a product of matrices goes that it is computed of
        self.source: NnefValue | None = None  # what it is another arrangement of

    @property
    def is_literal(self) -> bool:
        """True if it is written where it is used, in any scope."""
        return isinstance(self.name, doc.Expr)

    @property
    def origin(self) -> NnefValue:
        """The value that this one and its other arrangements were made of."""
        return self if self.source is None else self.source.origin

    def may_be(self, other: NnefValue) -> bool:
        """True of tensors that tract may find to be the same: a scan of one step, or part of a join, is its operand."""
        computed = self.array is None and other.array is None and self.type.rank > 0
        one = self.origin is other.origin or self.name == other.name  # a size stands in the document as text
        return one or (computed and self.type.shape == other.type.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(eq=False)
class Step:
    """An operation whose names may still change."""

    results: list[NnefValue]
    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    dtype: str = ""
    listed: bool = False
    node: Node | None = None  # of the graph, for which it is
    requirement: str = ""  # what a run that stops here did not fulfil

    def operation(self, noted: bool = False) -> Operation:
        """The document's form; `noted` with a comment that says where it comes from."""
        place = Place.of(self.node) if self.node is not None else None
        return Operation(
            tuple(r.name for r in self.results),
            self.op,
            tuple(_literal(i) for i in self.inputs),
            {k: _literal(a) for k, a in self.attributes.items()},
            self.dtype,
            self.listed,
            comment(place) if noted and place is not None else "",
            place,
            self.requirement,
        )

    def key(self) -> Any:
        """What two steps that compute the same have in common."""
        dtypes = tuple(r.type.dtype for r in self.results)
        return self.op, _key(self.inputs), _key(tuple(sorted(self.attributes.items()))), dtypes, self.dtype

    def reads(self) -> Iterator[NnefValue]:
        """The values among inputs and attributes."""
        yield from leaves((self.inputs, tuple(self.attributes.values())))


@dataclass
class Scope:
    """Where operations go: the graph, or the body of a fragment, whose constants come in as parameters."""

    steps: list[Step] = field(default_factory=list)
    formals: list[NnefValue] = field(default_factory=list)
    captured: dict[int, tuple[NnefValue, NnefValue]] = field(default_factory=dict)  # outer value, parameter
    names: set[str] = field(default_factory=set)
    made: dict[int, NnefValue] = field(default_factory=dict)  # by id: what this scope can name
    makers: dict[int, Step] = field(default_factory=dict)  # by id of a result
    known: dict[Any, list[NnefValue]] = field(default_factory=dict)
    loop: bool = False  # in the body of a loop
    zeros: dict[DType, dict[Any, NnefValue]] = field(default_factory=dict)  # by name: what constants are hidden by
    pairs: set[tuple[Any, ...]] = field(default_factory=set)  # operations that broadcast, with their operands

    def add(self, step: Step) -> None:
        """Put an operation at the end."""
        self.steps.append(step)
        self.made.update((id(r), r) for r in step.results)
        self.makers.update((id(r), step) for r in step.results)

    def add_once(self, step: Step) -> list[NnefValue]:
        """The results of this operation, or of the same one that stands here already.

        tract merges what is alike as well, and sometimes fails on it ("eval() called on a Dummy op").
        """
        if step.op == "copy":  # two outputs may hold the same numbers
            self.add(step)
            return step.results
        same = self.known.setdefault(step.key(), step.results)
        if same is step.results:
            self.add(step)
        else:
            self.names.difference_update(r.name for r in step.results)
        return same


def live(steps: Sequence[Step], outputs: Sequence[NnefValue], keep: Sequence[NnefValue] = ()) -> list[Step]:
    """The steps whose results are read, in order; those that make `keep` stay in any case."""
    needed = {id(v) for v in (*outputs, *keep)}
    kept = []
    for step in reversed(steps):
        if any(id(r) in needed for r in step.results):
            kept.append(step)
            needed.update(id(v) for v in step.reads())
    return kept[::-1]


def leaves(x: Any) -> Iterator[NnefValue]:
    """The values in nested lists."""
    if isinstance(x, NnefValue):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from leaves(item)


def map_values(x: X, fn: Callable[[Any], Any]) -> X:
    """Nested lists with a function applied to what they hold."""
    nested: Any = x
    if isinstance(nested, (list, tuple)):
        return type(nested)(map_values(item, fn) for item in nested)  # type: ignore[return-value]
    made: X = fn(x)
    return made


def _literal(x: Any) -> Any:
    if isinstance(x, NnefValue):
        return doc.Ref(x.name)
    if isinstance(x, (list, tuple)):
        return type(x)(_literal(item) for item in x)
    return x


def _key(x: Any) -> Any:
    """A literal by type and text, any other value by identity: steps keep their values alive."""
    if isinstance(x, NnefValue):
        return x.name if x.is_literal else id(x)
    return tuple(map(_key, x)) if isinstance(x, (list, tuple)) else (type(x), x)


def number_text(array: np.ndarray, dtype: DType, tract: bool) -> str | None:
    """A number as NNEF text of exactly this element type, if it has one.

    tract reads literals as f32, as bool or as dimensions; the standard has no widths, and none for infinity.
    """
    if dtype is DType.bool:
        return "true" if array else "false"
    if not tract and (dtype.is_integer or not np.isfinite(array)):
        return str(int(array)) if dtype.is_integer else None
    if dtype.is_integer:
        return f"tract_core_cast({int(array)}, to='{dtype.short}')"
    number = float(array)
    with np.errstate(over="ignore"):
        exact = float(np.float32(number)) == number  # never for NaN
    if not exact:
        return None
    text = doc.float_text(float(str(array)))
    return text if dtype is DType.float32 or not tract else f"tract_core_cast({text}, to='{dtype.short}')"
