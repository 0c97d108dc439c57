"""Reading and writing by index: rows along one axis, to which every other form comes down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.geometry import invert
from ir.importer.torch_api import statically_known_true

Indices = Sequence[Tensor | None]


def _numbered(places: Sequence[Tensor], sizes: Sequence[Any], from_end: bool = True) -> Tensor:
    """The number of each element in the flat tensor of these sizes; places below 0 count from the end.

    A place beyond its axis, which would be one of another row, has a number beyond all.
    """
    number, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for place, size in zip(places, sizes, strict=True):
        place = place.to(torch.int64)
        place = torch.where(place < 0, place + size, place) if from_end else place
        number, inside = number * size + place, inside & (place >= 0) & (place < size)
    return number if len(places) == 1 else torch.where(inside, number, math.prod(sizes))


def _in_front(self: Tensor, indices: Indices) -> tuple[Tensor, Tensor, list[int], int]:
    """The tensor with the indexed axes in front, the number of each row of these, the order of the axes.

    Last, where the axes of the index go in the result: to the first indexed one where these lie side by side.
    """
    axes = [a for a, i in enumerate(indices) if i is not None]
    order = [*axes, *(a for a in range(self.dim()) if a not in axes)]
    number = _numbered([i for i in indices if i is not None], [self.shape[a] for a in axes])
    place = axes[0] if axes == [*range(axes[0], axes[-1] + 1)] else 0
    return self.permute(order), number, order, place


def _rows(x: Tensor, count: int) -> Tensor:
    """The first axes as one."""
    return x.reshape([math.prod(x.shape[:count]), *x.shape[count:]])


@decomposition("index", "_unsafe_index")
def _index(self: Tensor, indices: Indices) -> Tensor:
    if any(i is not None and i.dtype is torch.bool for i in indices):
        raise NotImplementedError("a mask beside other indices")
    front, number, _, place = _in_front(self, indices)
    rows, rank = _rows(front, sum(i is not None for i in indices)), number.dim()
    made = rows.index_select(0, number.reshape(-1)).reshape([*number.shape, *rows.shape[1:]])
    return made.permute([*range(rank, rank + place), *range(rank), *range(rank + place, made.dim())])


@decomposition("index_put", "_unsafe_index_put")
def _index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    if any(i is not None and i.dtype is torch.bool for i in indices):
        if len(indices) > 1 or indices[0] is None or values.dim() or accumulate:
            raise NotImplementedError("it writes one number for each element that a mask picks; use torch.where")
        mask = indices[0].reshape([*indices[0].shape, *[1] * (self.dim() - indices[0].dim())])
        return torch.where(mask, values.to(self.dtype), self)
    front, number, order, place = _in_front(self, indices)
    rows, rank = _rows(front, sum(i is not None for i in indices)), number.dim()
    rest = rows.shape[1:]
    given = values.to(self.dtype).expand([*rest[:place], *number.shape, *rest[place:]])
    given = given.permute([*range(place, place + rank), *range(place), *range(place + rank, given.dim())])
    write = rows.index_add if accumulate else rows.index_copy
    made = write(0, number.reshape(-1), given.reshape([math.prod(number.shape), *rest]))
    return made.reshape(front.shape).permute(invert(order))


@decomposition("masked_scatter")
def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th hit takes the n-th element: a running count of the hits is the place to read.

    Before the first hit it is that of a spare element, where there may be no other.
    """
    self, mask = torch.broadcast_tensors(self, mask)
    given = source.reshape(-1)
    number = mask.reshape(-1).to(torch.int64).cumsum(0)
    if isinstance(given.shape[0], int) and given.shape[0] > 0:
        number = (number - 1).clamp(min=0)
    else:
        given = torch.cat([given.new_zeros(1), given])
    return torch.where(mask, given.index_select(0, number).reshape(mask.shape), self)


@decomposition("put")
def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, number = self.reshape(-1), _numbered([index.reshape(-1)], [self.numel()])
    write = flat.index_add if accumulate else flat.index_copy
    return write(0, number, source.reshape(-1)).reshape(self.shape)


# -- one index that names a place along one axis for each element ------------------------------------------------------


def _along(shape: Sequence[Any]) -> list[Tensor]:
    """The places along each axis, which broadcast to the shape."""
    return [torch.arange(n).reshape([-1] + [1] * (len(shape) - a - 1)) for a, n in enumerate(shape)]


def _cells(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """The number in the flat tensor of each element that is named."""
    places = [index if a == dim % self.dim() else other for a, other in enumerate(_along(index.shape))]
    return _numbered(places, self.shape, from_end=False).expand(index.shape).reshape(-1)


@decomposition("gather")
def _gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if self.dim() == 0 or index.dim() == 0:
        return self.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)
    return self.reshape(-1).index_select(0, _cells(self, dim, index)).reshape(index.shape)


def _corner(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """The first elements along each axis, of which the tensor has as many as are asked for."""
    if all(statically_known_true(n <= size) for n, size in zip(shape, x.shape, strict=True)):
        for axis, size in enumerate(shape):
            x = x.narrow(axis, 0, size)
        return x
    places = _numbered(_along(shape), x.shape, from_end=False)  # a slice would need more elements for good
    return x.reshape(-1).index_select(0, places.reshape(-1)).reshape(shape)


_WORDS = {"add": "sum", "multiply": "prod"}


@decomposition("scatter")
def _scatter(
    self: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str = "",
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    src = value if src is None else src
    if self.dim() == 0 or index.dim() == 0:
        src = src.reshape(-1) if isinstance(src, Tensor) else src
        row, places = self.reshape(-1), index.reshape(-1)
        return _scatter(row, 0, places, src, reduce=reduce, include_self=include_self).reshape(self.shape)
    if isinstance(src, Tensor):
        src = _corner(src, index.shape)
    else:
        src = torch.scalar_tensor(src, dtype=self.dtype)
    flat, places, given = self.reshape(-1), _cells(self, dim, index), src.expand(index.shape).reshape(-1)
    word = _WORDS.get(reduce, reduce)
    if word in ("sum", "mean"):
        flat = flat if include_self else flat.index_fill(0, places, 0)
        made = _added(flat, places, given)
    elif word:
        made = flat.index_reduce(0, places, given, word, include_self=include_self)
    else:
        made = flat.index_copy(0, places, given)
    if word == "mean":
        made = _shared(made, places, include_self)
    return made.reshape(self.shape)


@decomposition("scatter_reduce")
def _scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter(self, dim, index, src, reduce=reduce, include_self=include_self)


@decomposition("scatter_add")
def _scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(self, dim, index, src, reduce="sum")


def _added(flat: Tensor, places: Tensor, given: Tensor) -> Tensor:
    """The sums, of half precision rounded as a whole."""
    if flat.dtype not in (torch.float16, torch.bfloat16):
        return flat.index_add(0, places, given)
    return flat.float().index_add(0, places, given.float()).to(flat.dtype)


def _shared(total: Tensor, places: Tensor, include_self: bool) -> Tensor:
    """Sums of rows over the number of their parts."""
    count = total.new_ones([total.shape[0]] + [1] * (total.dim() - 1))
    count = count if include_self else count.index_fill(0, places, 0)
    count = count.index_add(0, places, count.new_ones([places.shape[0], *count.shape[1:]])).clamp(min=1)
    return total / count if total.dtype.is_floating_point else torch.div(total, count, rounding_mode="floor")


@decomposition("index_reduce")
def _index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce != "mean":
        raise NotImplementedError("no mean")
    x, given = self.movedim(dim, 0), source.movedim(dim, 0)
    x = x if include_self else x.index_fill(0, index, 0)
    return _shared(x.index_add(0, index, given), index, include_self).movedim(0, dim)
