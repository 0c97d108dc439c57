"""Operators that torch composes of others in C++, with the sizes of the example as numbers: the same with symbols.

torch.export keeps each of them as one node. These functions are their shape rules too, run on fake tensors
(`ir.importer.fake_rules`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ir import geometry
from ir.decompositions.registry import decomposition

COMPOSITES: dict[str, Callable[..., Any]] = {}  # op or overload -> function, of this file


def _composite(*ops: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES.update({f"aten::{op}": fn for op in ops})
        return decomposition(*ops)(fn)

    return register


@_composite("kron")
def _kron(self: Tensor, other: Tensor) -> Tensor:
    rank = max(self.dim(), other.dim())
    a, b = ([1] * (rank - x.dim()) + list(x.shape) for x in (self, other))
    rows = self.reshape([n for size in a for n in (size, 1)])
    return (rows * other.reshape([n for size in b for n in (1, size)])).reshape(
        [m * n for m, n in zip(a, b, strict=True)]
    )


@_composite("take_along_dim")
def _take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """A place past the end counts on from the start, as in torch."""
    if dim is None:
        return self.reshape(-1).gather(0, indices.reshape(-1))
    axis = geometry.axis(dim, self.dim())
    shapes = ([1 if i == axis else n for i, n in enumerate(x.shape)] for x in (self, indices))
    rest = list(torch.broadcast_shapes(*shapes))
    values, places = (x.expand([*rest[:axis], x.shape[axis], *rest[axis + 1 :]]) for x in (self, indices))
    return values.gather(axis, torch.remainder(places, torch.sym_max(self.shape[axis], 1)))


@_composite("linalg_multi_dot", "chain_matmul")
def _multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """In the order that multiplies least, as torch does; from the left where that depends on dynamic sizes."""
    sizes = [1 if tensors[0].dim() == 1 else tensors[0].shape[0], *(x.shape[-1] for x in tensors[:-1]), 1]
    sizes[-1] = 1 if tensors[-1].dim() == 1 else tensors[-1].shape[-1]
    if not all(isinstance(n, int) for n in sizes):
        return functools.reduce(torch.matmul, tensors)

    @functools.cache
    def best(first: int, last: int) -> tuple[int, int]:
        """The number of products of numbers from one factor to another, and where to part them: Cormen et al., 14.2."""
        if first == last:
            return 0, first
        return min(
            (best(first, i)[0] + best(i + 1, last)[0] + sizes[first] * sizes[i + 1] * sizes[last + 1], i)
            for i in range(first, last)
        )

    def product(first: int, last: int) -> Tensor:
        middle = best(first, last)[1]
        return tensors[first] if first == last else product(first, middle) @ product(middle + 1, last)

    return product(0, len(tensors) - 1)


@_composite("combinations")
def _combinations(self: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    if r == 0:
        return self.new_empty([0])
    if not isinstance(self.shape[0], int):
        raise NotImplementedError("the number of elements is dynamic, and that of their combinations with it")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(self.shape[0]), r)), dtype=torch.int64).reshape(-1)
    return self.index_select(0, places).reshape(-1, r)


@_composite("gradient")
def _gradient(self: Tensor, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """Differences of neighbours, by the formulas of numpy.gradient: central ones inside, one-sided ones at the ends."""
    axes = geometry.axes(dim, self.dim())
    steps = spacing if isinstance(spacing, (list, tuple)) else [1 if spacing is None else spacing] * len(axes)
    x = self if self.is_floating_point() or self.is_complex() else self.to(torch.get_default_dtype())
    return [_slope(x, axis, step, edge_order) for axis, step in zip(axes, steps, strict=True)]


@_composite("gradient.array")
def _gradient_along(self: Tensor, dim: Any, edge_order: int = 1) -> list[Tensor]:
    made: list[Tensor] = _gradient(self, None, dim, edge_order)
    return made


def _slope(x: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    """The differences along an axis, whose places are `step` apart, or are the numbers of that tensor."""
    count, column = x.shape[axis], [-1] + [1] * (x.dim() - axis - 1)
    number = torch.arange(count)
    before, after = torch.where(number > 0, number - 1, 0), torch.where(number < count - 1, number + 1, number)

    def at(place: Any) -> Tensor:
        return x.narrow(axis, place, 1)

    def gap(start: Any, end: Any) -> Any:
        """From one place to another; of tensors of places, a column."""
        if not isinstance(step, Tensor):
            return step
        first, last = (step.index_select(0, p) if isinstance(p, Tensor) else step.narrow(0, p, 1) for p in (start, end))
        return (last - first).reshape(column)

    inside = _middle(
        x.index_select(axis, before), x, x.index_select(axis, after), gap(before, number), gap(number, after)
    )
    end = count - 1
    if edge_order == 1:
        first, last = (at(1) - at(0)) / gap(0, 1), (at(end) - at(end - 1)) / gap(end - 1, end)
    else:
        first = -_edge(at(0), at(1), at(2), gap(0, 1), gap(1, 2))
        last = _edge(at(end), at(end - 1), at(end - 2), gap(end - 1, end), gap(end - 2, end - 1))
    number = number.reshape(column)
    return torch.where(number == 0, first, torch.where(number == end, last, inside))


def _middle(a: Tensor, b: Tensor, c: Tensor, before: Any, after: Any) -> Tensor:
    """The slope at the second of three places, of second order."""
    if not isinstance(before, Tensor):
        return torch.div(c - a, 2 * before)
    whole = before + after
    made: Tensor = (
        -after / (before * whole) * a + (after - before) / (before * after) * b + before / (after * whole) * c
    )
    return made


def _edge(a: Tensor, b: Tensor, c: Tensor, near: Any, far: Any) -> Tensor:
    """The slope at the first of three places towards it, of second order."""
    if not isinstance(near, Tensor):  # a number, which may be 0
        return torch.div(1.5 * a - 2 * b + 0.5 * c, near)
    whole = near + far
    made: Tensor = (near + whole) / (near * whole) * a - whole / (near * far) * b + near / (far * whole) * c
    return made
