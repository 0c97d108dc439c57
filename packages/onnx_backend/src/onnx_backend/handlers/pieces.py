"""Splits: the pieces of a tensor along an axis."""

from __future__ import annotations

from ir.geometry import split_axis
from ir.types import DType
from onnx_backend.handlers.padding import END
from onnx_backend.handlers.shape import select
from onnx_backend.registry import register as op


@op("aten::split", "aten::split_with_sizes", "aten::chunk", "aten::tensor_split", "aten::unsafe_chunk")
@op("aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::split_copy", "aten::split_with_sizes_copy")
def split(h, self, dim=0, **_):
    """The sizes are those of the results."""
    axis = h.axis(dim, self)
    sizes = [r.shape[axis] for r in h.results]
    if len(sizes) == 1:
        return [self]
    return h.emit("Split", self, sizes, axis=axis, outputs=len(sizes))


@op("aten::tensor_split.indices")
def tensor_split(h, self, indices, dim=0):
    """Slices, which are cut off at the end, as torch's pieces are; Split fails where a piece does not fit."""
    axis = h.axis(dim, self)
    if self.type.shape[axis] == sum((r.shape[axis] for r in h.results), 0) and isinstance(self.type.shape[axis], int):
        return split(h, self, dim)
    bounds = zip([0, *indices], [*indices, END], h.results, strict=True)
    return [h.slice(self, axis, start, end, size=r.shape[axis]) for start, end, r in bounds]


@op("aten::tensor_split.tensor_indices_or_sections")
def tensor_split_at(h, self, tensor_indices_or_sections, dim=0):
    cuts = h.cast(tensor_indices_or_sections, DType.int64)
    if not cuts.type.rank:
        return split(h, self, dim)
    return tensor_split(h, self, [h.slice(cuts, 0, i, i + 1, size=1) for i in range(len(h.results) - 1)], dim)


@op("aten::hsplit.int", "aten::vsplit.int", "aten::dsplit.int")
def split_evenly(h, self, sections):
    return split(h, self, split_axis(h.node.op.removeprefix("aten::"), self.type.rank))


@op("aten::hsplit.array", "aten::vsplit.array", "aten::dsplit.array")
def split_at(h, self, indices):
    return tensor_split(h, self, indices, split_axis(h.node.op.removeprefix("aten::"), self.type.rank))


@op("aten::unbind", "aten::unbind_copy")
def unbind(h, self, dim=0):
    return [select(h, self, dim, i) for i in range(len(h.results))]
