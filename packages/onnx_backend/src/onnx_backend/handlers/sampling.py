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
    weighted = x.type.rank == 4 and (name == "cubic" or (name == "linear" and _PADDINGS[padding] == "zeros"))
    places = grid if weighted else _of_nan(h, grid, x.type.rank, _PADDINGS[padding])
    if _PADDINGS[padding] != "reflection":  # onnxruntime's weights lose their digits far outside, and 1e20 reads pixels
        places = h.emit("Clip", places, h.const(-8, grid), h.const(8, grid))
    if h.opset < 20:
        name = {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)
    made = h.emit(
        "GridSample", x, places, mode=name, padding_mode=_PADDINGS[padding], align_corners=int(align_corners),
        shape=h.out.shape,
    )  # fmt: skip
    if not weighted:
        return made
    nothing = h.reduce("ReduceSum", h.emit("Mul", grid, 0.0), [3])  # nan at places that torch's weights are nan of
    return h.emit("Add", made, h.unsqueeze(nothing, [1]))


def _of_nan(h: Any, grid: Any, rank: int, padding: str) -> Any:
    """Places with what torch's kernels take nan for: outside of zeros, else the last element of a volume.

    Of an image it is the first one, as it is to onnxruntime.
    """
    if rank == 4 and padding != "zeros":
        return grid
    finite = h.emit("Mul", grid, 0.0) if padding == "reflection" else grid  # what has no end has no reflection either
    return h.emit("Where", h.emit("IsNaN", finite), h.const(8 if padding == "zeros" else 1, grid), grid)
