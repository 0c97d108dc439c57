"""The shape verbs that every target's helper has: a handler that is said in them alone serves all targets.

What they take and give means the same on each target. A target may take more by name: what only it can use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from ir.dims import Dim, is_static
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

    def unsqueeze(self, x: V, axes: Sequence[int]) -> V:
        """`x` with axes of size 1 put in; `axes` count in the result, none negative."""

    def squeeze(self, x: V, axes: Sequence[int]) -> V:
        """`x` without these axes, none negative, which are 1 at every size that the graph holds for."""

    def transpose(self, x: V, perm: Sequence[int]) -> V:
        """The axes of `x` in another order: axis i of the result is axis `perm[i]`, none negative."""

    def slice(self, x: V, axis: int, start: Dim, stop: Dim) -> V:
        """`x[start:stop]` along an axis, where 0 <= start <= stop <= its size."""

    def concat(self, xs: Sequence[V], axis: int) -> V:
        """The values one after the other along an axis; they agree in element type and in the other sizes."""

    def take(self, x: V, index: V, axis: int) -> V:
        """The places of `x` along an axis that an integer tensor names, whose axes stand for that one in the result."""

    def put(self, x: V, index: V, updates: V) -> V:
        """`x` with rows along its first axis overwritten by `updates` [n, ...].

        `index` [n] says in int64 which rows; none is negative.
        """

    def offsets(self, first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> V:
        """Where the elements of a strided tensor lie: int64 of `shape`, first + i * strides[0] + j * strides[1] ..."""

    def reduce(self, op: Reduction, x: V, axes: Sequence[int] | None = None, keepdim: bool = False) -> V:
        """`x` taken together along `axes`, none negative, in its own element type; None is all of them.

        The axes stay with size 1 where `keepdim` is true.
        """

    def size(self, dim: Dim) -> Any:
        """A size as `emit` takes it where the target's op wants one."""


LARGEST_TABLE = 2**16  # elements that an artifact holds as numbers, rather than the ops that make them


def known_offsets(first: Dim, strides: Sequence[Dim], shape: Sequence[Dim]) -> np.ndarray | None:
    """What `offsets` gives, where all of it is known and it is small enough to be a constant; else None.

    >>> known_offsets(1, [10, 2], [2, 3]).tolist()
    [[1, 3, 5], [11, 13, 15]]
    """
    known = (first, *strides, *shape)
    if not is_static(known) or math.prod(sizes := known[1 + len(strides) :]) > LARGEST_TABLE:
        return None
    steps = (stride * axis for stride, axis in zip(known[1:], np.indices(sizes), strict=False))
    return np.asarray(sum(steps, start=np.full(sizes, known[0])), np.int64)
