"""Reads and writes at indices."""

import torch

from eager_backend.registry import Kernel, register, rows
from eager_backend.runtime import captured
from ir.importer.torch_api import NN, VF, plain_call
from ir.types import DType

Tensor = torch.Tensor

rows(
    VF,
    "argwhere bucketize diagonal_scatter embedding embedding_bag gather index_add index_copy index_fill index_reduce "
    "index_select isin masked_scatter nonzero nonzero_static scatter scatter_add scatter_reduce "
    "searchsorted select_scatter slice_scatter take take_along_dim _unsafe_index",
)
rows(NN, "one_hot")

_INDEX = Kernel("aten_index", plain_call(torch.ops.aten.index.Tensor))


@register("aten::index")
def index(h, self, indices):
    """Brackets beat torch.ops; a 0-d index means something else between them."""
    if any(i is not None and i.type.dtype in (DType.bool, DType.uint8) for i in indices) and _is_counted(h):
        return h.emit(counted, _INDEX.call, h.results[0].shape, self, indices)
    if all(i is None or (i.type.rank and i.type.dtype in (DType.int64, DType.bool)) for i in indices):
        return h.emit(Tensor.__getitem__, self, tuple(slice(None) if i is None else i for i in indices))
    return h.emit(_INDEX, self, indices)


@register("aten::masked_select")
def masked_select(h, self, mask):
    if _is_counted(h):
        return h.emit(counted, VF.masked_select, h.results[0].shape, self, mask)
    return h.emit(VF.masked_select, self, mask)


def _is_counted(h):
    """True where the model fixes how much the masks select: no symbol stands for that."""
    return all(s.value is not h.node.outputs[0] for s in h.driver.scopes[-1].sources.values())


def counted(select, shape, *args):
    y = select(*args)
    captured.hold(
        tuple(y.shape) == tuple(shape), f"the model takes {list(shape)} of what masks select, {list(y.shape)}"
    )
    return y
