"""The tensors that a program refers to: the model's own, and those that passes derive from them at load.

A derived tensor keeps its recipe, so that it can be made again when weights are replaced.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eager_backend.building.steps import Slot, leaves, map_leaves
from ir.importer.schema import TORCH_DTYPES
from ir.importer.weights import tensor_type
from ir.types import DType, TensorType

if TYPE_CHECKING:
    from eager_backend.building.source import Source


@dataclass(frozen=True)
class Recipe:
    """How derived tensors are made: `fn(*args, **kwargs)`, slots among the arguments standing for constants."""

    names: tuple[str, ...]
    single: bool
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        inner = ", ".join(a.name if isinstance(a, Slot) else str(a) for a in (*self.args, *self.kwargs.values()))
        return f"{getattr(self.fn, '__name__', self.fn)}({inner})"

    @property
    def reads(self) -> set[str]:
        """The constants that it needs."""
        return {s.name for s in leaves((*self.args, *self.kwargs.values()))}

    def make(self, known: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The derived tensors by name, from the tensors of other constants."""

        def tensor(arg: Any) -> Any:
            return known[arg.name] if isinstance(arg, Slot) else arg

        args = tuple(map_leaves(a, tensor) for a in self.args)
        with torch.inference_mode(False), torch.no_grad():
            result = self.fn(*args, **{k: map_leaves(a, tensor) for k, a in self.kwargs.items()})
        return zip(self.names, [result] if self.single else result, strict=True)


class Constants:
    """Every constant of one program by the name that it has in the source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.globals = source.globals  # what the compiled functions read
        self.model_names: dict[str, str] = {}  # the model's name of a weight -> the source's
        self.weights: dict[str, Tensor] = {}  # the model's own, and constants of its code
        self.derived: dict[str, Tensor] = {}
        self.recipes: list[Recipe] = []
        self.written: set[Slot] = set()  # buffers that the program itself writes to
        self.captured: dict[str, Tensor] = {}  # their contents when the model was captured
        self._numbers: dict[tuple[float, DType, float], Slot] = {}

    def add(self, tensor: Tensor, wish: str, type: TensorType) -> Slot:
        """A constant that is given."""
        name = self.source.bind(tensor, wish)
        self.weights[name] = tensor
        return Slot(name, type)

    def number(self, number: float, dtype: DType) -> Slot:
        """A 0-d constant for a Python number, one for all of its uses."""
        key = number, dtype, math.copysign(1.0, number)
        if key not in self._numbers:
            with torch.inference_mode(False):
                tensor = torch.tensor(number, dtype=TORCH_DTYPES[dtype])
            self._numbers[key] = Slot(self.source.bind(tensor, f"number_{number:g}"), TensorType(dtype, ()))
        return self._numbers[key]

    def tensor(self, slot: Slot) -> Tensor:
        """The tensor of a constant."""
        found: Tensor = self.globals[slot.name]
        return found

    def is_frozen(self, slot: Any) -> bool:
        """True for a constant that no call changes."""
        return isinstance(slot, Slot) and slot.home is None and slot not in self.written

    def derive(self, fn: Callable[..., Any], *args: Any, wish: str, **kwargs: Any) -> Slot:
        """A constant that `fn` makes of others; `args` and `kwargs` hold slots of constants and plain values."""
        return self.derive_all(fn, args, kwargs, [wish], single=True)[0]

    def derive_all(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], wishes: Sequence[str], single: bool
    ) -> list[Slot]:
        """The constants that a call returns; a sequence of them unless `single`."""
        names = tuple(self.source.names.take(w) for w in wishes)
        recipe = Recipe(names, single, fn, tuple(args), kwargs)
        made = dict(recipe.make(self.globals))
        self.recipes.append(recipe)
        self.derived |= made
        self.globals |= made
        return [Slot(n, tensor_type(t)) for n, t in made.items()]

    def replaced(self, changes: Mapping[str, Tensor]) -> Constants:
        """Constants with these weights in the place of others of the same names; all that is not touched is shared.

        What derives from a changed weight is made again. These constants, and programs that use them, stay as they are.
        """
        stale = set(changes)
        for recipe in self.recipes:
            if not stale.isdisjoint(recipe.reads):
                stale.update(recipe.names)
        known = {n: t for n, t in (*self.weights.items(), *self.derived.items()) if n not in stale} | dict(changes)
        needed, plan = stale.intersection(self.derived), []
        for recipe in reversed(self.recipes):
            if not needed.isdisjoint(recipe.names):
                plan.append(recipe)
                needed.update(recipe.reads.difference(known))
        for recipe in reversed(plan):
            known |= dict(recipe.make(known))
        other = copy.copy(self)
        other.weights = {n: known[n] for n in self.weights}
        other.derived = {n: known[n] for n in self.derived}
        other.globals = {**self.globals, **other.derived, **changes}
        return other

    def keep(self, used: set[str]) -> None:
        """Let go of derived tensors that no step reads, and of recipes that lead to none."""
        self.derived = {n: t for n, t in self.derived.items() if n in used}
        needed = set(self.derived)
        recipes = []
        for recipe in reversed(self.recipes):
            if needed.intersection(recipe.names):
                recipes.append(recipe)
                needed.update(recipe.reads)
            for name in recipe.names:
                if name not in used:
                    self.globals.pop(name, None)
        self.recipes = recipes[::-1]
