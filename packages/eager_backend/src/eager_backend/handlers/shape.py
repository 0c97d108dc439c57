"""Views, joins and splits. Views are methods, their sizes spelled out: the shortest way that torch has."""

import torch

from eager_backend.handlers.control import require
from eager_backend.registry import register, rows
from eager_backend.runtime import sizes
from ir import geometry
from ir.dims import call
from ir.importer.schema import TORCH_DTYPES
from ir.importer.torch_api import NN, VF
from ir.types import DType

Tensor = torch.Tensor
_END = 2**63 - 1  # torch's word for "to the end"

rows(
    Tensor,
    "adjoint clone contiguous detach diagonal expand_as flatten narrow ravel reshape_as squeeze sum_to_size t "
    "transpose unfold unsqueeze swapaxes swapdims movedim moveaxis",
)
rows(Tensor, "split_with_sizes unbind chunk tensor_split unsafe_chunk unsafe_split unsafe_split_with_sizes")
rows(
    VF,
    "alias_copy atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cartesian_prod cat "
    "channel_shuffle column_stack combinations concat concatenate constant_pad_nd diag diag_embed diagflat dstack flip "
    "fliplr flipud hstack meshgrid pixel_shuffle pixel_unshuffle repeat_interleave roll rot90 row_stack stack tile "
    "tril triu vander vstack as_strided resolve_conj resolve_neg conj hsplit vsplit dsplit",
)
rows(
    NN,
    "pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d",
)


def _spread(size):
    """Sizes as separate arguments, which parse faster than a tuple; a method without any needs the empty tuple."""
    return size or [()]


@register("aten::view", "aten::_unsafe_view")
def view(h, self, size=None, dtype=None):
    """As a reshape: a kernel of a GPU or of a pass may give `self` other strides than torch.export saw."""
    if size is not None:
        return h.emit(Tensor.reshape, self, *_spread(size))
    if self.type.dtype is DType.float32 and h.target.dtype is not None:
        h.refuse(f"it reads the bits of float32, which dtype={h.target.dtype} has not; leave dtype= out")
    return h.emit(Tensor.view, self, TORCH_DTYPES[dtype])


@register("aten::view_as")
def view_as(h, self, other):
    return h.emit(Tensor.reshape_as, self, other)


@register("aten::reshape")
def reshape(h, self, shape):
    return h.emit(Tensor.reshape, self, *_spread(shape))


@register("aten::permute")
def permute(h, self, dims):
    return h.emit(Tensor.permute, self, *_spread(dims))


@register("aten::repeat")
def repeat(h, self, repeats):
    return h.emit(Tensor.repeat, self, *_spread(repeats))


@register("aten::expand")
def expand(h, self, size, implicit=False):
    return h.emit(Tensor.expand, self, *_spread(size))


@register("aten::slice")
def slice_(h, self, dim=0, start=None, end=None, step=1):
    end = None if end == _END else end
    axis = geometry.axis(dim, len(self.type.shape))
    length, traced = sizes.sliced(self.type.shape[axis], start, end, step), h.results[0].shape[axis]
    if sizes.of_inputs(h.graph, length, traced) and sizes.differ(length, traced, h.graph.symbols):
        require(h, self, call("eq", length, traced), f"x[{start}:{end}:{step}] has the length {traced} in the graph")
    part = slice(None if start == 0 else start, end, None if step == 1 else step)
    return h.emit(Tensor.__getitem__, self, (*[slice(None)] * h.axis(dim, self), part))


@register("aten::select.int")
def select(h, self, dim, index):
    if h.axis(dim, self) == 0:
        return h.emit(Tensor.__getitem__, self, (index,))
    return h.emit(Tensor.select, self, dim, index)


@register("aten::split")
def split(h, self, split_size=None, dim=0, split_sizes=None):
    """Tensor.split is Python; the kernels behind it are not."""
    if split_size is None:
        return h.emit(Tensor.split_with_sizes, self, split_sizes, dim)
    return h.emit(VF.split, self, split_size, dim)
