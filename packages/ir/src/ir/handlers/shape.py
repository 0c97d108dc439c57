"""The same numbers in another arrangement, said in the shape verbs: views, orders of axes, windows, diagonals."""

from __future__ import annotations

from ir.dims import maximum, minimum, product
from ir.geometry import invert, squeezed, window_size
from ir.handlers.registry import shared as op

# -- views: what the result's shape says all of ------------------------------------------------------------------------


@op("aten::squeeze", "aten::squeeze_copy")
def squeeze(h, self, dim=None):
    dims = h.axes(dim, self) if self.type.rank else []
    return h.squeeze(self, squeezed(self.type.shape, dims, h.out.shape))


@op("aten::unsqueeze", "aten::unsqueeze_copy")
def unsqueeze(h, self, dim):
    return h.unsqueeze(self, [dim % (self.type.rank + 1)])


@op("aten::expand", "aten::expand_as", "aten::broadcast_to", "aten::expand_copy")
def expand(h, self, **_):
    return h.expand(self, h.out.shape)


@op("aten::broadcast_tensors")
def broadcast_tensors(h, tensors):
    return [h.expand(t, r.shape) for t, r in zip(tensors, h.results, strict=True)]


@op("aten::copy")
def copy(h, self, src, non_blocking=False):
    return h.expand(h.cast(src, h.out.dtype), h.out.shape)


@op("aten::repeat_interleave.self_int")
def repeat_interleave(h, self, repeats, dim=None, output_size=None):
    x = flat(h, self) if dim is None else self
    axis = h.axis(dim or 0, x)
    shape = list(x.type.shape)
    spread = h.expand(h.unsqueeze(x, [axis + 1]), [*shape[: axis + 1], repeats, *shape[axis + 1 :]])
    return h.reshape(spread, h.out.shape)


def flat(h, x):
    """All axes as one."""
    return h.reshape(x, [product(x.type.shape)])


# -- order of axes -----------------------------------------------------------------------------------------------------


@op("aten::permute", "aten::permute_copy")
def permute(h, self, dims):
    return h.transpose(self, [h.axis(d, self) for d in dims])


@op("aten::transpose", "aten::transpose_copy", "aten::swapdims")
def transpose(h, self, dim0, dim1):
    perm = list(range(self.type.rank))
    if perm:
        a, b = h.axis(dim0, self), h.axis(dim1, self)
        perm[a], perm[b] = perm[b], perm[a]
    return h.transpose(self, perm)


@op("aten::swapaxes")
def swapaxes(h, self, axis0, axis1):
    return transpose(h, self, axis0, axis1)


@op("aten::mT", "aten::adjoint", "aten::matrix_H", "aten::mH")
def matrix_transpose(h, self):
    return transpose(h, self, -2, -1) if self.type.rank > 1 else self


@op("aten::t", "aten::t_copy", "aten::numpy_T")
def turn(h, self):
    return h.transpose(self, range(self.type.rank)[::-1])


@op("aten::movedim", "aten::moveaxis")
def movedim(h, self, source, destination):
    places = dict(zip(h.axes(destination, self), h.axes(source, self), strict=True))
    rest = iter(a for a in range(self.type.rank) if a not in places.values())
    return h.transpose(self, [places[i] if i in places else next(rest) for i in range(self.type.rank)])


# -- space and channels ------------------------------------------------------------------------------------------------


@op("aten::pixel_shuffle")
def pixel_shuffle(h, self, upscale_factor):
    *batch, channels, height, width = self.type.shape
    n, r = len(batch), upscale_factor
    if r == 1:
        return self
    x = h.reshape(self, [*batch, channels // (r * r), r, r, height, width])
    return h.reshape(h.transpose(x, [*range(n), n, n + 3, n + 1, n + 4, n + 2]), h.out.shape)


@op("aten::pixel_unshuffle")
def pixel_unshuffle(h, self, downscale_factor):
    *batch, channels, _, _ = self.type.shape
    n, r = len(batch), downscale_factor
    if r == 1:
        return self
    x = h.reshape(self, [*batch, channels, h.out.shape[-2], r, h.out.shape[-1], r])
    return h.reshape(h.transpose(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), h.out.shape)


@op("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(h, self, groups):
    batch, channels, *sizes = self.type.shape
    x = h.reshape(self, [batch, groups, channels // groups, *sizes])
    return h.reshape(h.transpose(x, [0, 2, 1, *range(3, x.type.rank)]), self.type.shape)


# -- windows -----------------------------------------------------------------------------------------------------------


@op("aten::unfold", "aten::unfold_copy")
def unfold(h, self, dimension, size, step):
    """Windows as an axis after the others."""
    if self.type.rank == 0:
        return h.reshape(self, h.out.shape)
    axis = h.axis(dimension, self)
    x = h.take(self, h.offsets(0, [step, 1], [h.out.shape[axis], size]), axis)
    return h.transpose(x, [a for a in range(x.type.rank) if a != axis + 1] + [axis + 1])


def columns(h, x, kernel_size, dilation, stride):
    """The windows of images [B, C, H, W], padded already, as im2col arranges them."""
    for axis, kernel, step, spread in zip((3, 2), kernel_size[::-1], stride[::-1], dilation[::-1], strict=True):
        count = window_size(x.type.shape[axis], kernel, step, (0, 0), spread, False)
        x = h.take(x, h.offsets(0, [spread, step], [kernel, count]), axis)
    return h.reshape(h.transpose(x, [0, 1, 2, 4, 3, 5]), h.out.shape)


# -- diagonals and storage ---------------------------------------------------------------------------------------------


@op("aten::diagonal", "aten::diagonal_copy")
def diagonal(h, self, offset=0, dim1=0, dim2=1):
    a, b = h.axis(dim1, self), h.axis(dim2, self)
    rest = [i for i in range(self.type.rank) if i not in (a, b)]
    x = h.transpose(self, [*rest, a, b])
    *outer, rows, columns = x.type.shape
    x = h.reshape(x, [*outer, rows * columns])
    return h.take(x, _on_diagonal(h, rows, columns, offset), len(outer))


@op("aten::diagonal_scatter")
def diagonal_scatter(h, self, src, offset=0, dim1=0, dim2=1):
    a, b = h.axis(dim1, self), h.axis(dim2, self)
    order = [a, b, *(i for i in range(self.type.rank) if i not in (a, b))]
    front = h.transpose(self, order)
    rows, columns, *rest = front.type.shape
    places = _on_diagonal(h, rows, columns, offset)
    (length,) = places.type.shape
    values = h.transpose(h.cast(src, self.type.dtype), [src.type.rank - 1, *range(src.type.rank - 1)])
    if values.type.shape[0] != length:  # what torch has traced with too many elements has them here as well
        values = h.slice(values, 0, 0, length)
    made = h.put(h.reshape(front, [rows * columns, *rest]), places, values)
    return h.transpose(h.reshape(made, front.type.shape), invert(order))


def _on_diagonal(h, rows, columns, offset):
    """Where the elements of a diagonal lie in the flat matrix.

    Their number is counted anew: while torch traces, it takes a dynamic size for more than 1.
    """
    length = maximum(minimum(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return h.offsets(offset if offset >= 0 else columns * -offset, [columns + 1], [length])


@op("aten::as_strided", "aten::as_strided_copy")
def as_strided(h, self, size, stride, storage_offset=None):
    """Elements by their places in the memory of an input or a weight, which is dense; only theirs is known."""
    h.must_be_dense("self")
    return h.take(flat(h, self), h.offsets(storage_offset or 0, stride, size), 0)


@op("aten::as_strided_scatter")
def as_strided_scatter(h, self, src, size, stride, storage_offset=None):
    h.must_be_dense("self")
    places = h.reshape(h.offsets(storage_offset or 0, stride, size), [product(size)])
    return h.reshape(h.put(flat(h, self), places, flat(h, h.cast(src, self.type.dtype))), self.type.shape)


# -- reading -----------------------------------------------------------------------------------------------------------


@op("aten::embedding")
def embedding(h, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """What else there is besides the table concerns its gradient."""
    return h.take(weight, indices, 0)


@op("aten::index_select")
def index_select(h, self, dim, index):
    if self.type.rank == 0:
        return self
    index = index if index.type.rank else h.unsqueeze(index, [0])
    return h.take(self, index, h.axis(dim, self))


@op("aten::take")
def take(h, self, index):
    return h.take(flat(h, self), index, 0)
