"""Resizing and sampling, as far as tract does it itself; ir.decompositions.resize has the rest."""

from __future__ import annotations

from typing import Any

from ir.dims import is_static, quotient
from ir.types import DType


def resize(h: Any, x: Any, mode: str, corners: bool) -> Any:
    """`x` resized by whole factors of sizes that are not known; of known ones neighbours read one by one are quicker.

    Args:
        h: the helper.
        x: (batch, channels, *space).
        mode: nearest or linear.
        corners: align_corners.
    """
    whole: list[Any] = [quotient(new, old) for old, new in zip(x.type.shape[2:], h.out.shape[2:], strict=True)]
    dtype = x.type.dtype
    if is_static(x.type.shape[2:]) or corners or not is_static(whole):
        h.refuse("tract resizes by whole factors")
    if mode == "linear" and (not dtype.is_float or dtype is DType.float64):
        h.refuse(f"tract has no interpolation of {dtype}")
    if all(s == 1 for s in whole):
        return x
    made = h.emit("tract_core_resize", x if mode == "nearest" else h.floating(x), scales=[1.0, 1.0, *map(float, whole)],
                  interpolator=mode, coord_transformer="asymmetric" if mode == "nearest" else "half_pixel",
                  nearest_mode="floor", shape=h.out.shape)  # fmt: skip
    return h.cast(made, dtype)


MODES, BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def grid_sample(h: Any, x: Any, grid: Any, mode: int, border: int, corners: bool) -> Any:
    """The values at the places that a grid gives."""
    if MODES[mode] == "bicubic" and BORDERS[border] == "border":
        h.refuse("tract clips the places of bicubic sampling where torch clips its neighbours")
    rank = x.type.rank
    places = grid
    if BORDERS[border] != "zeros" and MODES[mode] != "bicubic":  # nan is the first element of an image, as torch has it
        finite = h.emit("mul", grid, 0.0) if BORDERS[border] == "reflection" else grid
        places = h.emit("select", h.is_nan(finite), -1.0 if rank == 4 else 1.0, grid)
    if BORDERS[border] != "border":  # places without end become nan, or indices outside: tract aborts
        limit = 8.0 if BORDERS[border] == "zeros" else 2.0 ** (15 if grid.type.dtype is DType.float16 else 20)
        places = h.emit("min", h.emit("max", places, -limit), limit)
    made = h.emit("tract_core_grid_sample", x, places, mode=MODES[mode], padding_mode=BORDERS[border],
                  align_corners=corners, shape=h.out.shape)  # fmt: skip
    if rank > 4 or not (MODES[mode] == "bicubic" or (MODES[mode] == "bilinear" and BORDERS[border] == "zeros")):
        return made
    nothing = h.reduce("sum_reduce", h.emit("mul", grid, 0.0), 3)  # nan at places that torch's weights are nan of
    return h.emit("add", made, h.unsqueeze(nothing, [1]))
