"""Resizing and sampling: where torch reads for each place of the result, and with which weights.

Each place of the result is a sum over the two or four places that it lies between, read one by one: a product with a
matrix of weights is slower in tract, and would carry NaN and infinities to places that do not read them. Antialiasing
filters, which are wide, are such products; whole factors of an unknown size go through tract's Resize.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.dims import Dim, Expr, quotient
from ir.types import DType

F32 = DType.float32
_NEIGHBOURS = {"linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def resize(h: Any, x: Any, mode: str, factors: Sequence[float | None] | None, corners: bool = False) -> Any:
    """`x` with its last axes resized to those of the result.

    Args:
        h: the helper.
        x: (batch, channels, *space).
        mode: nearest, exact, linear, cubic, or linear_aa and cubic_aa, whose filters are as wide as the step.
        factors: the ratios of the sizes where the model gave those instead of sizes; torch reads by them.
        corners: align_corners.
    """
    if mode in ("nearest", "exact"):
        made = x
    elif not x.type.dtype.is_float:
        h.refuse(f"tract interpolates floats only, not {x.type.dtype}")
    else:
        made = h.floating(x)
    sizes = list(zip(x.type.shape[2:], h.out.shape[2:], strict=True))
    whole = [quotient(new, old) for old, new in sizes]
    dynamic = any(isinstance(old, Expr) for old, _ in sizes)
    native = mode == "nearest" or (mode == "linear" and x.type.dtype is not DType.float64)
    if dynamic and native and not corners and all(isinstance(s, int) for s in whole):
        return h.cast(_native(h, made, mode, whole), x.type.dtype)
    for i, (old, new) in enumerate(sizes):
        factor = None if factors is None or corners else factors[i]
        # a cubic of one axis reads the neighbours along the other too, with weights of 0: nan stays nan
        if old != new or (factor is not None and factor != 1) or mode.startswith("cubic") or mode.endswith("aa"):
            made = _axis(h, made, 2 + i, old, new, mode, factor, corners)
    return h.cast(made, x.type.dtype)


def _native(h: Any, x: Any, mode: str, whole: Sequence[Any]) -> Any:
    place = "asymmetric" if mode == "nearest" else "half_pixel"
    return h.emit("tract_core_resize", x, scales=[1.0, 1.0, *map(float, whole)], interpolator=mode,
                  coord_transformer=place, nearest_mode="floor", shape=h.out.shape)  # fmt: skip


def _axis(h: Any, x: Any, axis: int, old: Dim, new: Dim, mode: str, factor: float | None, corners: bool) -> Any:
    if mode in ("nearest", "exact"):
        if isinstance(old, int) and isinstance(new, int):
            place = _places(new, old, mode, factor, corners)
            return h.take(x, h.constant(np.minimum(np.floor(place), old - 1).astype(np.int64)), axis)
        return h.take(x, _clipped(h, h.emit("floor", _computed(h, old, new, mode, factor, corners)), old), axis)
    if mode.endswith("aa"):
        what = "the size that an antialiasing filter reads or makes"
        known = h.static(old, what), h.static(new, what)
        return _by_matrix(h, x, axis, _antialiased(*known, mode, factor, corners).astype(_real(x)))
    if isinstance(old, int) and isinstance(new, int):
        return _by_known_reading(h, x, axis, _places(new, old, mode, factor, corners, _real(x)), mode)
    work = x.type.dtype if x.type.dtype is DType.float64 else F32
    return _by_reading(h, x, axis, old, _computed(h, old, new, mode, factor, corners, work), mode)


def _real(x: Any) -> Any:
    """What torch computes weights in; nearest neighbours it finds in 32 bits whatever the element type."""
    return np.float64 if x.type.dtype is DType.float64 else np.float32


# -- places ------------------------------------------------------------------------------------------------------------


def _places(new: int, old: int, mode: str, factor: float | None, corners: bool, real: Any = np.float32) -> np.ndarray:
    """Where each place of the result lies in the input, in torch's own arithmetic (UpSample.h)."""
    index, half = np.arange(new, dtype=real), real(0.5)
    if corners:
        return index * (real(old - 1) / real(new - 1) if new > 1 else real(0))
    ratio = real(1.0 / factor) if factor else real(old) / real(new)
    if mode == "nearest":
        return index * ratio
    if mode == "exact":
        return (index + half) * ratio
    place = ratio * (index + half) - half
    return np.maximum(place, real(0)) if mode == "linear" else place


def _computed(h: Any, old: Dim, new: Dim, mode: str, factor: float | None, corners: bool, work: Any = F32) -> Any:
    """The same on sizes that are known at run time."""
    index = h.cast(h.positions(new), work)  # numbers of a range are dimensions to tract, cut off when divided
    if corners:
        last = h.emit("max", h.scalar(new - 1, work), 1.0)  # a single place lies at 0 whatever the ratio
        return h.emit("mul", index, h.emit("div", h.scalar(old - 1, work), last))
    given = h.const(1.0 / factor, work) if factor else None
    ratio = given if given is not None else h.emit("div", h.scalar(old, work), h.scalar(new, work))
    if mode == "nearest":
        return h.emit("mul", index, ratio)
    place = h.emit("mul", h.emit("add", index, 0.5), ratio)
    if mode == "exact":
        return place
    place = h.emit("sub", place, 0.5)
    return h.emit("max", place, 0.0) if mode == "linear" else place


def _clipped(h: Any, place: Any, size: Dim) -> Any:
    last = h.scalar(size - 1, place.type.dtype)
    return h.cast(h.emit("max", h.emit("min", place, last), 0.0), DType.int64)


# -- weights -----------------------------------------------------------------------------------------------------------


def _by_reading(h: Any, x: Any, axis: int, size: Dim, place: Any, mode: str) -> Any:
    """The sum of the two or four neighbours, each times its weight."""
    first = h.emit("floor", place)
    part = h.emit("sub", place, first)
    around = [1] * axis + [place.type.shape[0]] + [1] * (x.type.rank - axis - 1)
    terms = []
    for k in _NEIGHBOURS[mode]:
        weight = h.emit("abs", h.emit("sub", part, float(k)))
        weight = h.emit("sub", 1.0, weight) if mode == "linear" else _cubic(h, weight, outer=k in (-1, 2))
        terms.append((_clipped(h, h.emit("add", first, float(k)), size), weight))
    return _weighed(h, x, axis, [(place, h.reshape(weight, around)) for place, weight in terms])


def _by_known_reading(h: Any, x: Any, axis: int, place: np.ndarray, mode: str) -> Any:
    """The same where the places are known now."""
    first = np.floor(place).astype(np.int64)
    around = [1] * axis + [len(place)] + [1] * (x.type.rank - axis - 1)
    terms = []
    for k in _NEIGHBOURS[mode]:
        weight = _kernel(place.astype(np.float64) - first - k, mode, -0.75).astype(place.dtype)
        read = np.clip(first + k, 0, x.type.shape[axis] - 1)
        terms.append((h.constant(read), h.cast(h.constant(weight.reshape(around)), x.type.dtype)))
    return _weighed(h, x, axis, terms)


def _weighed(h: Any, x: Any, axis: int, terms: Sequence[tuple[Any, Any]]) -> Any:
    """The sum of what stands at places along an axis, each times its weight."""
    read = [h.emit("mul", h.take(x, place, axis), weight) for place, weight in terms]
    return functools.reduce(lambda a, b: h.emit("add", a, b), read)


def _cubic(h: Any, t: Any, outer: bool, a: float = -0.75) -> Any:
    """Keys' kernel at a distance below 1, or from 1 to 2."""
    factors = (a, -5 * a, 8 * a, -4 * a) if outer else (a + 2, -(a + 3), 0.0, 1.0)
    value = h.emit("mul", t, factors[0])
    for f in factors[1:-1]:
        value = h.emit("mul", h.emit("add", value, f), t)
    return h.emit("add", value, factors[-1])


def _kernel(t: np.ndarray, mode: str, a: float) -> np.ndarray:
    t = np.abs(t)
    if mode.startswith("linear"):
        return np.maximum(1 - t, 0)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def _antialiased(old: int, new: int, mode: str, factor: float | None, corners: bool) -> np.ndarray:
    """torch's filters as in PIL: as wide as the step, cut off at the border and normalised anew."""
    if corners:
        scale = (old - 1) / (new - 1) if new > 1 else 0.0
    else:
        scale = 1.0 / factor if factor else old / new
    support = (1.0 if mode == "linear_aa" else 2.0) * max(scale, 1.0)
    result = np.zeros((new, old))
    for i in range(new):
        centre = scale * (i + 0.5)
        begin = max(math.trunc(centre - support + 0.5), 0)
        end = min(math.trunc(centre + support + 0.5), old)
        weights = _kernel((np.arange(begin, end) - centre + 0.5) / max(scale, 1.0), mode, -0.5)
        result[i, begin:end] = weights / weights.sum()
    return result


def _by_matrix(h: Any, x: Any, axis: int, matrix: np.ndarray) -> Any:
    """The matrix applied along an axis; the two last need no turning."""
    rank, weights = x.type.rank, h.cast(h.constant(matrix), x.type.dtype)
    if axis < rank - 2:
        order = [a for a in range(rank) if a != axis] + [axis]
        turned = _by_matrix(h, h.transpose(x, order), rank - 1, matrix)
        return h.transpose(turned, [order.index(a) for a in range(rank)])
    w = h.reshape(weights, [1] * (rank - 2) + list(matrix.shape))
    return h.emit("matmul", x, w, transposeB=True) if axis == rank - 1 else h.emit("matmul", w, x)


# -- sampling ----------------------------------------------------------------------------------------------------------

MODES, BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def grid_sample(h: Any, x: Any, grid: Any, mode: int, border: int, corners: bool) -> Any:
    """The values at the places that a grid gives."""
    if MODES[mode] == "bicubic" and BORDERS[border] == "border":
        h.refuse("tract clips the places of bicubic sampling where torch clips its neighbours")
    return h.emit("tract_core_grid_sample", x, grid, mode=MODES[mode], padding_mode=BORDERS[border],
                  align_corners=corners, shape=h.out.shape)  # fmt: skip
