"""Pieces of memory, the views of them and the names that a program gives to those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch.fx import Node as FxNode

from ir.graph import Value
from ir.importer.aliases import Seen
from ir.importer.schema import DTYPES, OpSchema
from ir.importer.strided import Place
from ir.importer.symbols import Symbols
from ir.types import TensorType


@dataclass(eq=False)
class Memory:
    """A piece of memory. `tops` are the views that no other leads to; the root is the one that all others lie in,
    which is asked for at the first write."""

    tops: list[View] = field(default_factory=list)
    root: View | None = None
    writes: int = 0


@dataclass(eq=False)
class Recipe:
    """The op that made views, with the views of that time as its arguments."""

    node: FxNode
    schema: OpSchema
    args: Mapping[str, Any]
    made: dict[int, View] = field(default_factory=dict)  # by the place among the op's results


@dataclass(eq=False)
class View:
    """A place in a memory, and the value that was there after `valid` writes."""

    memory: Memory
    seen: Seen
    symbols: Symbols
    value: Value | None = None
    valid: int = 0
    parent: View | None = None
    recipe: Recipe | None = None

    @cached_property
    def place(self) -> Place:
        convert = self.symbols.convert
        shape, strides = (tuple(map(convert, x)) for x in (self.seen.shape, self.seen.strides))
        return Place(shape, strides, convert(self.seen.offset))

    @property
    def type(self) -> TensorType:
        return TensorType(DTYPES[self.seen.dtype], self.place.shape)

    @property
    def kind(self) -> tuple[Any, Any]:
        """What is alike in views that show the same elements at the same places."""
        return self.seen.dtype, self.seen.flags


@dataclass(eq=False)
class Name:
    """A tensor of the program, which is another view after `t_` or `set_`."""

    view: View


def names_in(raw: Any) -> Iterator[Name]:
    """The names in a structure of them."""
    if isinstance(raw, tuple):
        for r in raw:
            yield from names_in(r)
    elif isinstance(raw, Name):
        yield raw


def views_in(raw: Any) -> Any:
    """The views of now in the place of names."""
    if isinstance(raw, dict):
        return {n: views_in(a) for n, a in raw.items()}
    if isinstance(raw, tuple):
        return tuple(map(views_in, raw))
    return raw.view if isinstance(raw, Name) else raw
