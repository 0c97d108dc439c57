"""Normalisation, softmax, dropout and the losses, which are normalisation and a mean."""

from __future__ import annotations

import functools
import math

import numpy as np

from ir.dims import Expr, call, maximum, product
from ir.helper import numpy_dtype
from ir.types import DType
from onnx_backend.handlers.create import uniform_like
from onnx_backend.handlers.elementwise import squared
from onnx_backend.registry import register as op

# -- over batches ------------------------------------------------------------------------------------------------------


def _filled(h, x, value, like):
    """The tensor, or one constant for each of `like`'s channels where it is left out."""
    if x is not None:
        return x
    channels = h.static(like.type.shape[1], "the number of channels")
    return h.constant(np.full(channels, value, numpy_dtype(like.type.dtype)))


def _batch_norm(h, x, weight, bias, mean, var, eps):
    given = [_filled(h, t, v, x) for t, v in ((weight, 1), (bias, 0), (mean, 0), (var, 1))]
    return h.emit("BatchNormalization", x, *(h.cast(g, x.type.dtype) for g in given), epsilon=eps)


def _statistics(h, x):
    """Mean and variance of each channel over everything else, with the axes kept, and how many numbers went in."""
    axes = [a for a in range(x.type.rank) if a != 1]
    mean = h.reduce("ReduceMean", x, axes, keepdim=True)
    apart = h.emit("Sub", x, mean)
    var = h.reduce("ReduceMean", h.emit("Mul", apart, apart), axes, keepdim=True)
    return mean, var, apart, product(x.type.shape[a] for a in axes)


def _train(h, x, weight, bias, running_mean, running_var, momentum, eps):
    """The result, mean, 1 / deviation and both running statistics, as after one step of training.

    ONNX's own training mode is no help: it moves the variance by the biased estimate, torch by the unbiased one.
    """
    work = h.cast(x, DType.float32) if x.type.dtype.bits < 32 else x
    mean, var, apart, count = _statistics(h, work)
    rstd = h.emit("Reciprocal", h.emit("Sqrt", h.emit("Add", var, eps)))
    y = h.emit("Mul", apart, rstd)
    spread = list(range(1, x.type.rank - 1))
    if weight is not None:
        y = h.emit("Mul", y, h.unsqueeze(h.cast(weight, work.type.dtype), spread))
    if bias is not None:
        y = h.emit("Add", y, h.unsqueeze(h.cast(bias, work.type.dtype), spread))
    flat = [a for a in range(x.type.rank) if a != 1]
    mean, var, rstd = (h.squeeze(s, flat) for s in (mean, var, rstd))
    moved = (None, None)
    if running_mean is not None:
        n = h.tensor(count, var)
        unbiased = h.emit("Mul", var, h.emit("Div", n, h.emit("Sub", n, 1)))
        moved = [
            h.emit("Add", h.emit("Mul", old, 1 - momentum), h.emit("Mul", h.cast(new, old.type.dtype), momentum))
            for old, new in ((running_mean, mean), (running_var, unbiased))
        ]
    return (h.cast(y, x.type.dtype), mean, rstd, *moved)


def _as_results(h, parts):
    """Statistics are computed in float32 for halves; torch keeps some of them there, others not."""
    return [None if p is None else h.cast(p, t.dtype) for p, t in zip(parts, h.results)]


@op("aten::batch_norm")
def batch_norm(h, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled=True):
    if 0 in input.type.shape:
        return input
    if training or running_mean is None:
        return _train(h, input, weight, bias, None, None, momentum, eps)[0]
    return _batch_norm(h, input, weight, bias, running_mean, running_var, eps)


@op("aten::_native_batch_norm_legit_no_training")
def batch_norm_eval(h, input, weight, bias, running_mean, running_var, momentum, eps):
    return _batch_norm(h, input, weight, bias, running_mean, running_var, eps), None, None


@op("aten::_native_batch_norm_legit_functional")
def batch_norm_train(h, input, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        y = _batch_norm(h, input, weight, bias, running_mean, running_var, eps)
        return _as_results(h, [y, None, None, running_mean, running_var])
    return _as_results(h, _train(h, input, weight, bias, running_mean, running_var, momentum, eps))


@op("aten::_batch_norm_with_update_functional")
def batch_norm_update(h, input, weight, bias, running_mean, running_var, momentum, eps):
    y, mean, rstd, *moved = _train(h, input, weight, bias, running_mean, running_var, momentum, eps)
    return _as_results(h, [y, mean, rstd, h.full(h.results[3].shape, 0, h.results[3].dtype), *moved])


@op("aten::_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(h, input, weight, bias, training, momentum, eps):
    return _as_results(h, _train(h, input, weight, bias, None, None, momentum, eps)[:3])


@op("aten::instance_norm")
def instance_norm(h, input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled):
    if not use_input_stats:
        return _batch_norm(h, input, weight, bias, running_mean, running_var, eps)
    x = input if weight is None else h.cast(input, weight.type.dtype)  # halves beside weights in float32
    return h.cast(_instance_norm(h, x, _filled(h, weight, 1, x), _filled(h, bias, 0, x), eps), input.type.dtype)


def _instance_norm(h, x, weight, bias, eps):
    size = product(x.type.shape[2:])
    if size == 0:
        return x
    if h.may_be_empty(size):  # onnxruntime reads what is not there
        weight = h.require(weight, call("gt", size, 0))
    return h.emit("InstanceNormalization", x, weight, bias, epsilon=eps)


# -- over features -----------------------------------------------------------------------------------------------------


@op("aten::layer_norm")
def layer_norm(h, input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    return _layer_norm(h, input, normalized_shape, weight, bias, eps)[0]


@op("aten::native_layer_norm")
def native_layer_norm(h, input, normalized_shape, weight, bias, eps):
    return _layer_norm(h, input, normalized_shape, weight, bias, eps, h.wanted(1) or h.wanted(2))


def _layer_norm(h, x, shape, weight, bias, eps, statistics=False):
    if 0 in shape and not statistics:
        return x, None, None  # empty, which onnxruntime's kernel refuses
    if h.opset < 17 or statistics:
        return _layer_norm_by_hand(h, x, shape, weight, bias, eps)
    if weight is None:
        sizes = [h.static(s, "a normalised size") for s in shape]
        weight = h.constant(np.ones(sizes, numpy_dtype(x.type.dtype)))
    return h.emit("LayerNormalization", x, weight, bias, axis=-len(shape), epsilon=eps), None, None


def _layer_norm_by_hand(h, x, shape, weight, bias, eps):
    """The form that onnxruntime fuses."""
    axes = list(range(x.type.rank - len(shape), x.type.rank))
    fused = weight is not None and bias is not None and x.type.dtype is DType.float32 and len(h.results) == 1
    mean = h.reduce("ReduceMean", x, axes, keepdim=True, from_end=fused)
    apart = h.emit("Sub", x, mean)
    var = h.reduce("ReduceMean", squared(h, apart), axes, keepdim=True, from_end=fused)
    deviation = h.emit("Sqrt", h.emit("Add", var, eps))
    y = h.emit("Div", apart, deviation)
    y = h.emit("Mul", y, weight) if weight is not None else y
    y = h.emit("Add", y, bias) if bias is not None else y
    return y, mean, h.emit("Reciprocal", deviation) if len(h.results) > 2 and h.wanted(2) else None


@op("aten::rms_norm")
def rms_norm(h, input, normalized_shape, weight=None, eps=None):
    if eps is None:  # torch's default: the type's own, that of float32 where it computes in float32
        wide = input.type.dtype if input.type.dtype.bits > 32 else DType.float32
        eps = float(np.finfo(numpy_dtype(wide)).eps)
    if h.has("RMSNormalization") and weight is not None:
        return h.emit("RMSNormalization", input, weight, axis=-len(normalized_shape), epsilon=eps)
    x = h.cast(input, DType.float32) if input.type.dtype.bits < 32 else input
    axes = list(range(x.type.rank - len(normalized_shape), x.type.rank))
    mean = h.reduce("ReduceMean", squared(h, x), axes, keepdim=True, from_end=weight is not None and x is input)
    y = h.cast(h.emit("Div", x, h.emit("Sqrt", h.emit("Add", mean, eps))), input.type.dtype)
    return y if weight is None else h.emit("Mul", y, weight)


@op("aten::group_norm")
def group_norm(h, input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    return _group_norm(h, input, num_groups, weight, bias, eps)


@op("aten::native_group_norm")
def native_group_norm(h, input, weight, bias, N, C, HxW, group, eps):
    if not (h.wanted(1) or h.wanted(2)):
        return _group_norm(h, input, group, weight, bias, eps), None, None
    grouped = h.reshape(input, [N, group, C // group * HxW])
    y, mean, rstd = _layer_norm_by_hand(h, grouped, [C // group * HxW], None, None, eps)
    y = h.reshape(y, input.type.shape)
    spread = list(range(1, input.type.rank - 1))
    y = h.emit("Mul", y, _by_channel(h, weight, spread)) if weight is not None else y
    y = h.emit("Add", y, _by_channel(h, bias, spread)) if bias is not None else y
    return y, h.squeeze(mean, [2]), None if rstd is None else h.squeeze(rstd, [2])


def _group_norm(h, x, groups, weight, bias, eps):
    channels = x.type.shape[1]
    behind = range(2, x.type.rank)
    if groups == channels and behind and (h.opset < 14 or not any(h.may_be_empty(x.type.shape[a]) for a in behind)):
        full = functools.reduce(h.filled, behind, x)
        y = _instance_norm(h, full, _filled(h, weight, 1, x), _filled(h, bias, 0, x), eps)
        return functools.reduce(lambda y, a: h.cut(y, a, x.type.shape[a]), behind, y)
    # not by GroupNormalization, which onnxruntime takes apart again: twice as slow
    ones, zeros = (h.constant(np.full(groups, v, numpy_dtype(x.type.dtype))) for v in (1, 0))
    inner = product(x.type.shape[1:]) // groups
    if h.opset >= 14 and h.may_be_empty(inner):
        # onnxruntime ends the process at groups without elements, and takes an empty batch
        sizes = [groups, maximum(inner, 1)]
        grouped = h.emit("Reshape", x, [-1, *sizes], shape=[x.type.shape[0], *sizes])
        y = _instance_norm(h, grouped, ones, zeros, eps)
        y = h.emit("Reshape", y, h.emit("Shape", x), allowzero=1, shape=x.type.shape)
    else:
        grouped = h.filled(h.reshape(x, [x.type.shape[0], groups, inner]), 2)
        y = _shaped_like(h, h.cut(_instance_norm(h, grouped, ones, zeros, eps), 2, inner), x)
    spread = list(range(1, x.type.rank - 1))
    y = h.emit("Mul", y, _by_channel(h, weight, spread)) if weight is not None else y
    return h.emit("Add", y, _by_channel(h, bias, spread)) if bias is not None else y


def _by_channel(h, vector, spread):
    """A vector over channels beside the axes `spread` that come after: a weight of that shape where it is one."""
    shape = (*vector.type.shape, *[1] * len(spread))
    return h.derived(("by channel", shape), [vector], lambda v: v.reshape(shape), shape) or h.unsqueeze(vector, spread)


def _shaped_like(h, y, x):
    """`y` in the shape of `x`, which is read in one piece where more than one of its sizes is unknown."""
    if sum(isinstance(s, Expr) for s in x.type.shape[2:]) < 2:
        return h.reshape(y, x.type.shape)
    return h.emit("Reshape", y, h.emit("Shape", x), shape=x.type.shape)


# -- softmax and dropout -----------------------------------------------------------------------------------------------


def _softmax(op_name):
    def handler(h, self, dim, dtype=None):
        x = h.cast(self, h.out.dtype)
        if x.type.rank == 0:
            return h.squeeze(h.emit(op_name, h.unsqueeze(x, [0]), axis=0), [0])
        return h.emit(op_name, x, axis=dim)

    return handler


def _softmax_to_float(op_name):
    def handler(h, self, dim, half_to_float):
        return _softmax(op_name)(h, self, dim)

    return handler


for _name, _op in (("softmax", "Softmax"), ("log_softmax", "LogSoftmax")):
    op(f"aten::{_name}", f"aten::special_{_name}")(_softmax(_op))
    op(f"aten::_{_name}")(_softmax_to_float(_op))


@op("aten::dropout")
def dropout(h, input, p, train):
    if train and p == 1:
        return h.emit("Mul", input, 0)  # ONNX's ratio stays below 1
    return dropped(h, input, p)[0] if train and p else input


def dropped(h, x, p):
    """The numbers and the mask; onnxruntime takes Dropout out, in training mode too, where nothing reads its mask."""
    y, mask = h.emit("Dropout", x, h.const(p, DType.float32), h.const(True), outputs=2, shape=x.type.shape)
    return h.emit("Where", h.cast(mask, DType.bool), y, 0), mask


@op("aten::native_dropout")
def native_dropout(h, input, p, train):
    if not train:
        h.refuse("ONNX's Dropout gives no mask when train=False")
    return dropped(h, input, p)


@op("aten::feature_dropout")
def feature_dropout(h, input, p, train):
    if p in (0, 1):
        return input if p == 0 else h.emit("Mul", input, 0)
    return h.emit("Mul", h.emit("Mul", input, _kept(h, input, p, by_channel=True)), 1 / (1 - p))


@op("aten::alpha_dropout")
def alpha_dropout(h, input, p, train):
    return _alpha_dropout(h, input, p, by_channel=False)


@op("aten::feature_alpha_dropout")
def feature_alpha_dropout(h, input, p, train):
    return _alpha_dropout(h, input, p, by_channel=True)


def _kept(h, x, p, by_channel):
    """1 where a number or channel stays, else 0; not by Dropout of ones, which onnxruntime folds to ones."""
    shape = (*x.type.shape[:2], *[1] * (x.type.rank - 2)) if by_channel else x.type.shape
    draw = uniform_like(h, h.full(shape, 0, DType.float32))
    return h.cast(h.emit("Less", draw, 1 - p), x.type.dtype)


def _alpha_dropout(h, x, p, by_channel):
    """What is dropped becomes the negative limit of SELU; mean and variance stay (aten/src/ATen/native/Dropout.cpp)."""
    limit = 1.7580993408473766
    if p in (0, 1):
        return x if p == 0 else h.emit("Mul", x, 0)
    scale = 1 / math.sqrt((limit**2 * p + 1) * (1 - p))
    kept = _kept(h, x, p, by_channel)
    shift = h.emit("Add", h.emit("Mul", kept, limit * scale), limit * scale * (p - 1))
    return h.emit("Add", h.emit("Mul", h.emit("Mul", x, kept), scale), shift)


# -- losses ------------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


@op("aten::cross_entropy_loss")
def cross_entropy_loss(h, self, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    if target.type.dtype.is_float or label_smoothing or self.type.rank < 2:
        h.refuse("ONNX's SoftmaxCrossEntropyLoss takes a batch of classes, without smoothing")
    if any(h.may_be_empty(s) for s in self.type.shape):
        h.refuse("onnxruntime's SoftmaxCrossEntropyLoss takes no empty batch")
    if self.type.dtype is DType.float64:
        h.refuse("onnxruntime's SoftmaxCrossEntropyLoss of float64 makes numbers of nan and infinity")
    return h.emit(
        "SoftmaxCrossEntropyLoss", self, target, weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index,
        shape=h.out.shape,
    )  # fmt: skip


@op("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss2d")
def nll_loss(h, self, target, weight=None, reduction=1, ignore_index=-100):
    if self.type.rank < 2:
        h.refuse("ONNX's NegativeLogLikelihoodLoss takes a batch")
    if any(h.may_be_empty(s) for s in self.type.shape):
        h.refuse("onnxruntime's NegativeLogLikelihoodLoss takes no empty batch")
    return h.emit(
        "NegativeLogLikelihoodLoss", self, target, weight, reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index, shape=h.out.shape,
    )  # fmt: skip
