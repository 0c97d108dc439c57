"""Sampling at the places of a grid: GridSample, and the same in plain operators where the opset lacks it."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

from ir.dims import product
from ir.types import DType

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(h: Any, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """GridSample; at opset 16 it has two spatial dimensions and longer names, below there is none."""
    name = _MODES[mode]
    if not h.has("GridSample") or (h.opset < 20 and x.type.rank != 4):
        if name == "cubic":
            h.refuse("cubic sampling needs GridSample of opset 16")
        return _by_hand(h, x, grid, name == "nearest", _PADDINGS[padding], align_corners)
    if _PADDINGS[padding] != "reflection":  # onnxruntime's weights lose their digits far outside, and 1e20 reads pixels
        grid = h.emit("Clip", grid, h.const(-8, grid), h.const(8, grid))
    if h.opset < 20:
        name = {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)
    return h.emit(
        "GridSample", x, grid, mode=name, padding_mode=_PADDINGS[padding], align_corners=int(align_corners),
        shape=h.out.shape,
    )  # fmt: skip


def _by_hand(h: Any, x: Any, grid: Any, nearest: bool, padding: str, align: bool) -> Any:
    """The corners around each place, weighted. Numbers of one place lie together: [batch, place, channel].

    Source: aten/src/ATen/native/GridSampler.h.
    """
    dtype, (batch, channels, *sizes) = x.type.dtype, x.type.shape
    n, count = len(sizes), product(grid.type.shape[1:-1])
    flat = h.reshape(h.transpose(x, [0, *range(2, n + 2), 1]), [batch, product(sizes), channels])
    places = h.reshape(grid, [batch, count, n])
    lengths = [h.tensor(s, dtype) for s in sizes]
    corners = []
    for i, length in enumerate(lengths):
        place = h.slice(places, 2, n - 1 - i, n - i, 1, 1)  # the grid counts axes from the last
        corners.append(_corners(h, _inside(h, place, length, padding, align), nearest))
    total = None
    for corner in itertools.product(*corners):
        index, weights = None, [w for _, w in corner if w is not None]
        for (place, _), length, size in zip(corner, lengths, sizes, strict=True):
            end = h.emit("Sub", length, h.const(1, dtype))
            clipped = h.emit("Max", h.emit("Min", place, end), h.const(0, dtype))
            if padding == "zeros":
                weights.append(h.cast(h.emit("Equal", place, clipped), dtype))
            whole = h.emit("Max", h.cast(clipped, DType.int64), h.const(0, DType.int64))  # nan is somewhere, too
            index = whole if index is None else h.emit("Add", h.emit("Mul", index, h.tensor(size, DType.int64)), whole)
        found = h.emit("GatherND", flat, index, batch_dims=1, shape=(batch, count, channels))
        found = reduce(lambda a, w: h.emit("Mul", a, w), weights, found)
        total = found if total is None else h.emit("Add", total, found)
    y = h.reshape(total, [batch, *h.out.shape[2:], channels])
    return h.transpose(y, [0, n + 1, *range(1, n + 1)])


def _inside(h: Any, place: Any, length: Any, padding: str, align: bool) -> Any:
    """A coordinate of [-1, 1] in elements, brought back inside as the padding asks."""
    one, half = (h.const(v, place) for v in (1, 0.5))
    last = h.emit("Sub", length, one)
    place = h.emit("Mul", h.emit("Add", place, one), half)
    place = h.emit("Mul", place, last) if align else h.emit("Sub", h.emit("Mul", place, length), half)
    if padding == "reflection":
        low, span = (h.const(0, place), last) if align else (h.const(-0.5, place), length)
        span = h.emit("Max", span, h.const(1e-6, place))  # a single element mirrors onto itself
        turn = h.emit("Mod", h.emit("Abs", h.emit("Sub", place, low)), h.emit("Add", span, span), fmod=1)
        place = h.emit("Add", h.emit("Sub", span, h.emit("Abs", h.emit("Sub", turn, span))), low)
    if padding != "zeros":
        place = h.emit("Max", h.emit("Min", place, last), h.const(0, place))
    return place


def _corners(h: Any, place: Any, nearest: bool) -> list[tuple[Any, Any]]:
    """The elements next to a place and their weights."""
    if nearest:
        return [(h.emit("Round", place), None)]
    low = h.emit("Floor", place)
    part = h.emit("Sub", place, low)
    return [(low, h.emit("Sub", h.const(1, place), part)), (h.emit("Add", low, h.const(1, place)), part)]
