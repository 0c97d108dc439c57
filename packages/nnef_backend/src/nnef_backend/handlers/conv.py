"""Convolutions, straight and transposed."""

from __future__ import annotations

from ir.dims import Expr, floordiv
from ir.geometry import ntuple, same_pads
from nnef_backend.registry import register as op


@op("aten::conv1d", "aten::conv2d", "aten::conv3d")
def conv(h, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    kernel = weight.type.shape[2:]
    n = len(kernel)
    dilation = ntuple(dilation, n)
    if padding == "same":
        pads = same_pads([h.static(k, "the kernel") for k in kernel], dilation)
    else:
        pads = [(0, 0) if padding == "valid" else (p, p) for p in ntuple(padding, n)]
    return _conv(h, input, weight, bias, ntuple(stride, n), pads, dilation, groups)


@op("aten::convolution", "aten::_convolution")
def convolution(h, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
                benchmark=None, deterministic=None, cudnn_enabled=None, allow_tf32=None):  # fmt: skip
    if transposed:
        return conv_transpose(h, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(h, input, weight, bias, stride, padding, dilation, groups)


def _conv(h, x, weight, bias, stride, pads, dilation, groups):
    shape = _check(h, x, weight, stride, *pads, dilation)
    operands = [_batched(h, x, stride), weight] + ([bias] if bias is not None else [])
    y = h.emit("conv", *operands, border="constant", stride=stride, dilation=dilation, padding=pads, groups=groups,
               shape=shape)  # fmt: skip
    return h.reshape(y, h.out.shape)


def _check(h, x, weight, stride, *others):
    """The result's shape with its batch axis, once tract is known to take the operands and all the numbers."""
    for number in (n for numbers in (stride, *others) for n in numbers):
        h.static(number, "a stride, padding or dilation")
    if any(isinstance(s, Expr) for s in (*weight.type.shape, x.type.shape[-1 - len(stride)])):
        h.refuse("tract convolves only with a fixed number of channels and a kernel of fixed size")
    return h.out.shape if h.out.rank == len(stride) + 2 else (1, *h.out.shape)


def _batched(h, x, stride):
    return x if x.type.rank == len(stride) + 2 else h.unsqueeze(x, [0])


@op("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
def conv_transpose(h, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    n = weight.type.rank - 2
    stride, padding, extra, dilation = (ntuple(a, n) for a in (stride, padding, output_padding, dilation))
    shape = list(_check(h, input, weight, stride, padding, extra, dilation))
    # output_padding crops less at the far end; what it adds beyond the last kernel holds the bias alone
    pads = [(p, max(p - e, 0)) for p, e in zip(padding, extra, strict=True)]
    beyond = [max(e - p, 0) for p, e in zip(padding, extra, strict=True)]
    late = bias is not None and any(beyond)
    operands = [_batched(h, input, stride), _outputs_first(h, weight, groups)]
    operands += [bias] if bias is not None and not late else []
    inner = shape[:2] + [s - b for s, b in zip(shape[2:], beyond, strict=True)]
    y = h.emit("deconv", *operands, border="constant", stride=stride, dilation=dilation, padding=pads, groups=groups,
               shape=inner)  # fmt: skip
    if any(beyond):
        grow = [(0, 0), (0, 0), *((0, b) for b in beyond)]
        y = h.emit("pad", y, padding=grow, border="constant", value=0.0, shape=shape)
    if late:
        y = h.emit("add", y, h.reshape(bias, [1, shape[1]] + [1] * n), shape=shape)
    return h.reshape(y, h.out.shape)


def _outputs_first(h, weight, groups):
    """torch's [in, out / groups, ...], which is the standard's, too, as tract's [out, in / groups, ...]."""
    if not h.target.tract:
        return weight
    inputs, outputs, *kernel = weight.type.shape
    rest = list(range(2, 2 + len(kernel)))
    if groups == 1:
        return h.transpose(weight, [1, 0, *rest])
    w = h.reshape(weight, [groups, floordiv(inputs, groups), outputs, *kernel])
    w = h.transpose(w, [0, 2, 1, *(r + 1 for r in rest)])
    return h.reshape(w, [groups * outputs, floordiv(inputs, groups), *kernel])
