"""Pieces of a tensor: splits, and writes to a part that is known."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.geometry import split_axis
from ir.importer.torch_api import statically_known_true


def _evenly(op: str, self: Tensor, sections: int) -> list[Tensor]:
    """Pieces of one size: that the sections divide the axis is torch's own condition."""
    axis = split_axis(op, self.dim())
    size = self.shape[axis] // sections
    return [self.narrow(axis, i * size, size) for i in range(sections)]


for _name in ("select", "slice", "split", "split_with_sizes", "unbind", "alias"):
    decomposition(f"{_name}_copy")(getattr(torch.ops.aten, _name))  # values have no memory to share

for _name in ("vsplit", "hsplit", "dsplit"):
    decomposition(f"{_name}.int")(functools.partial(_evenly, _name))


@decomposition("_chunk_cat")
def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor filled up with zeros to whole chunks, which are rows; these side by side."""
    axis, rows = dim % tensors[0].dim(), []
    for t in tensors:
        before, size, after = t.shape[:axis], t.shape[axis], t.shape[axis + 1 :]
        each = (size + num_chunks - 1) // num_chunks
        whole = t.new_zeros([*before, each * num_chunks, *after]).index_copy(axis, torch.arange(size), t)
        rows.append(whole.reshape([*before, num_chunks, each * math.prod(after)]))
    return torch.cat(rows, axis + 1)


def fitted(src: Tensor, like: Sequence[Any]) -> Tensor:
    """The source in sizes that it has in any case, where torch.export does not say so."""
    for axis, (have, size) in enumerate(zip(src.shape, like, strict=True)):
        src = src if statically_known_true(have == size) else src.index_select(axis, torch.arange(size))
    return src


@decomposition("select_scatter")
def _select_scatter(self: Tensor, src: Tensor, dim: int, index: Any) -> Tensor:
    axis = dim % self.dim()
    at = index + self.shape[axis] if isinstance(index, int) and index < 0 else index
    here = (torch.arange(self.shape[axis]) == at).reshape([-1] + [1] * (self.dim() - axis - 1))
    src = fitted(src, [*self.shape[:axis], *self.shape[axis + 1 :]]).to(self.dtype)
    return torch.where(here, src.unsqueeze(axis), self)


@decomposition("slice_scatter")
def _slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """As many places as the source has."""
    axis, src = dim % self.dim(), src.to(self.dtype)
    size, length, start = self.shape[axis], src.shape[axis], 0 if start is None else start
    if isinstance(start, int) and start < 0:
        start = torch.sym_max(start + size, 0)
    if step == 1 and all(isinstance(n, int) for n in (start, length, size)):
        start = min(start, size)
        after = self.narrow(axis, start + length, size - start - length)
        return torch.cat([self.narrow(axis, 0, start), src, after], axis)
    src = fitted(src, [length if i == axis else n for i, n in enumerate(self.shape)])
    return self.index_copy(axis, torch.arange(length) * step + start, src)


@decomposition("roll")
def _roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return _roll(self.reshape(-1), shifts, [0]).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        places = torch.arange(self.shape[dim]) - shift
        self = self.index_select(dim, torch.remainder(places, torch.sym_max(self.shape[dim], 1)))
    return self


@decomposition("pad_sequence")
def _pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    longest = functools.reduce(torch.sym_max, (s.shape[0] for s in sequences))
    rows = []
    for s in sequences:
        rest = s.new_full([longest - s.shape[0], *s.shape[1:]], padding_value)
        rows.append(torch.cat([s, rest] if padding_side == "right" else [rest, s]))
    return torch.stack(rows, 0 if batch_first else 1)
