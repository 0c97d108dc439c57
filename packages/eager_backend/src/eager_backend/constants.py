"""The tensors that a program refers to: the model's own, and those that passes derive from them at load.

A derived tensor keeps its recipe, so that it can be made again when weights are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eager_backend.steps import Slot, leaves, map_leaves
from ir.importer.schema import DTYPES, TORCH_DTYPES
from ir.types import DType, TensorType

if TYPE_CHECKING:
    from eager_backend.source import Source


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

    def make(self, known: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
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
        self.weights: dict[str, Tensor] = {}  # the model's own, and constants of its code
        self.derived: dict[str, Tensor] = {}
        self.recipes: list[Recipe] = []
        self.written: set[Slot] = set()  # buffers that the program itself writes to
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
        found: Tensor = self.source.globals[slot.name]
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
        made = dict(recipe.make(self.source.globals))
        self.recipes.append(recipe)
        self.derived |= made
        self.source.globals |= made
        return [Slot(n, TensorType(DTYPES[t.dtype], tuple(t.shape))) for n, t in made.items()]

    def refresh(self) -> None:
        """Make the derived constants again, after weights were given other contents."""
        known = dict(self.weights)
        for recipe in self.recipes:
            for name, tensor in recipe.make(known):
                known[name] = tensor
                if name in self.derived:
                    self.derived[name] = self.source.globals[name] = tensor

    def keep(self, used: set[str]) -> None:
        """Let go of derived tensors that no step reads, and of recipes that lead to none."""
        self.derived = {n: t for n, t in self.derived.items() if n in used}
        needed = set(self.derived)
        recipes = []
        for recipe in reversed(self.recipes):
            if needed.intersection(recipe.names):
                recipes.append(recipe)
                needed.update(s.name for s in leaves((*recipe.args, *recipe.kwargs.values())))
            for name in recipe.names:
                if name not in used:
                    self.source.globals.pop(name, None)
        self.recipes = recipes[::-1]
