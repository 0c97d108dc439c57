"""Convolutions as one product of the weight with the elements of all windows, of whatever sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition


@decomposition("convolution")
def _convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    n = weight.dim() - 2
    kernel = weight.shape[2:]
    pads = [(p, p) for p in padding]
    if transposed:
        spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(s - p, s - p + e) for s, p, e in zip(spans, padding, output_padding, strict=True)]
        weight, input = _turned(weight, groups), _spread(input, stride)
        stride = [1] * n
    x = torch.constant_pad_nd(input, [p for pair in pads[::-1] for p in pair])
    counts = []
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        at = 2 * axis + 2  # the axes before are two each: the place in the window, and which window
        count = (x.shape[at] - d * (k - 1) - 1) // s + 1
        places = (torch.arange(k) * d).unsqueeze(1) + torch.arange(count) * s
        x = x.index_select(at, places.reshape(-1)).reshape([*x.shape[:at], k, count, *x.shape[at + 1 :]])
        counts.append(count)
    batch, channels = input.shape[:2]
    taps = channels // groups * math.prod(kernel)
    order = [0, 1, *range(2, 2 * n + 2, 2), *range(3, 2 * n + 2, 2)]
    columns = x.permute(order).reshape(batch, groups, taps, math.prod(counts))
    made = weight.reshape(1, groups, weight.shape[0] // groups, taps) @ columns
    made = made.reshape([batch, weight.shape[0], *counts])
    return made if bias is None else made + bias.reshape([-1] + [1] * n)


@decomposition("_convolution")
def _flagged(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, *_: bool,
) -> Tensor:  # fmt: skip
    """The last ones choose among the kernels of CUDA."""
    return torch.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _turned(weight: Tensor, groups: int) -> Tensor:
    """The weight of a transposed convolution as that of a plain one: channels exchanged, windows turned around."""
    total, each, *kernel = weight.shape
    apart = weight.reshape(groups, total // groups, each, *kernel).transpose(1, 2)
    return apart.reshape(groups * each, total // groups, *kernel).flip([*range(2, weight.dim())])


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Zeros between the elements of the spatial axes."""
    for axis, s in enumerate(stride, start=2):
        size = x.shape[axis]
        wider = torch.constant_pad_nd(x.unsqueeze(axis + 1), [0, 0] * (x.dim() - axis - 1) + [0, s - 1])
        x = wider.flatten(axis, axis + 1).narrow(axis, 0, (size - 1) * s + 1)
    return x
