"""Reads and writes at indices."""

import torch

from eager_backend.registry import Kernel, register, rows
from ir.importer.torch_api import NN, VF, plain_call
from ir.types import DType

Tensor = torch.Tensor

rows(
    VF,
    "argwhere bucketize diagonal_scatter embedding embedding_bag gather index_add index_copy index_fill index_reduce "
    "index_select isin masked_scatter masked_select nonzero nonzero_static scatter scatter_add scatter_reduce "
    "searchsorted select_scatter slice_scatter take take_along_dim _unsafe_index",
)
rows(NN, "one_hot")

_INDEX = Kernel("aten_index", plain_call(torch.ops.aten.index.Tensor))


@register("aten::index")
def index(h, self, indices):
    """Brackets beat torch.ops; a 0-d index means something else between them."""
    if all(i is None or (i.type.rank and i.type.dtype in (DType.int64, DType.bool)) for i in indices):
        return h.emit(Tensor.__getitem__, self, tuple(slice(None) if i is None else i for i in indices))
    return h.emit(_INDEX, self, indices)
