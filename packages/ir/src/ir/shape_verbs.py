"""The shape verbs that every target's helper has: a handler that is said in them alone serves all targets.

What they take and give means the same on each target. A target may take more by name: what only it can use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

from ir.dims import Dim
from ir.types import DType

V = TypeVar("V")
Reduction = Literal["sum", "prod", "max", "min"]


class ShapeVerbs(Protocol[V]):
    """Values in, a value out; sizes are ints or expressions over the graph's symbols."""

    def cast(self, x: V, dtype: DType | None) -> V:
        """`x` in another element type, by torch's rules; `x` itself where it has that type or `dtype` is None."""

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> V:
        """A tensor of `shape` in which every element is `value`: a number, a size expression or a 0-d value."""

    def reshape(self, x: V, shape: Sequence[Dim]) -> V:
        """The elements of `x` by rows in another `shape`, which has as many; -1 is no size."""

    def expand(self, x: V, shape: Sequence[Dim]) -> V:
        """`x` repeated along its axes of size 1, and along new leading ones, to fill `shape`."""

    def transpose(self, x: V, perm: Sequence[int]) -> V:
        """The axes of `x` in another order: axis i of the result is axis `perm[i]`, none negative."""

    def slice(self, x: V, axis: int, start: Dim, stop: Dim) -> V:
        """`x[start:stop]` along an axis, where 0 <= start <= stop <= its size."""

    def concat(self, xs: Sequence[V], axis: int) -> V:
        """The values one after the other along an axis; they agree in element type and in the other sizes."""

    def reduce(self, op: Reduction, x: V, axes: Sequence[int] | None = None, keepdim: bool = False) -> V:
        """`x` taken together along `axes`, none negative, in its own element type; None is all of them.

        The axes stay with size 1 where `keepdim` is true.
        """

    def size(self, dim: Dim) -> Any:
        """A size as `emit` takes it where the target's op wants one."""
