"""Convolutions and averages over windows in float64, as products and sums: onnxruntime's kernels are of float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ir import geometry
from ir.dims import Dim, product


def _padded(h: Any, x: Any, pads: Sequence[Dim], value: float = 0.0) -> Any:
    n = len(pads) // 2
    if not any(p != 0 for p in pads):
        return x
    shape = [s + a + b for s, a, b in zip(x.type.shape[2:], pads[:n], pads[n:], strict=True)]
    fill = [h.const(value, x)] if value else []
    return h.emit("Pad", x, [0, 0, *pads[:n], 0, 0, *pads[n:]], *fill, shape=[*x.type.shape[:2], *shape])


def _windows(
    h: Any, x: Any, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Any, list[Dim]]:
    """[batch, channels, places, kernel, places, kernel, ...], and the numbers of places."""
    counts: list[Dim] = []
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        axis = 2 + 2 * i
        counts.append(geometry.window_size(x.type.shape[axis], k, s, (0, 0), d, False))
        x = h.emit("Gather", x, h.offsets(0, [s, d], [counts[-1], k]), axis=axis)
    return x, counts


def conv(
    h: Any, x: Any, weight: Any, bias: Any = None, *, strides: Sequence[int], pads: Sequence[Dim],
    dilations: Sequence[int], group: int, kernel_shape: Any = None,
) -> Any:  # fmt: skip
    """Conv: the windows of a group, as rows, times its weights."""
    features, inner, *kernel = weight.type.shape
    n = len(kernel)
    x, counts = _windows(h, _padded(h, x, pads), kernel, strides, dilations)
    batch = x.type.shape[0]
    x = h.reshape(x, [batch, group, inner, *x.type.shape[2:]])
    places, inside = [3 + 2 * i for i in range(n)], [4 + 2 * i for i in range(n)]
    size, width = product(counts), product([inner, *kernel])
    rows = h.reshape(h.transpose(x, [0, 1, *places, 2, *inside]), [batch, group, size, width])
    columns = h.transpose(h.reshape(weight, [group, features // group, width]), [0, 2, 1])
    made = h.transpose(h.emit("MatMul", rows, columns), [0, 1, 3, 2])
    made = h.reshape(made, [batch, features, *counts])
    return made if bias is None else h.emit("Add", made, h.unsqueeze(bias, list(range(1, n + 1))))


def conv_transpose(
    h: Any, x: Any, weight: Any, bias: Any = None, *, strides: Sequence[int], pads: Sequence[int],
    dilations: Sequence[int], group: int, output_padding: Sequence[int], kernel_shape: Any = None,
) -> Any:  # fmt: skip
    """ConvTranspose: a convolution with the turned kernel over the input with zeros between its places."""
    if kernel_shape is None:
        h.refuse("onnxruntime has no float64 transposed convolution, and the kernel's size is known at run time only")
    n, channels, features = len(strides), weight.type.shape[0], weight.type.shape[1]
    for axis, step in enumerate(strides, 2):
        size = x.type.shape[axis]
        if step > 1:
            ends = [0] * (n + 3)
            x = h.unsqueeze(x, [axis + 1])
            spread = [*x.type.shape[: axis + 1], step, *x.type.shape[axis + 2 :]]
            x = h.emit("Pad", x, [*ends, *ends[: axis + 1], step - 1, *ends[axis + 2 :]], shape=spread)
            x = h.reshape(x, [*spread[:axis], size * step, *spread[axis + 2 :]])
            x = h.slice(x, axis, 0, 1 - step, size=size * step - step + 1)
    for axis, k in enumerate(kernel_shape, 2):
        weight = h.emit("Gather", weight, list(range(k))[::-1], axis=axis)
    weight = h.reshape(weight, [group, channels // group, features, *kernel_shape])
    weight = h.transpose(weight, [0, 2, 1, *range(3, n + 3)])
    weight = h.reshape(weight, [group * features, channels // group, *kernel_shape])
    reach = [d * (k - 1) for d, k in zip(dilations, kernel_shape, strict=True)]
    rows = zip(reach, pads[n:], output_padding, strict=True)
    pads = [*(r - p for r, p in zip(reach, pads[:n], strict=True)), *(r - p + e for r, p, e in rows)]
    return conv(h, x, weight, bias, strides=[1] * n, pads=pads, dilations=dilations, group=group)


def average_pool(
    h: Any, x: Any, *, kernel_shape: Sequence[int], strides: Sequence[int], pads: Sequence[Dim],
    count_include_pad: int = 0, ceil_mode: int = 0, dilations: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """AveragePool: the mean of each window, of what is not padding unless that counts."""
    if ceil_mode:
        h.refuse("onnxruntime has no float64 averages whose last window may reach past the end")
    n = len(kernel_shape)
    steps = [1] * n if dilations is None else dilations
    inside = [3 + 2 * i for i in range(n)]

    def total(x: Any, value: float) -> Any:
        return h.reduce("ReduceSum", _windows(h, _padded(h, x, pads, value), kernel_shape, strides, steps)[0], inside)

    if count_include_pad or not any(p != 0 for p in pads):
        return h.emit("Div", total(x, 0.0), float(math.prod(kernel_shape)))
    return h.emit("Div", total(x, 0.0), total(h.full([1, 1, *x.type.shape[2:]], 1, x.type.dtype), 0.0))
