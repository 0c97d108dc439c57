"""Where a tensor lies in its memory: sizes, strides and offset as dimensions, and how one place lies in another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ir.dims import Dim, maximum, minimum, quotient
from ir.importer.symbols import Symbols


@dataclass(frozen=True)
class Place:
    """Sizes and strides of a tensor's axes, and the place of its first element, all counted in elements."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def axes(self) -> list[tuple[Dim, Dim]]:
        """(size, stride) of each axis that has more than one element."""
        return [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]

    @property
    def numel(self) -> Dim:
        total: Dim = 1
        for n in self.shape:
            total = total * n
        return total

    def permuted(self, order: Sequence[int]) -> Place:
        return Place(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def of_parts(self) -> Place:
        """The place of a complex tensor's parts, as torch.view_as_real shows them."""
        return Place((*self.shape, 2), (*(s * 2 for s in self.strides), 1), self.offset * 2)


class Step(NamedTuple):
    """One view: `kind` is same, reshape, permute (order), slice (axis, start, step), select (axis, index) or
    diagonal (offset, first axis, second axis)."""

    kind: str
    args: tuple[Any, ...] = ()


def between(whole: Place, part: Place) -> Step | None:
    """The view that makes `part` out of `whole`; None if no single one does, as far as is known."""
    if whole.offset == part.offset:
        if len(whole.shape) == len(part.shape) and all(map(_alike, _pairs(whole), _pairs(part))):
            return Step("same")
        if _merged(whole) == _merged(part):
            return Step("reshape")
        order = _order(whole, part)
        if order is not None:
            return Step("permute", order)
    return _slice(whole, part) or _select(whole, part) or _diagonal(whole, part)


def dense_order(place: Place, number: Callable[[Dim], int]) -> tuple[int, ...] | None:
    """The order of axes in which the tensor lies in rows without gaps; None if there is none."""
    # axes of one element too: torch views as a wider type only where their strides allow
    order = tuple(sorted(range(len(place.shape)), key=lambda i: -number(place.strides[i])))
    laid = place.permuted(order)
    merged = _merged(laid)
    return order if merged in ([], [(place.numel, 1)]) else None


def overlaps(place: Place, number: Callable[[Dim], int]) -> bool:
    """True if two elements lie in one place; `number` gives a size's value where that is not known."""
    reach = 0
    for stride, size in sorted((number(s), number(n)) for n, s in place.axes):
        if size == 0:
            return False
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def same_order(a: Sequence[Dim], b: Sequence[Dim], shape: Sequence[Dim], number: Callable[[Dim], int]) -> bool:
    """True if the axes of more than one element follow one another in memory alike under both strides."""
    long = [i for i, n in enumerate(shape) if n != 1]
    return sorted(long, key=lambda i: -number(a[i])) == sorted(long, key=lambda i: -number(b[i]))


def _pairs(place: Place) -> list[tuple[Dim, Dim]]:
    return list(zip(place.shape, place.strides, strict=True))


def _alike(a: tuple[Dim, Dim], b: tuple[Dim, Dim]) -> bool:
    return a[0] == b[0] and (a[1] == b[1] or a[0] == 1)


def _merged(place: Place) -> list[tuple[Dim, Dim]]:
    """The axes, neighbours that lie in rows taken for one."""
    found: list[tuple[Dim, Dim]] = []
    for size, stride in place.axes:
        if found and found[-1][1] in (size * stride, maximum(size, 1) * stride, maximum(1, size) * stride):
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def _order(whole: Place, part: Place) -> tuple[int, ...] | None:
    left, order = list(enumerate(_pairs(whole))), []
    if len(left) != len(part.shape):
        return None
    for axis in _pairs(part):
        found = next((i for i, (_, other) in enumerate(left) if _alike(other, axis)), None)
        if found is None:
            return None
        order.append(left.pop(found)[0])
    return tuple(order)


def _steps(distance: Dim, stride: Dim) -> Dim | None:
    return 0 if distance == 0 else quotient(distance, stride)


def _slice(whole: Place, part: Place) -> Step | None:
    if len(whole.shape) != len(part.shape):
        return None
    changed = [i for i, (a, b) in enumerate(zip(_pairs(whole), _pairs(part), strict=True)) if not _alike(a, b)]
    if len(changed) != 1:
        return None
    (axis,) = changed
    size, length = whole.shape[axis], part.shape[axis]
    step = 1 if length == 1 else quotient(part.strides[axis], whole.strides[axis])
    start = _steps(part.offset - whole.offset, whole.strides[axis])
    if start is None or not isinstance(step, int) or step < 1:
        return None
    if isinstance(start, int):
        if start < 0:
            return None
        if isinstance(size, int) and isinstance(length, int) and start + (length - 1) * step >= max(size, 1):
            return None
    return Step("slice", (axis, start, step))


def _select(whole: Place, part: Place) -> Step | None:
    rank, pairs, rest = len(whole.shape), _pairs(whole), _pairs(part)
    if len(rest) != rank - 1:
        return None
    for axis in range(rank):
        index = _steps(part.offset - whole.offset, whole.strides[axis])
        outside = isinstance(index, int) and (index < 0 or (isinstance(n := whole.shape[axis], int) and index >= n))
        if index is not None and not outside and all(map(_alike, pairs[:axis] + pairs[axis + 1 :], rest)):
            return Step("select", (axis, index))
    return None


def _diagonal(whole: Place, part: Place) -> Step | None:
    rank, pairs = len(whole.shape), _pairs(whole)
    if rank < 2 or len(part.shape) != rank - 1:
        return None
    distance, (*rest, (length, stride)) = part.offset - whole.offset, _pairs(part)
    for a, b in itertools.combinations(range(rank), 2):
        others = [p for i, p in enumerate(pairs) if i not in (a, b)]
        if stride != whole.strides[a] + whole.strides[b] or not all(map(_alike, others, rest)):
            continue
        lines, columns = whole.shape[a], whole.shape[b]
        right, down = quotient(distance, whole.strides[b]), quotient(distance, whole.strides[a])
        if isinstance(right, int) and _shorter(lines, columns - right, length):
            return Step("diagonal", (right, a, b))
        if isinstance(down, int) and _shorter(lines - down, columns, length):
            return Step("diagonal", (-down, a, b))
    return None


def _shorter(lines: Dim, columns: Dim, length: Dim) -> bool:
    """Whether a diagonal is this long: of a dynamic size and 1 torch takes 1, although the size may be 0."""
    if isinstance(lines, int) and isinstance(columns, int):
        return length == min(lines, columns)
    return length in (lines, columns, minimum(lines, columns))  # a longer one would leave the whole


def layout(fake: Any, symbols: Symbols) -> list[Any]:
    """The strides that matter: a copy that changes them is kept, since torch's views and kernels depend on them."""
    if fake.layout is not torch.strided:
        return [fake.layout]
    axes = zip(fake.stride(), fake.shape, strict=True)
    return [symbols.convert(s) for s, size in axes if not (isinstance(size, int) and size == 1)]
