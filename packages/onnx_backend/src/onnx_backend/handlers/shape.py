"""The same numbers in another arrangement: views, joins, slices, resizing, sampling."""

from __future__ import annotations

from ir import geometry
from ir.dims import Dim, Expr, maximum, product
from ir.handlers import shape
from ir.types import DType
from onnx_backend.handlers import resampling, sampling
from onnx_backend.handlers.padding import END, constant_pad
from onnx_backend.registry import register as op

START = -(2**63)

# -- views: what the result's shape says all of ------------------------------------------------------------------------


@op("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::_reshape_alias", "aten::view_copy")
@op("aten::flatten", "aten::unflatten", "aten::ravel", "aten::view_as", "aten::reshape_as")
def reshape(h, self, size=None, shape=None, other=None, **_):
    """Sizes of another input are asked for as they are: torch's rules say what they must be, not what they are."""
    asked = other.type.shape if other is not None else size or shape or ()
    if all(n in (-1, d) for n, d in zip(asked, h.out.shape, strict=False)):
        return h.reshape(self, h.out.shape)
    allowzero = 1 if -1 not in asked and h.opset >= 14 else None
    return h.emit("Reshape", self, h.lengths(asked), allowzero=allowzero, shape=h.out.shape)


@op("aten::view.dtype", since_version=26)
def bitcast(h, self, dtype):
    if self.type.dtype.bits != dtype.bits:
        h.refuse(f"ONNX's BitCast keeps the width, {self.type.dtype} and {dtype} differ")
    return h.emit("BitCast", self, to=dtype, shape=h.out.shape)


@op("aten::view.dtype")
def bitcast_refused(h, self, dtype):
    h.refuse("it needs BitCast, which opset 26 brings; use opset=26")


# -- repetition --------------------------------------------------------------------------------------------------------


@op("aten::repeat")
def repeat(h, self, repeats):
    x = h.unsqueeze(self, range(len(repeats) - self.type.rank))
    if all(r == 1 for r in repeats):
        return x
    return h.emit("Tile", x, repeats, shape=h.out.shape)


@op("aten::tile")
def tile(h, self, dims):
    return repeat(h, self, [1] * (self.type.rank - len(dims)) + list(dims))


@op("aten::repeat_interleave.self_Tensor")
def repeat_interleave_tensor(h, self, repeats, dim=None, output_size=None):
    x = h.reshape(self, [product(self.type.shape)]) if dim is None or self.type.rank == 0 else self
    axis = h.axis(dim or 0, x)
    if repeats.type.rank == 0 or repeats.type.shape[0] == 1:  # one number for all places
        repeats = h.expand(repeats, [x.type.shape[axis]])
    return h.emit("Gather", x, _repeated(h, repeats, output_size), axis=axis, shape=h.out.shape)


@op("aten::repeat_interleave.Tensor")
def repeat_interleave_index(h, repeats, output_size=None):
    return h.cast(_repeated(h, repeats, output_size), h.out.dtype)


def _counting(h, repeats, total, output_size):
    """The repeats, in runs where torch takes them: none is negative, and their sum is what was given."""
    holds = None
    if repeats.array is None:
        holds = h.emit("Equal", h.reduce("ReduceSum", h.emit("Abs", repeats)), total)
        repeats = h.require(repeats, holds, "no number of repeats is negative")
    if output_size is not None:
        holds = h.emit("Equal", total, h.tensor(output_size, DType.int64))
        repeats = h.require(repeats, holds, f"the repeats sum up to output_size, {output_size}")
    return repeats


def _repeated(h, repeats, output_size):
    """0 repeated `repeats[0]` times, 1 `repeats[1]` times ...: how many running totals each place has passed."""
    repeats = h.cast(repeats, DType.int64)
    total = h.reduce("ReduceSum", repeats)
    repeats = _counting(h, repeats, total, output_size)
    ends = h.emit("CumSum", repeats, h.const(0, DType.int64))
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


@op("aten::im2col")
def im2col(h, self, kernel_size, dilation, padding, stride):
    x = self if self.type.rank == 4 else h.unsqueeze(self, [0])
    x = constant_pad(h, x, [padding[1], padding[1], padding[0], padding[0]], 0)
    return shape.columns(h, x, kernel_size, dilation, stride)


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
        return shape.pixel_shuffle(h, self, upscale_factor)
    return h.emit("DepthToSpace", self, blocksize=upscale_factor, mode="CRD", shape=h.out.shape)


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
    if align_corners and any(h.may_be_empty(s - 1) for s in h.out.shape[1:-1]):
        h.refuse("onnxruntime has the only place of an axis at its beginning, torch in the middle")
    return h.emit("AffineGrid", theta, size, align_corners=int(align_corners), shape=h.out.shape)
