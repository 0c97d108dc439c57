"""The same numbers in another arrangement: views, joins, slices, resizing, sampling."""

from __future__ import annotations

from ir import geometry
from ir.dims import Dim, Expr, maximum, minimum, product
from ir.types import DType
from onnx_backend.handlers import resampling, sampling
from onnx_backend.handlers.padding import END, constant_pad
from onnx_backend.registry import register as op

START = -(2**63)

# -- views: what the result's shape says all of ------------------------------------------------------------------------


@op("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::_reshape_alias", "aten::view_copy")
@op("aten::flatten", "aten::unflatten", "aten::ravel", "aten::view_as", "aten::reshape_as")
def reshape(h, self, **_):
    return h.reshape(self, h.out.shape)


@op("aten::view.dtype", since_version=26)
def bitcast(h, self, dtype):
    if self.type.dtype.bits != dtype.bits:
        h.refuse(f"ONNX's BitCast keeps the width, {self.type.dtype} and {dtype} differ")
    return h.emit("BitCast", self, to=dtype, shape=h.out.shape)


@op("aten::view.dtype")
def bitcast_refused(h, self, dtype):
    h.refuse("it needs BitCast, which opset 26 brings")


@op("aten::squeeze", "aten::squeeze_copy")
def squeeze(h, self, dim=None):
    dims = h.axes(dim, self) if self.type.rank else []
    return h.squeeze(self, geometry.squeezed(self.type.shape, dims, h.out.shape))


@op("aten::unsqueeze", "aten::unsqueeze_copy")
def unsqueeze(h, self, dim):
    return h.unsqueeze(self, [dim % (self.type.rank + 1)])


@op("aten::permute", "aten::permute_copy")
def permute(h, self, dims):
    return h.transpose(self, h.axes(dims, self) if dims else [])


@op("aten::transpose", "aten::transpose_copy")
def transpose(h, self, dim0, dim1):
    perm = list(range(self.type.rank))
    if perm:
        a, b = h.axis(dim0, self), h.axis(dim1, self)
        perm[a], perm[b] = perm[b], perm[a]
    return h.transpose(self, perm)


@op("aten::swapaxes")
def swapaxes(h, self, axis0, axis1):
    return transpose(h, self, axis0, axis1)


@op("aten::mT")
def matrix_transpose(h, self):
    return transpose(h, self, -2, -1)


@op("aten::t", "aten::t_copy", "aten::numpy_T")
def turn(h, self):
    return h.transpose(self, range(self.type.rank)[::-1])


@op("aten::movedim", "aten::moveaxis")
def movedim(h, self, source, destination):
    places = dict(zip(h.axes(destination, self), h.axes(source, self), strict=True))
    rest = iter(a for a in range(self.type.rank) if a not in places.values())
    return h.transpose(self, [places[i] if i in places else next(rest) for i in range(self.type.rank)])


@op("aten::diagonal", "aten::diagonal_copy")
def diagonal(h, self, offset=0, dim1=0, dim2=1):
    a, b = h.axes([dim1, dim2], self)
    rest = [i for i in range(self.type.rank) if i not in (a, b)]
    x = h.transpose(self, [*rest, a, b])
    *outer, height, width = x.type.shape
    flat = h.reshape(x, [*outer, product(x.type.shape[-2:])])
    first = offset if offset >= 0 else width * -offset
    places = h.steps(diagonal_length(height, width, offset), width + 1, first)
    return h.emit("Gather", flat, places, axis=len(outer), shape=h.out.shape)


def diagonal_length(height, width, offset):
    """Counted anew: while torch traces, it takes a dynamic size for more than 1."""
    return maximum(minimum(height + min(offset, 0), width - max(offset, 0)), 0)


def strided_places(h, size, stride, storage_offset):
    """Where each element lies in the memory of an input or a weight, which is dense; only theirs is known."""
    h.must_be_dense("self")
    total = h.tensor(storage_offset or 0, DType.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        column = h.reshape(h.steps(n, step), [-1 if i == axis else 1 for i in range(len(size))])
        total = column if total.type.rank == 0 and total.array == 0 else h.emit("Add", total, column)
    return total


@op("aten::as_strided", "aten::as_strided_copy")
def as_strided(h, self, size, stride, storage_offset=None):
    flat = h.reshape(self, [product(self.type.shape)])
    return h.emit("Gather", flat, strided_places(h, size, stride, storage_offset), axis=0)


# -- repetition --------------------------------------------------------------------------------------------------------


@op("aten::expand", "aten::expand_as", "aten::broadcast_to", "aten::expand_copy")
def expand(h, self, **_):
    return h.expand(self, h.out.shape)


@op("aten::broadcast_tensors")
def broadcast_tensors(h, tensors):
    return [h.expand(t, r.shape) for t, r in zip(tensors, h.results, strict=True)]


@op("aten::repeat")
def repeat(h, self, repeats):
    x = h.unsqueeze(self, range(len(repeats) - self.type.rank))
    if all(r == 1 for r in repeats):
        return x
    return h.emit("Tile", x, repeats, shape=h.out.shape)


@op("aten::tile")
def tile(h, self, dims):
    return repeat(h, self, [1] * (self.type.rank - len(dims)) + list(dims))


@op("aten::repeat_interleave.self_int")
def repeat_interleave(h, self, repeats, dim=None, output_size=None):
    x = h.reshape(self, [product(self.type.shape)]) if dim is None else self
    axis = h.axis(dim or 0, x)
    shape = list(x.type.shape)
    x = h.unsqueeze(x, [axis + 1])
    return h.reshape(h.expand(x, [*shape[: axis + 1], repeats, *shape[axis + 1 :]]), h.out.shape)


@op("aten::repeat_interleave.self_Tensor")
def repeat_interleave_tensor(h, self, repeats, dim=None, output_size=None):
    x = h.reshape(self, [product(self.type.shape)]) if dim is None or self.type.rank == 0 else self
    axis = h.axis(dim or 0, x)
    if repeats.type.rank == 0 or repeats.type.shape[0] == 1:  # one number for all places
        repeats = h.expand(repeats, [x.type.shape[axis]])
    return h.emit("Gather", x, _repeated(h, repeats), axis=axis, shape=h.out.shape)


@op("aten::repeat_interleave.Tensor")
def repeat_interleave_index(h, repeats, output_size=None):
    return h.cast(_repeated(h, repeats), h.out.dtype)


def _repeated(h, repeats):
    """0 repeated `repeats[0]` times, 1 `repeats[1]` times ...: how many running totals each place has passed."""
    ends = h.emit("CumSum", h.cast(repeats, DType.int64), h.const(0, DType.int64))
    total = h.reduce("ReduceSum", h.cast(repeats, DType.int64))
    places = h.emit("Range", h.const(0, DType.int64), total, h.const(1, DType.int64), shape=(-1,))
    passed = h.emit("LessOrEqual", h.unsqueeze(ends, [0]), h.emit("Unsqueeze", places, [1], shape=(-1, 1)))
    return h.emit("ReduceSum", h.cast(passed, DType.int64), [1], keepdims=0, shape=(-1,))


# -- joins -------------------------------------------------------------------------------------------------------------


@op("aten::cat", "aten::concat", "aten::concatenate")
def cat(h, tensors, dim=0):
    parts = [t for t in tensors if t.type.shape != (0,)] or tensors[:1]  # torch skips these in any company
    return h.concat(parts, h.axis(dim, parts[0]))


@op("aten::stack")
def stack(h, tensors, dim=0):
    axis = dim % (tensors[0].type.rank + 1)
    unknown = sum(isinstance(s, Expr) for s in h.out.shape[axis:])
    empty = h.opset < 14 and any(h.may_be_empty(s) for s in h.out.shape[axis:])  # which Reshape cannot say there
    if axis < tensors[0].type.rank and unknown <= 1 and 0 not in h.out.shape and not empty:
        return h.reshape(h.concat(tensors, axis), h.out.shape)
    return h.concat([h.unsqueeze(t, [axis]) for t in tensors], axis)


# -- slices ------------------------------------------------------------------------------------------------------------


@op("aten::slice", "aten::slice_copy")
def slice_(h, self, dim=0, start=None, end=None, step=1):
    axis = h.axis(dim, self)
    if step == 1 and self.type.shape == h.out.shape:
        return self
    return h.slice(self, axis, 0 if start is None else start, END if end is None else end, step, h.out.shape[axis])


@op("aten::narrow", "aten::narrow_copy")
def narrow(h, self, dim, start, length):
    size = self.type.shape[h.axis(dim, self)]
    first = start + size if isinstance(start, int) and start < 0 else start
    return slice_(h, self, dim, first, first + length)


@op("aten::select", "aten::select_copy")
def select(h, self, dim, index):
    axis = h.axis(dim, self)
    shape = self.type.shape[:axis] + self.type.shape[axis + 1 :]
    return h.emit("Gather", self, h.tensor(index, DType.int64), axis=axis, shape=shape)


@op("aten::flip")
def flip(h, self, dims):
    axes = h.axes(dims, self) if dims and self.type.rank else []
    if not axes:
        return self
    n = len(axes)
    return h.emit("Slice", self, [-1] * n, [START] * n, axes, [-1] * n, shape=self.type.shape)


@op("aten::roll")
def roll(h, self, shifts, dims=()):
    if not dims:
        flat = h.reshape(self, [product(self.type.shape)])
        return h.reshape(_roll(h, flat, shifts[0], 0), self.type.shape)
    x = self
    for shift, axis in zip(shifts, h.axes(dims, self), strict=True):
        x = _roll(h, x, shift, axis)
    return x


def _roll(h, x, shift, axis):
    size: Dim = x.type.shape[axis]
    if size == 0:
        return x
    known = isinstance(size, int) or not isinstance(shift, int)
    # Up to two places, Python's slices are right at any size: they clip where the axis is shorter.
    divisor = maximum(size, 1) if h.may_be_empty(size) else size
    cut: Dim = -shift if not known and abs(shift) <= 2 else -shift % divisor
    if cut == 0:
        return x
    tail, head = (h.slice(x, axis, a, b, 1, None) for a, b in ((cut, END), (0, cut)))
    return h.emit("Concat", tail, head, axis=axis, shape=x.type.shape)


@op("aten::unfold", "aten::unfold_copy")
def unfold(h, self, dimension, size, step):
    if self.type.rank == 0:
        return h.reshape(self, h.out.shape)
    axis = h.axis(dimension, self)
    windows = h.emit("Gather", self, h.windows(h.out.shape[axis], size, step), axis=axis)
    return h.transpose(windows, [a for a in range(self.type.rank + 1) if a != axis + 1] + [axis + 1])


@op("aten::im2col")
def im2col(h, self, kernel_size, dilation, padding, stride):
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (geometry.ntuple(a, 2) for a in (kernel_size, dilation, padding, stride))
    x = self if self.type.rank == 4 else h.unsqueeze(self, [0])
    x = constant_pad(h, x, [pw, pw, ph, ph], 0)
    batch, channels, height, width = x.type.shape
    rows = geometry.window_size(height, kh, sh, (0, 0), dh, False)
    columns = geometry.window_size(width, kw, sw, (0, 0), dw, False)
    x = h.emit("Gather", x, h.windows(rows, kh, sh, dh), axis=2)
    x = h.emit("Gather", x, h.windows(columns, kw, sw, dw), axis=4)
    x = h.transpose(x, [0, 1, 3, 5, 2, 4])
    x = h.reshape(x, [batch, channels * kh * kw, rows * columns])
    return h.reshape(x, h.out.shape)


@op("aten::col2im", since_version=18)
def col2im(h, self, output_size, kernel_size, dilation, padding, stride):
    x = self if self.type.rank == 3 else h.unsqueeze(self, [0])
    shape = [x.type.shape[0], h.out.shape[-3], *output_size]
    y = h.emit(
        "Col2Im", x, output_size, kernel_size, dilations=geometry.ntuple(dilation, 2),
        pads=geometry.ntuple(padding, 2) * 2, strides=geometry.ntuple(stride, 2), shape=shape,
    )  # fmt: skip
    return h.reshape(y, h.out.shape)


# -- space and channels ------------------------------------------------------------------------------------------------


@op("aten::pixel_shuffle")
def pixel_shuffle(h, self, upscale_factor):
    if self.type.rank != 4:
        h.refuse("DepthToSpace takes 4 dimensions")
    return h.emit("DepthToSpace", self, blocksize=upscale_factor, mode="CRD", shape=h.out.shape)


@op("aten::pixel_unshuffle")
def pixel_unshuffle(h, self, downscale_factor):
    *outer, channels, _, _ = self.type.shape
    r, n = downscale_factor, len(outer)
    x = h.reshape(self, [*outer, channels, h.out.shape[-2], r, h.out.shape[-1], r])
    return h.reshape(h.transpose(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), h.out.shape)


@op("aten::channel_shuffle")
def channel_shuffle(h, self, groups):
    batch, channels, *sizes = self.type.shape
    x = h.reshape(self, [batch, groups, channels // groups, *sizes])
    return h.reshape(h.transpose(x, [0, 2, 1, *range(3, x.type.rank)]), self.type.shape)


@op("aten::tril")
def tril(h, self, diagonal=0):
    return h.emit("Trilu", self, h.tensor(diagonal, DType.int64), upper=0, shape=h.out.shape)


@op("aten::triu")
def triu(h, self, diagonal=0):
    return h.emit("Trilu", self, h.tensor(diagonal, DType.int64), upper=1, shape=h.out.shape)


# -- resizing and sampling ---------------------------------------------------------------------------------------------


def _factors(h, scales):
    """The factors that a model gave, in a list or an argument for each axis; None where the sizes decide."""
    if "scale_factors" in scales:
        return scales["scale_factors"]
    names = ("scales",) if h.out.rank == 3 else ("scales_d", "scales_h", "scales_w")[5 - h.out.rank :]
    given = [scales.get(name) for name in names]
    return given if any(given) else None


def _neighbours(name, exact):
    @op(*(f"aten::{name}{n}d" for n in (1, 2, 3)))
    def handler(h, input=None, self=None, output_size=None, **scales):
        return resampling.nearest(h, input or self, _factors(h, scales), exact)


def _interpolation(*names, **attributes):
    @op(*(f"aten::{name}" for name in names))
    def handler(h, input=None, self=None, output_size=None, align_corners=False, **scales):
        return resampling.resize(h, input or self, _factors(h, scales), align_corners, **attributes)


_FILTER = {"antialias": 1, "exclude_outside": 1}  # as wide as the step, cut off at the border and normed
_neighbours("upsample_nearest", exact=False)
_neighbours("_upsample_nearest_exact", exact=True)
_interpolation("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", mode="linear")
_interpolation("upsample_bicubic2d", mode="cubic", cubic_coeff_a=-0.75)  # that of OpenCV
_interpolation("_upsample_bilinear2d_aa", mode="linear", **_FILTER)
_interpolation("_upsample_bicubic2d_aa", mode="cubic", cubic_coeff_a=-0.5, **_FILTER)  # that of PIL


@op("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(h, input, grid, interpolation_mode, padding_mode, align_corners):
    return sampling.grid_sample(h, input, grid, interpolation_mode, padding_mode, align_corners)


@op("aten::affine_grid_generator", since_version=20)
def affine_grid(h, theta, size, align_corners):
    return h.emit("AffineGrid", theta, size, align_corners=int(align_corners), shape=h.out.shape)
