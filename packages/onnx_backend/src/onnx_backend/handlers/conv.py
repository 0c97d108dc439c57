"""Convolutions, straight and transposed."""

from __future__ import annotations

from ir import geometry
from ir.dims import Expr, call
from onnx_backend.registry import register as op


def _batched(h, x, spatial, fn):
    """`fn` of a batch; a single sample becomes a batch of one for it."""
    if 0 in h.out.shape:  # where onnxruntime fails
        return h.full(h.out.shape, 0, h.out.dtype)
    if x.type.rank == spatial + 2:
        return fn(x, h.out.shape)
    return h.squeeze(fn(h.unsqueeze(x, [0]), (1, *h.out.shape)), [0])


def _conv(h, x, weight, bias, stride, padding, dilation, groups):
    n = weight.type.rank - 2
    dilation = geometry.ntuple(dilation, n)
    if padding == "same":
        before, after = zip(*geometry.same_pads(weight.type.shape[2:], dilation), strict=True)
    else:
        before = after = [0] * n if padding == "valid" else geometry.ntuple(padding, n)
    pads = [*before, *after]

    groups = h.static(groups, "the number of groups")
    channels = weight.type.shape[1]
    if channels == 0:
        return h.full(h.out.shape, 0, h.out.dtype)
    if h.may_be_empty(channels):  # onnxruntime never ends a convolution of no channels, of which torch makes none
        weight = h.require(weight, call("gt", channels, 0))

    def emit(x, shape):
        inside = pads
        if any(isinstance(p, Expr) for p in pads):  # of a kernel whose sizes are known at run time only
            sizes = [s + b + a for s, b, a in zip(x.type.shape[2:], before, after, strict=True)]
            x, inside = h.emit("Pad", x, [0, 0, *before, 0, 0, *after], shape=[*x.type.shape[:2], *sizes]), [0] * 2 * n
        return h.emit(
            "Conv", x, weight, bias, kernel_shape=_kernel(weight), strides=geometry.ntuple(stride, n), pads=inside,
            dilations=dilation, group=groups, shape=shape,
        )  # fmt: skip

    return _batched(h, x, n, emit)


def _kernel(weight):
    """The sizes of the kernel; onnxruntime reads those off the weight that are known at run time only."""
    sizes = weight.type.shape[2:]
    return list(sizes) if all(isinstance(k, int) for k in sizes) else None


def _conv_transpose(h, x, weight, bias, stride, padding, output_padding, groups, dilation):
    n = weight.type.rank - 2
    given = (geometry.ntuple(a, n) for a in (stride, padding, output_padding))
    stride, padding, extra = ([h.static(a, "a stride or padding") for a in numbers] for numbers in given)
    after = list(padding)
    for i, (s, p, e) in enumerate(zip(stride, padding, extra, strict=True)):
        if e >= s:  # a wide dilation allows it in torch; in ONNX it is so much less cropped at the end
            after[i], extra[i] = p - e, 0
            if p < e:
                h.refuse("ConvTranspose has no output_padding of stride or more that is above padding")
    return _batched(h, x, n, lambda x, shape: h.emit(
        "ConvTranspose", x, weight, bias,
        kernel_shape=_kernel(weight), strides=stride, pads=[*padding, *after], output_padding=extra,
        dilations=geometry.ntuple(dilation, n),
        group=groups, shape=shape,
    ))  # fmt: skip


@op("aten::conv1d", "aten::conv2d", "aten::conv3d")
def conv(h, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return _conv(h, input, weight, bias, stride, padding, dilation, groups)


@op("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
def conv_transpose(h, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return _conv_transpose(h, input, weight, bias, stride, padding, output_padding, groups, dilation)


@op("aten::convolution", "aten::_convolution")
def convolution(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
                benchmark=None, deterministic=None, cudnn_enabled=None, allow_tf32=None):  # fmt: skip
    if transposed:
        return _conv_transpose(h, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(h, input, weight, bias, stride, padding, dilation, groups)
