"""Sampling at the places of a grid, where the opset has an operator for it; else it is decomposed."""

from __future__ import annotations

from typing import Any

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(h: Any, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """GridSample; at opset 16 it has two spatial dimensions and longer names, below there is none."""
    name = _MODES[mode]
    if not h.has("GridSample") or (h.opset < 20 and x.type.rank != 4):
        h.refuse(f"opset {h.opset} has no GridSample of rank {x.type.rank}")
    if _PADDINGS[padding] != "reflection":  # onnxruntime's weights lose their digits far outside, and 1e20 reads pixels
        grid = h.emit("Clip", grid, h.const(-8, grid), h.const(8, grid))
    if h.opset < 20:
        name = {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)
    return h.emit(
        "GridSample", x, grid, mode=name, padding_mode=_PADDINGS[padding], align_corners=int(align_corners),
        shape=h.out.shape,
    )  # fmt: skip
