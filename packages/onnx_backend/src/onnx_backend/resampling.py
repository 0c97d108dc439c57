"""Resize and GridSample: how torch's coordinates are said in ONNX, and where onnxruntime's own are not the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ir.dims import Expr
from ir.types import DType


def resize(h: Any, x: Any, factors: Sequence[float] | None, align_corners: bool, **attributes: Any) -> Any:
    """Resize by interpolation. Given factors place the samples where the sizes alone would not.

    align_corners places them by the sizes in any case, and ONNX's `scales` would round these.
    """
    place = "align_corners" if align_corners else "half_pixel"
    attributes = {**attributes, "coordinate_transformation_mode": place}
    return _emit(h, x, None if align_corners else factors, attributes)


def antialias(h: Any, x: Any, factors: Sequence[float] | None, align_corners: bool, **attributes: Any) -> Any:
    """Resize by filters as wide as the step, cut off at the border and normalised anew, as in PIL and torch."""
    return resize(h, x, factors, align_corners, antialias=1, exclude_outside=1, **attributes)


def nearest(h: Any, x: Any, factors: Sequence[float] | None, exact: bool) -> Any:
    """Nearest neighbours: Resize by whole factors, else Gather with the indices that torch computes."""
    steps = [_whole(old, new) for old, new in zip(x.type.shape[2:], h.out.shape[2:], strict=True)]
    if all(steps):
        return _emit(h, x, steps, {
            "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
        })  # fmt: skip
    for i, (old, new) in enumerate(zip(x.type.shape[2:], h.out.shape[2:], strict=True)):
        if old != new:
            x = h.emit("Gather", x, _sources(h, old, new, factors[i] if factors else None, exact), axis=2 + i)
    return x


def _whole(old: Any, new: Any) -> float:
    """The factor by which an axis grows, if it is a whole one."""
    from ir.dims import quotient

    factor = quotient(new, old)
    return float(factor) if isinstance(factor, int) else 0.0


def _sources(h: Any, old: Any, new: Any, factor: float | None, exact: bool) -> Any:
    """Where each result comes from, in float32 as torch computes it (UpSample.h, nearest_neighbor_compute_source_index)."""
    half = np.float32(0.5 if exact else 0)
    if isinstance(old, int) and isinstance(new, int):
        scale = np.float32(1.0 / factor) if factor else np.float32(old) / np.float32(new)
        index = np.floor((np.arange(new, dtype=np.float32) + half) * scale).astype(np.int64)
        return h.constant(np.minimum(index, old - 1))
    ratio = np.float32(1.0 / factor) if factor else None
    f32 = DType.float32
    scale = h.const(ratio, f32) if factor else h.emit("Div", h.tensor(old, f32), h.tensor(new, f32))
    places = h.cast(h.steps(new, 1), f32)
    if exact:
        places = h.emit("Add", places, 0.5)
    index = h.cast(h.emit("Floor", h.emit("Mul", places, scale)), DType.int64)
    return h.emit("Min", index, h.emit("Sub", h.size(old), 1))


def _emit(h: Any, x: Any, factors: Sequence[float] | None, attributes: dict[str, Any]) -> Any:
    old, new = x.type.shape, h.out.shape
    if factors is not None and not _exact_factors(h, old[2:], new[2:], factors):
        h.refuse(f"the scale factors {factors} in float32, as ONNX has them, give other sizes than in torch")
    scales = [1.0, 1.0, *factors] if factors is not None else None
    if scales is not None:
        return h.emit("Resize", x, None, h.const(scales, DType.float32), shape=new, **attributes)
    if h.opset >= 18:
        axes = list(range(2, len(new)))
        return h.emit("Resize", x, None, None, list(new[2:]), shape=new, axes=axes, **attributes)
    return h.emit("Resize", x, None, None, list(new), shape=new, **attributes)


def _exact_factors(h: Any, old: Sequence[Any], new: Sequence[Any], factors: Sequence[float]) -> bool:
    """True if float32 gives the same sizes as torch's float64."""
    for o, n, f in zip(old, new, factors, strict=True):
        sizes = np.arange(1, 4097) if isinstance(o, Expr) else np.array([o])
        rounded = np.floor(sizes.astype(np.float32) * np.float32(f)).astype(np.int64)
        if (rounded != np.floor(sizes * np.float64(f)).astype(np.int64)).any():
            return False
    return True


_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(h: Any, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """GridSample; opset 16 has two spatial dimensions and longer names."""
    name = _MODES[mode]
    if h.opset < 20:
        if x.type.rank != 4:
            h.refuse("GridSample takes three spatial dimensions from opset 20 on")
        name = {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)
    return h.emit(
        "GridSample", x, grid, mode=name, padding_mode=_PADDINGS[padding], align_corners=int(align_corners),
        shape=h.out.shape,
    )  # fmt: skip
