"""Where numbers lie among others that are in order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.importer.torch_api import statically_known_true


@decomposition("searchsorted")
def _searchsorted(
    sorted_sequence: Tensor, self: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """torch's own search, halving by halving: where a row holds nan or is out of order, it is that which decides."""
    row = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    dtype, right = torch.result_type(row, self), right or side == "right"
    x = self.to(dtype) if isinstance(self, Tensor) else torch.scalar_tensor(self, dtype=dtype)
    row, size = row.to(dtype), row.shape[-1]
    last = size - 1
    if not isinstance(size, int) or not size:
        # Nothing can be read of an empty row: edges are added, which are not counted, and so many that torch knows
        # their number to be 2 or more: else it guards on whether it is 1.
        more = next((n for n in range(1, 9) if statically_known_true(size + n > 1)), 1)
        row, last = torch.nn.functional.pad(row, (0, more)), size
    low, high = torch.zeros(x.shape, dtype=torch.int64), torch.full(x.shape, size, dtype=torch.int64)
    for _ in range(next((n for n in range(31) if statically_known_true(size < 2**n)), 31)):
        middle = (low + high) >> 1
        at = middle.clamp(max=last)
        edge = row.gather(-1, at) if row.dim() > 1 else row.index_select(0, at.reshape(-1)).reshape(at.shape)
        before = ((edge > x if right else edge >= x).logical_not()) & (low < high)
        low, high = torch.where(before, middle + 1, low), torch.where(before, high, middle)
    return low.to(torch.int32) if out_int32 else low


@decomposition("bucketize")
def _bucketize(self: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)
