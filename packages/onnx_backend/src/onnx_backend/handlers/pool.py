"""Pooling over windows, fixed and adaptive."""

from __future__ import annotations

import numpy as np

from ir import geometry
from ir.dims import Expr, ceildiv, maximum, product, quotient
from ir.helper import numpy_dtype
from ir.types import DType
from onnx_backend.handlers.reduce import amax, average
from onnx_backend.registry import register as op


class Windows:
    """The windows of one pool over a batch: sizes of the kernel by axis, and how far the last ones reach."""

    def __init__(self, h, n, kernel, stride, padding, dilation=1):
        kernel = geometry.ntuple(kernel, n)
        self.h, self.n = h, n
        self.kernel = kernel
        self.stride = geometry.ntuple(stride, n) if stride else kernel
        self.padding = geometry.ntuple(padding, n)
        self.dilation = geometry.ntuple(dilation, n)

    @property
    def plain(self):
        """True where ONNX's ceil_mode is torch's at every size: no last window can start in the padding."""
        rows = zip(self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return all(s + p <= d * (k - 1) + 1 for k, s, p, d in rows)

    def is_global(self, x):
        """One window over all there is."""
        return not any(self.padding) and x.type.shape[-self.n :] == tuple(self.kernel) and set(self.dilation) == {1}

    def reach(self, x, ceil_mode):
        """The padding at the end of each axis, with what ceil_mode reads beyond it.

        This says torch's ceil_mode, dropped last window and all, without ONNX's, which differs by opset and runtime.
        """
        if not ceil_mode:
            return self.padding
        counts, sizes = self.h.out.shape[-self.n :], x.type.shape[-self.n :]
        rows = zip(counts, sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [maximum(p, (c - 1) * s + d * (k - 1) + 1 - (size + p)) for c, size, k, s, p, d in rows]

    def batched(self, x, fn):
        """`fn` of a batch, giving several results; a single sample becomes a batch of one for it.

        Channels that may be none become the batch: onnxruntime takes no other axis that is empty.
        """
        if x.type.rank == self.n + 2:
            return fn(x)
        axes = [int(self.h.may_be_empty(x.type.shape[0]))]
        return [self.h.squeeze(y, axes) if y is not None else None for y in fn(self.h.unsqueeze(x, axes))]

    def pad(self, x, before, after, value=None):
        """`x` padded by a node of its own."""
        shape = [s + b + a for s, b, a in zip(x.type.shape[2:], before, after, strict=True)]
        fill = [] if value is None else [self.h.const(value, x)]
        return self.h.emit("Pad", x, [0, 0, *before, 0, 0, *after], *fill, shape=[*x.type.shape[:2], *shape])

    def emit(self, op_name, x, before, after, **attributes):
        """The pool itself, at these paddings."""
        if any(d != 1 for d in self.dilation):
            attributes["dilations"] = self.dilation
        kernel = [self.h.static(k, "a size of the window") for k in self.kernel]
        stride = [self.h.static(s, "a step of the window") for s in self.stride]
        shape = (*x.type.shape[:2], *self.h.out.shape[-self.n :])
        return self.h.emit(
            op_name, x, kernel_shape=kernel, strides=stride, pads=[*before, *after], shape=shape, **attributes
        )


# -- the largest -------------------------------------------------------------------------------------------------------


def _max_pool(h, x, w, ceil_mode, indices):
    """MaxPool and, where they are read, its indices: torch counts them in each channel, ONNX over the whole tensor."""

    def pool(x):
        x, sizes, before, after = _apart(h, x), x.type.shape[2:], w.padding, w.reach(x, ceil_mode)
        if not indices and w.is_global(x):
            return [amax(h, x, list(range(2, x.type.rank)), True), None]  # GlobalMaxPool has neither nan nor -inf
        ceil = None
        if any(isinstance(a, Expr) for a in after) and w.plain:
            after, ceil = before, 1
        elif any(isinstance(a, Expr) or a >= k for a, k in zip(after, w.kernel, strict=True)):
            if indices:
                h.refuse("indices of windows that reach further past the end than ONNX's MaxPool allows")
            x, before, after = w.pad(x, before, after, _lowest(x.type.dtype)), [0] * w.n, [0] * w.n
        if not indices:
            return [w.emit("MaxPool", x, before, after, ceil_mode=ceil), None]
        y, places = w.emit("MaxPool", x, before, after, ceil_mode=ceil, outputs=2)
        return [y, h.emit("Mod", places, h.tensor(product(sizes), DType.int64))]

    return w.batched(x, pool)


def _apart(h, x):
    """`x`, not from a Pad alone: onnxruntime makes its zeros pads of the pool.

    These are the lowest number to MaxPool; AveragePool takes no more of them than its window has, and with ceil_mode
    starts no window at them.
    """
    return h.squeeze(h.unsqueeze(x, [0]), [0]) if _pad_of(x) or _may_be_padded(h, x) else x


# What onnxruntime takes out where it changes nothing (tests/onnx/test_pads.py compares).
_REMOVED = frozenset({"Cast", "Identity", "Dropout", "Transpose", "Expand", "Add", "Sub", "Mul", "Div"})


def _pad_of(x):
    """The Pad that `x` comes from, also behind what onnxruntime takes out or looks through; None if there is none."""
    made = x.value.producer()
    while made is not None and made.op_type in _REMOVED and not made.domain:
        read = [i for i in made.inputs if i is not None and i.const_value is None]
        made = read[0].producer() if len(read) == 1 else None
    return made if made is not None and made.op_type == "Pad" and not made.domain else None


def _may_be_padded(h, x):
    """True of what functions are given and give, which onnxruntime writes in place."""
    made = x.value.producer()
    return bool(h.home.function if made is None else made.domain)


def _lowest(dtype):
    return -np.inf if dtype.is_float else np.iinfo(numpy_dtype(dtype)).min


def _register_max(n):
    @op(f"aten::max_pool{n}d")
    def max_pool(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        return _max_pool(h, self, Windows(h, n, kernel_size, stride, padding, dilation), ceil_mode, False)[0]

    @op(f"aten::max_pool{n}d_with_indices")
    def max_pool_with_indices(h, self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        return _max_pool(h, self, Windows(h, n, kernel_size, stride, padding, dilation), ceil_mode, h.wanted(1))


@op("aten::max_unpool2d")
def max_unpool2d(h, self, indices, output_size):
    return _unpool(h, self, indices, 2)


@op("aten::max_unpool3d")
def max_unpool3d(h, self, indices, output_size, stride, padding):
    return _unpool(h, self, indices, 3)


def _unpool(h, x, indices, n):
    outer = h.out.shape[:-n]
    empty = h.full([*outer, product(h.out.shape[-n:])], 0, x.type.dtype)
    flat = [h.reshape(t, [*outer, product(x.type.shape[-n:])]) for t in (indices, x)]
    return h.reshape(h.emit("ScatterElements", empty, *flat, axis=len(outer)), h.out.shape)


# -- the mean ----------------------------------------------------------------------------------------------------------


def _global_mean(h, x, n):
    """The mean over the last n axes; onnxruntime's pool takes no empty ones, and no float64."""
    if x.type.dtype is DType.float64 or any(h.may_be_empty(s) for s in x.type.shape[1:]):
        return average(h, x, list(range(2, 2 + n)), True)
    return h.emit("GlobalAveragePool", x, shape=(*x.type.shape[:2], *h.out.shape[-n:]))


def _avg_pool(h, x, w, ceil_mode, count_include_pad, divisor):
    scale = None if divisor is None else product(w.kernel) / divisor

    def pool(x):
        if w.is_global(x):
            return [_global_mean(h, x, w.n)]
        return [_average(h, x, w, w.reach(x, ceil_mode), divisor is not None, count_include_pad)]

    y = w.batched(x, pool)[0]
    return y if scale in (None, 1) else h.emit("Mul", y, h.tensor(scale, y))


def _average(h, x, w, after, count_all, count_padding):
    """torch counts the padding (if asked), never what ceil_mode reads past it, unless a divisor is given."""
    zeros, dynamic = [0] * w.n, any(isinstance(a, Expr) for a in after)
    x = _apart(h, x)
    if after == w.padding or (count_all and not dynamic):
        include = int(count_all or count_padding) if any(after) or any(w.padding) else None
        return w.emit("AveragePool", x, w.padding, after, count_include_pad=include)
    if count_all:
        return w.emit("AveragePool", _apart(h, w.pad(x, w.padding, after)), zeros, zeros)
    if dynamic and not w.plain:
        return _average_by_count(h, x, w, after, count_padding)
    before = w.padding
    if count_padding and any(w.padding):
        x, before = _apart(h, w.pad(x, w.padding, w.padding)), zeros
        after = [a if isinstance(a, Expr) else a - p for a, p in zip(after, w.padding, strict=True)]
    if dynamic:
        return w.emit("AveragePool", x, before, before, ceil_mode=1)
    return w.emit("AveragePool", x, before, after)


def _average_by_count(h, x, w, after, count_padding):
    """Sum over count, each the mean of a tensor padded with zeros: of the input, and of ones where numbers count."""
    zeros = [0] * w.n
    ones = h.full([1, 1, *x.type.shape[2:]], 1, x.type.dtype)
    beyond = after
    if count_padding:
        ones = w.pad(ones, w.padding, w.padding, 1)
        beyond = [a - p for a, p in zip(after, w.padding, strict=True)]
    ones = w.pad(ones, zeros if count_padding else w.padding, beyond)
    total, count = (w.emit("AveragePool", _apart(h, v), zeros, zeros) for v in (w.pad(x, w.padding, after), ones))
    return h.emit("Div", total, count)


def _register_avg(n):
    def avg_pool(
        h, self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        return _avg_pool(
            h, self, Windows(h, n, kernel_size, stride, padding), ceil_mode, count_include_pad, divisor_override
        )

    if n > 1:
        op(f"aten::avg_pool{n}d")(avg_pool)


@op("aten::avg_pool1d")
def avg_pool1d(h, self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True):
    return _avg_pool(h, self, Windows(h, 1, kernel_size, stride, padding), ceil_mode, count_include_pad, None)


for _n in (1, 2, 3):
    _register_max(_n)
    _register_avg(_n)


# -- adaptive ----------------------------------------------------------------------------------------------------------


def _adaptive(h, x, n, whole, pool, uneven=None):
    """One window an axis, windows that divide it, or any: `uneven` takes one axis at a time."""
    sizes, counts = x.type.shape[-n:], h.out.shape[-n:]
    moving = [x.type.rank - n + i for i in range(n) if sizes[i] != counts[i]]
    if all(counts[a - x.type.rank] == 1 for a in moving):
        return x if not moving else whole(x, moving)
    kernel = [quotient(s, c) for s, c in zip(sizes, counts, strict=True)]
    if all(isinstance(k, int) for k in kernel):
        return pool(x, kernel)
    if uneven is None:
        h.refuse("the windows of this adaptive pool differ in size, and ONNX's pools have one size")
    for axis in moving:
        x = whole(x, [axis]) if counts[axis - x.type.rank] == 1 else uneven(h, x, axis, counts[axis - x.type.rank])
    return x


def _edges(h, size, count):
    """The first place of each window and the first past it, and the width of the widest."""
    if isinstance(size, int) and isinstance(count, int):
        i = np.arange(count, dtype=np.int64)
        first, last = i * size // count, -(-(i + 1) * size // count)
        return h.constant(first), h.constant(last), int((last - first).max())
    places, width = h.steps(count), h.tensor(size, DType.int64)
    n = h.tensor(count, DType.int64)
    first = h.emit("Div", h.emit("Mul", places, width), n)
    ends = h.emit("Add", h.emit("Mul", h.emit("Add", places, 1), width), h.emit("Sub", n, 1))
    return first, h.emit("Div", ends, n), ceildiv(size, count) + 1


def _uneven_max(h, x, axis, count):
    """The windows of one axis side by side, the last element again up to the width of the widest."""
    first, last, width = _edges(h, x.type.shape[axis], count)
    if first.array is not None and last.array is not None:
        index = h.constant(np.minimum(first.array[:, None] + np.arange(width), last.array[:, None] - 1))
    else:
        places = h.emit("Add", h.unsqueeze(first, [1]), h.steps(width), shape=(count, width))
        index = h.emit("Min", places, h.emit("Sub", h.unsqueeze(last, [1]), 1))
    return amax(h, h.emit("Gather", x, index, axis=axis), [axis + 1])


def _adaptive_avg(n):
    def handler(h, self, output_size):
        def whole(x, axes):
            if len(axes) == n and x.type.rank == n + 2:
                return _global_mean(h, x, n)
            return average(h, x, axes, True)

        def pool(x, kernel):
            return _avg_pool(h, x, Windows(h, n, kernel, kernel, 0), False, True, None)

        return _adaptive(h, self, n, whole, pool)

    return handler


def _adaptive_max(n):
    def handler(h, self, output_size):
        if h.wanted(1):
            return _adaptive_max_indices(h, self, n)

        def whole(x, axes):
            return amax(h, x, axes, True)

        def pool(x, kernel):
            return _max_pool(h, x, Windows(h, n, kernel, kernel, 0), False, False)[0]

        return _adaptive(h, self, n, whole, pool, _uneven_max), None

    return handler


def _adaptive_max_indices(h, x, n):
    """Windows of every axis side by side, the largest of each, and where that lies in its channel."""
    outer, sizes, counts = x.type.rank - n, x.type.shape[-n:], h.out.shape[-n:]
    kernel = [quotient(s, c) for s, c in zip(sizes, counts, strict=True)]
    if all(isinstance(k, int) for k in kernel):
        return _max_pool(h, x, Windows(h, n, kernel, kernel, 0), False, True)
    if any(isinstance(d, Expr) for d in (*sizes, *counts)):
        h.refuse("indices of windows that differ in size, over a dynamic size")
    windows, where = x, h.constant(np.arange(product(sizes)).reshape(sizes))
    for i in range(n):
        index = _uneven_places(h, sizes[i], counts[i])
        windows = h.emit("Gather", windows, index, axis=outer + 2 * i)
        where = h.constant(np.take(where.array, index.array, axis=2 * i))
    order = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    windows = h.transpose(windows, [*range(outer), *(outer + a for a in order)])
    flat = (product(counts), product(windows.type.shape[-n:]))
    windows = h.reshape(windows, [*x.type.shape[:outer], *flat])
    best = h.emit("ArgMax", windows, axis=-1, keepdims=1, shape=(*x.type.shape[:outer], flat[0], 1))
    table = h.constant(where.array.transpose(order).reshape((1,) * outer + flat))
    table = h.expand(table, [*x.type.shape[:outer], *flat])
    y = h.emit("GatherElements", windows, best, axis=-1)
    places = h.emit("GatherElements", table, best, axis=-1)
    return h.reshape(y, h.out.shape), h.reshape(places, h.out.shape)


def _uneven_places(h, size, count):
    first, last, width = _edges(h, size, count)
    return h.constant(np.minimum(first.array[:, None] + np.arange(width), last.array[:, None] - 1))


for _n in (1, 2, 3):
    op(f"aten::adaptive_avg_pool{_n}d")(_adaptive_avg(_n))
    op(f"aten::adaptive_max_pool{_n}d")(_adaptive_max(_n))
for _n in (2, 3):
    op(f"aten::_adaptive_avg_pool{_n}d")(_adaptive_avg(_n))
