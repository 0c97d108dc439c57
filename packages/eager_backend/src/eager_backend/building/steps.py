"""What a program is before it is source: blocks of steps over slots and numbers."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ir.dims import Dim, Expr
from ir.graph import Node, SymbolSource
from ir.types import TensorType


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """A tensor of the program: a local of the block `home`, or a constant of the program where `home` is None."""

    name: str
    type: TensorType
    home: Block | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, eq=False, slots=True)
class Number:
    """A size, a number read out of a tensor, a callable: a local that holds plain Python and is never deleted."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """A function of the same program."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Formula:
    """A size expression, computed from numbers in plain Python."""

    expr: Expr
    numbers: dict[str, Number]


@dataclass(frozen=True, eq=False)
class Step:
    """One call: `outputs` is what its result is bound to, unpacked unless `single`."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Slot | Number, ...]
    single: bool
    node: Node | None = None

    @property
    def output(self) -> Slot:
        """The tensor of a step that makes one."""
        (slot,) = self.outputs
        assert isinstance(slot, Slot)
        return slot

    def reads(self) -> Iterator[Slot | Number]:
        """Every slot and number among the arguments."""
        if isinstance(self.fn, Formula):
            yield from self.fn.numbers.values()
        elif isinstance(self.fn, Number):
            yield self.fn
        yield from leaves((*self.args, *self.kwargs.values()))

    def substitute(self, known: Mapping[Any, Any]) -> Step:
        """The step with other slots in the place of those that `known` has."""

        def swap(arg: Any) -> Any:
            return known.get(arg, arg) if isinstance(arg, Slot) else arg

        args = tuple(map_leaves(a, swap) for a in self.args)
        return replace(self, args=args, kwargs={k: map_leaves(a, swap) for k, a in self.kwargs.items()})


@dataclass(frozen=True, eq=False)
class Entry:
    """What an input must be: `refuse(tensor, *sizes)` raises where it is not, told the sizes of `others`.

    Attributes:
        local: the name that its sizes have in the source, where they are not all numbers.
        shape: sizes, and expressions over `sizes`: for each symbol the sizes' name of the input that has it, and where.
        limits: the axes whose size is a symbol with bounds; no upper one is None.
    """

    slot: Slot
    local: str
    dtypes: tuple[Any, ...]
    shape: tuple[Dim, ...]
    sizes: Mapping[str, tuple[str, SymbolSource]]
    limits: Mapping[int, tuple[int, int | None]]
    refuse: Callable[..., None]

    @property
    def others(self) -> list[str]:
        """The sizes' names of the other inputs that decide sizes of this one."""
        known = (
            self.sizes[s][0] for d in self.shape if isinstance(d, Expr) for s in sorted(d.symbols) if s in self.sizes
        )
        return [local for local in dict.fromkeys(known) if local != self.local]

    @property
    def is_static(self) -> bool:
        """True if every size is a number."""
        return all(isinstance(d, int) for d in self.shape)


@dataclass(eq=False)
class Block:
    """A function of the program: the whole graph, a custom op's body, a branch or a loop body.

    `outer` are the sizes of the surrounding block that it reads; they come before its tensors. `entries` are checked
    before its first step.
    """

    name: str
    inputs: list[Slot] = field(default_factory=list)
    outer: dict[str, Number] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    results: list[Slot] = field(default_factory=list)
    numbers: dict[Any, Number] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @property
    def parameters(self) -> list[str]:
        return [*(n.name for n in self.outer.values()), *(s.name for s in self.inputs)]

    def first(self, step: Step) -> None:
        """Move a step to the front, with the sizes that it reads; it stays where they are not those of inputs."""
        makers = {o: s for s in self.steps for o in s.outputs}
        needed, left = {id(step)}, [step]
        while left:
            for read in left.pop().reads():
                maker = makers.get(read)
                if maker is None:
                    continue
                if any(isinstance(o, Slot) for o in maker.outputs):
                    return
                if id(maker) not in needed:
                    needed.add(id(maker))
                    left.append(maker)
        self.steps.sort(key=lambda s: id(s) not in needed)


def leaves(args: Any) -> Iterator[Slot | Number]:
    """Every slot and number in nested arguments."""
    for a in args:
        if isinstance(a, (tuple, list)):
            yield from leaves(a)
        elif isinstance(a, slice):
            yield from leaves((a.start, a.stop, a.step))
        elif isinstance(a, (Slot, Number)):
            yield a


def map_leaves(arg: Any, fn: Callable[[Any], Any]) -> Any:
    """The argument with `fn` applied to every leaf; lists become tuples, which cost nothing at run time."""
    if isinstance(arg, (tuple, list)):
        return tuple(map_leaves(a, fn) for a in arg)
    if isinstance(arg, slice):
        return slice(fn(arg.start), fn(arg.stop), fn(arg.step))
    return fn(arg)


class Names:
    """Identifiers for one program, each given once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """An identifier that reads like `wish`."""
        name = re.sub(r"\W+", "_", wish).strip("_") or "value"
        if name[0].isdigit() or keyword.iskeyword(name):
            name = f"_{name}"
        count = self._taken.get(name)
        if count is None:
            self._taken[name] = 0
            return name
        self._taken[name] = count + 1
        return self.take(f"{name}_{count + 1}")
