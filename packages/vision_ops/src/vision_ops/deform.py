"""deform_conv2d: a convolution whose taps are read where an offset says, bilinearly, zero outside of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import ir

deform_conv2d = ir.op("torchvision::deform_conv2d")


@deform_conv2d.handler("onnx", since_version=19)
def _(
    h: Any, input: Any, weight: Any, offset: Any, mask: Any, bias: Any, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Any:  # fmt: skip
    return h.emit(
        "DeformConv", input, weight, offset, bias, mask if use_mask else None, strides=[stride_h, stride_w],
        pads=[pad_h, pad_w, pad_h, pad_w], dilations=[dilation_h, dilation_w], group=groups,
        offset_group=offset_groups, kernel_shape=list(weight.type.shape[2:]), shape=h.out.shape,
    )  # fmt: skip


@deform_conv2d.body
def _(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    n, c, height, width = input.shape
    features, _, kh, kw = weight.shape
    oh, ow = offset.shape[2:]
    taps = offset.reshape(n, offset_groups, kh * kw, 2, oh, ow)
    y = taps[:, :, :, 0] + _grid(kh, kw, oh, stride_h, pad_h, dilation_h, input, 0)
    x = taps[:, :, :, 1] + _grid(kh, kw, ow, stride_w, pad_w, dilation_w, input, 1)
    columns = _bilinear(input.reshape(n, offset_groups, c // offset_groups, height * width), y, x, height, width)
    if use_mask:
        columns = columns * mask.reshape(n, offset_groups, 1, kh * kw, oh, ow)
    columns = columns.reshape(n, groups, (c // groups) * kh * kw, oh * ow)
    kernel = weight.reshape(1, groups, features // groups, (c // groups) * kh * kw)
    return (kernel @ columns).reshape(n, features, oh, ow) + bias.reshape(1, features, 1, 1)


def _grid(kh: int, kw: int, size: int, stride: int, pad: int, dilation: int, like: Tensor, axis: int) -> Tensor:
    """Where the taps of an undeformed kernel lie along one axis: [kh * kw, size, 1] or [kh * kw, 1, size]."""
    tap = torch.arange(kh * kw, device=like.device)
    tap = tap // kw if axis == 0 else tap % kw
    at = torch.arange(size, device=like.device) * stride - pad
    at = at.reshape(1, -1, 1) if axis == 0 else at.reshape(1, 1, -1)
    return (at + (tap * dilation).reshape(-1, 1, 1)).to(like.dtype)


def _bilinear(maps: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Samples [N, G, C, K, oh, ow] of maps [N, G, C, H * W] at positions [N, G, K, oh, ow]; zero outside."""
    n, g, c, _ = maps.shape
    taps, oh, ow = y.shape[2:]
    top, left = y.floor(), x.floor()
    total: Tensor | None = None
    for row, row_weight in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_weight in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            flat = index.reshape(n, g, 1, taps * oh * ow).expand(n, g, c, taps * oh * ow)
            found = maps.gather(3, flat).reshape(n, g, c, taps, oh, ow)
            weight = torch.where(inside, row_weight * column_weight, 0.0)
            part = found * weight[:, :, None]
            total = part if total is None else total + part
    assert total is not None
    return total
