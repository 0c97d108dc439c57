"""Normalisations, softmax and its kin."""

from __future__ import annotations

import math

import numpy as np

from ir.dims import Expr, floordiv, product
from ir.helper import numpy_dtype
from ir.types import DType
from nnef_backend.registry import register as op

# -- softmax ---------------------------------------------------------------------------------------------------------


@op("aten::softmax", "aten::_softmax", "aten::special_softmax")
def softmax(h, self, dim, dtype=None, half_to_float=False):
    return _along(h, "softmax", self, dim)


@op("aten::log_softmax", "aten::_log_softmax", "aten::special_log_softmax")
def log_softmax(h, self, dim, dtype=None, half_to_float=False):
    return _along(h, "tract_core_log_softmax", self, dim)


@op("aten::_safe_softmax")
def safe_softmax(h, self, dim, dtype=None):
    """A row of -inf alone is 0, where softmax has NaN."""
    x = h.cast(self, h.out.dtype)
    y = h.reshape(x, [1]) if x.type.rank == 0 else x
    hidden = h.emit("all_reduce", h.emit("eq", y, h.const(-math.inf, x)), axes=[h.axis(dim, x)])
    return h.reshape(h.emit("select", hidden, h.const(0, x), h.reshape(_along(h, "softmax", self, dim), y.type.shape)),
                     x.type.shape)  # fmt: skip


def _along(h, name, x, dim):
    x, axis = h.cast(x, h.out.dtype), h.axis(dim, x)
    y = h.reshape(x, [1]) if x.type.rank == 0 else x
    return h.reshape(h.emit(name, y, axes=[axis], shape=y.type.shape), x.type.shape)


# -- statistics of a batch, given or taken ---------------------------------------------------------------------------


def per_channel(h, v, x):
    """A vector over axis 1 of `x`, in the type that `x` is normalised in."""
    return h.reshape(h.cast(v, x.type.dtype), [1, v.type.shape[0]] + [1] * (x.type.rank - 2))


def scaled(h, x, mean, var, weight, bias, eps):
    """`(x - mean) / sqrt(var + eps) * weight + bias` as one product and one sum, which tract folds for constants."""
    scale = h.emit("rsqrt", h.emit("add", var, float(eps)))
    scale = scale if weight is None else h.emit("mul", scale, weight)
    if all(v is None or _is_zero(h, v) for v in (mean, bias)):  # which tract would leave out: `building/exact.py`
        return h.emit("add", h.emit("mul", x, scale), 0.0)
    shift = h.emit("mul", h.emit("neg", mean), scale)
    shift = shift if bias is None else h.emit("add", shift, bias)
    return h.emit("add", h.emit("mul", x, scale), shift)


def _is_zero(h, v):
    content = h.content(v.origin)
    return content is not None and not content.any()


def moments(h, x, axes):
    """Mean and biased variance, the axes kept, and the values around the mean."""
    mean = h.emit("mean_reduce", x, axes=axes)
    centred = h.emit("sub", x, mean)
    return mean, h.emit("mean_reduce", h.emit("square", centred), axes=axes), centred


def standardised(h, x, axes, eps):
    """`x` less its mean over its last axes, over its standard deviation there."""
    y, axes = _as_one_axis(h, x, axes)
    y = over_root_mean_square(h, h.emit("sub", y, h.emit("mean_reduce", y, axes=axes)), axes, eps)
    return h.reshape(y, x.type.shape)


def over_root_mean_square(h, x, axes, eps):
    y, axes = _as_one_axis(h, x, axes)
    if len(axes) == 1 and h.has("tract_core_rms_norm") and x.type.dtype is not DType.float64:  # its eps is f32
        y = h.emit("tract_core_rms_norm", y, axis=axes[0], eps=float(eps))
    else:
        power = h.emit("mean_reduce", h.emit("square", y), axes=axes)
        y = h.emit("mul", y, h.emit("rsqrt", h.emit("add", power, float(eps))))
    return h.reshape(y, x.type.shape)


def _as_one_axis(h, x, axes):
    """`x` with its last axes `axes` as one, where their sizes are known, and that axis.

    tract has a kernel for one axis, and takes 1.6 times as long over several.
    """
    last = x.type.shape[axes[0] :]
    if sum(s != 1 for s in last) > 1 and any(isinstance(s, Expr) for s in last):
        return x, axes
    return h.reshape(x, [*x.type.shape[: axes[0]], product(last)]), [axes[0]]


def affine(h, x, weight, bias):
    x = x if weight is None else h.emit("mul", x, weight)
    return x if bias is None else h.emit("add", x, bias)


@op("aten::batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit_no_training",
    "aten::cudnn_batch_norm")  # fmt: skip
def batch_norm(h, input, weight, bias, running_mean, running_var, training=False, momentum=0.1, eps=1e-5,
               cudnn_enabled=True):  # fmt: skip
    x = h.floating(input)
    weight, bias, mean, var = (None if v is None else per_channel(h, v, x)
                               for v in (weight, bias, running_mean, running_var))  # fmt: skip
    if training or mean is None:
        mean, var, _ = moments(h, x, [0, *range(2, x.type.rank)])
    y = h.cast(scaled(h, x, mean, var, weight, bias, eps), input.type.dtype)
    return y if len(h.results) == 1 else [y, *_saved(h, mean, var, eps)]


def _saved(h, mean, var, eps):
    """What the backward pass would read: empty without training."""
    types = h.results[1:3]
    if types[0].shape == (0,):
        return [h.constant(np.zeros((0,), numpy_dtype(t.dtype))) for t in types]
    inverse = h.emit("rsqrt", h.emit("add", var, float(eps)))
    return [h.cast(h.reshape(v, t.shape), t.dtype) for v, t in zip((mean, inverse), types, strict=True)]


@op("aten::_native_batch_norm_legit_functional")
def batch_norm_functional(h, input, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        return [*batch_norm(h, input, weight, bias, running_mean, running_var, False, momentum, eps),
                running_mean, running_var]  # fmt: skip
    x = h.floating(input)
    axes = [0, *range(2, x.type.rank)]
    mean, var, centred = moments(h, x, axes)
    inverse = h.emit("rsqrt", h.emit("add", var, float(eps)))
    y = h.emit("mul", centred, inverse)
    y = affine(h, y, *(None if v is None else per_channel(h, v, x) for v in (weight, bias)))
    count = product(x.type.shape[a] for a in axes)
    unbiased = h.emit("mul", var, h.emit("div", h.tensor(count, x), h.tensor(count - 1, x)))
    flat = [h.squeeze(v, axes) for v in (mean, inverse, unbiased)]
    new = [h.emit("add", h.emit("mul", h.cast(old, x.type.dtype), 1.0 - momentum), h.emit("mul", seen, float(momentum)))
           for old, seen in ((running_mean, flat[0]), (running_var, flat[2]))]  # fmt: skip
    made = [y, flat[0], flat[1], *new]
    return [h.cast(v, t.dtype) for v, t in zip(made, h.results, strict=False)]


@op("aten::instance_norm")
def instance_norm(h, input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled):
    x = h.floating(input)
    weight, bias, mean, var = (None if v is None else per_channel(h, v, x)
                               for v in (weight, bias, running_mean, running_var))  # fmt: skip
    if use_input_stats:
        y = affine(h, standardised(h, x, list(range(2, x.type.rank)), eps), weight, bias)
    else:
        y = scaled(h, x, mean, var, weight, bias, eps)
    return h.cast(y, input.type.dtype)


# -- over the last axes, or over groups of channels ------------------------------------------------------------------


@op("aten::layer_norm")
def layer_norm(h, input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    if 0 in normalized_shape:
        return input  # empty, where tract divides by the count
    x = h.floating(input)
    axes = list(range(x.type.rank - len(normalized_shape), x.type.rank))
    weight, bias = (None if v is None else h.cast(v, x.type.dtype) for v in (weight, bias))
    return h.cast(affine(h, standardised(h, x, axes, eps), *_ranked(h, x, weight, bias)), input.type.dtype)


@op("aten::native_layer_norm")
def native_layer_norm(h, input, normalized_shape, weight, bias, eps):
    x = h.floating(input)
    axes = list(range(x.type.rank - len(normalized_shape), x.type.rank))
    mean, var, centred = moments(h, x, axes)
    inverse = h.emit("rsqrt", h.emit("add", var, float(eps)))
    weight, bias = (None if v is None else h.cast(v, x.type.dtype) for v in (weight, bias))
    y = affine(h, h.emit("mul", centred, inverse), *_ranked(h, x, weight, bias))
    return [
        h.cast(y, input.type.dtype),
        *(h.cast(v, t.dtype) for v, t in zip((mean, inverse), h.results[1:], strict=True)),
    ]


def _ranked(h, x, *vectors):
    return [None if v is None else h.align(v, x)[0] for v in vectors]


@op("aten::rms_norm")
def rms_norm(h, input, normalized_shape, weight=None, eps=None):
    x = h.floating(input)
    axes = list(range(x.type.rank - len(normalized_shape), x.type.rank))
    eps = float(np.finfo(numpy_dtype(x.type.dtype)).eps) if eps is None else float(eps)
    y = over_root_mean_square(h, x, axes, eps)
    weight = None if weight is None else h.cast(weight, x.type.dtype)
    return h.cast(affine(h, y, *_ranked(h, x, weight, None)), input.type.dtype)


@op("aten::group_norm")
def group_norm(h, input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    x = h.floating(input)
    batch, channels, *space = x.type.shape
    each = floordiv(channels, num_groups)
    grouped = x if each == 1 and space else h.reshape(x, [batch, num_groups, each, *space])
    y = h.reshape(standardised(h, grouped, list(range(2, grouped.type.rank)), eps), x.type.shape)
    y = affine(h, y, *(None if v is None else per_channel(h, v, x) for v in (weight, bias)))
    return h.cast(y, input.type.dtype)


@op("aten::native_group_norm")
def native_group_norm(h, input, weight, bias, N, C, HxW, group, eps):
    x = h.floating(input)
    grouped = h.reshape(x, [N, group, floordiv(C, group), *x.type.shape[2:]])
    mean, var, _ = moments(h, grouped, list(range(2, grouped.type.rank)))
    inverse = h.emit("rsqrt", h.emit("add", var, float(eps)))
    saved = [h.cast(h.reshape(v, t.shape), t.dtype) for v, t in zip((mean, inverse), h.results[1:], strict=True)]
    return [group_norm(h, input, group, weight, bias, eps), *saved]
