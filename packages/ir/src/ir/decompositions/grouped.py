"""Products of rows with the matrix of their group, as mixtures of experts have them: no size depends on the data.

The rows of a group are cut into blocks of one length, the last one filled up with zeros, and each block takes its
matrix: `rows // length + groups` blocks are always enough, and so are as many as there are rows. Blocks of one row are
a matrix for each row (gather); one block of all rows for each group is every product there is (dense), of which each
row picks its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition

_LENGTH = 32  # rows of a block where their number is dynamic
# What it costs to copy a number of a matrix, and to read one, in products of a row with it: measured in onnxruntime.
_COPY, _READ = 32, 8


@decomposition("_grouped_mm")
def _grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Groups of rows of `self`, of columns of `mat2`, or of the axis that both are summed over; `offs` are their ends.

    Raises:
        NotImplementedError: with a bias, which torch's own kernel refuses as well.
    """
    if bias is not None:
        raise NotImplementedError("a bias of grouped products is not known, nor does torch's kernel take one")
    if offs is None:
        made = torch.bmm(self, mat2)
    elif self.dim() == 2 and mat2.dim() == 2:
        inside = _inside(offs, self.shape[1])
        made = torch.bmm(torch.where(inside.unsqueeze(1), self, 0), torch.where(inside.unsqueeze(2), mat2, 0))
    elif self.dim() == 2:
        made = grouped_mm(self, mat2, offs)
    else:
        made = grouped_mm(mat2.mT, self.mT, offs).mT
    return made if out_dtype is None else made.to(out_dtype)


@decomposition("transformers::grouped_mm_fallback")
def grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Each row of `input` times the matrix of its group; zeros behind the last group's end."""
    rows, groups = input.shape[0], weight.shape[0]
    ends = offs.to(torch.int64)
    row = torch.arange(rows)
    group = (row.unsqueeze(1) >= ends).sum(1)  # how many groups end before the row
    known = group.clamp(max=groups - 1)
    starts = torch.cat([ends.new_zeros([1]), ends[:-1]])
    length = _length(rows, groups)
    if length == 1:
        made = torch.bmm(input.unsqueeze(1), weight[known]).squeeze(1)
    elif length is None:
        made = torch.matmul(input, weight)[known, row]
    else:
        made = _by_blocks(input, weight, starts, ends, length, known, row)
    return torch.where((group < groups).unsqueeze(1), made, 0)


def _by_blocks(
    input: Tensor, weight: Tensor, starts: Tensor, ends: Tensor, length: int, group: Tensor, row: Tensor
) -> Tensor:
    rows, groups = input.shape[0], weight.shape[0]
    last = ((ends - starts + (length - 1)) // length).cumsum(0)  # the number of blocks up to the end of each group
    first = torch.cat([last.new_zeros([1]), last[:-1]])
    block = torch.arange(torch.sym_min(rows, rows // length + groups))
    owner = (block.unsqueeze(1) >= last).sum(1).clamp(max=groups - 1)
    source = starts[owner].unsqueeze(1) + (block - first[owner]).unsqueeze(1) * length + torch.arange(length)
    held = torch.where(source < ends[owner].unsqueeze(1), source, rows)
    padded = torch.cat([input, input.new_zeros([1, input.shape[1]])])
    made = torch.bmm(padded[held], weight[owner])
    place = row - starts[group]
    found = torch.where(row < ends[-1], first[group] + place // length, 0)
    return made[found, place % length]


def _length(rows: int, groups: int) -> int | None:
    """Rows of a block: 1 for a matrix to each row, None for every product there is, by what they are to cost."""
    if not isinstance(rows, int):
        return _LENGTH
    costs: dict[int | None, int] = {None: groups * (_READ + rows)}
    costs.update({n: min(rows, rows // n + groups) * (_COPY + n) for n in (1, 4, 8, 16, 32, 64, 128)})
    return min(costs, key=lambda n: costs[n])


def _inside(offs: Tensor, size: int) -> Tensor:
    """Which places lie in which group, of shape (groups, size)."""
    place, ends = torch.arange(size), offs.to(torch.int64)
    starts = torch.cat([ends.new_zeros([1]), ends[:-1]])
    return (place >= starts.unsqueeze(1)) & (place < ends.unsqueeze(1))
