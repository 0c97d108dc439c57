"""Resize: how torch's coordinates are said in ONNX, and what is done where no Resize says them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir.dims import Expr, evaluate, is_static, quotient
from ir.helper import numpy_dtype
from ir.types import DType

Factors = Sequence[float | None] | None  # None for an axis whose sizes decide: nearest neighbours alone take it
LARGEST = 8192  # the sizes up to which the rounding of both was tried


def linear(h: Any, x: Any, factors: Factors, align_corners: bool) -> Any:
    """Linear interpolation along each spatial axis."""
    return _resize(h, x, factors, align_corners, _linear_taps, mode="linear")


def cubic(h: Any, x: Any, factors: Factors, align_corners: bool) -> Any:
    """Cubic convolution along each spatial axis; torch's coefficient is that of OpenCV."""
    return _resize(h, x, factors, align_corners, _cubic_taps, mode="cubic", cubic_coeff_a=-0.75)


def linear_antialias(h: Any, x: Any, factors: Factors, align_corners: bool) -> Any:
    """A triangle as wide as the step, cut off at the border and normalised anew, as in PIL."""
    return _antialias(h, x, factors, align_corners, _triangle, mode="linear")


def cubic_antialias(h: Any, x: Any, factors: Factors, align_corners: bool) -> Any:
    """Cubic convolution as wide as the step; the coefficient is PIL's here."""
    return _antialias(h, x, factors, align_corners, _keys, mode="cubic", cubic_coeff_a=-0.5)


_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def nearest(h: Any, x: Any, factors: Factors, exact: bool) -> Any:
    """Nearest neighbours: Resize by whole factors, else Gather with the indices that torch computes."""
    old, new = x.type.shape[2:], h.out.shape[2:]
    whole = [quotient(n, o) for o, n in zip(old, new, strict=True)]
    given = [f or w for f, w in zip(factors or whole, whole, strict=True)]
    if is_static(whole) and all(w == f for w, f in zip(whole, given, strict=True)):
        return _emit(h, x, whole, _NEAREST)
    dynamic = any(isinstance(d, Expr) for d in (*old, *new))
    if dynamic and not (exact or factors) and all(map(_same_places, old, new)):
        return _emit(h, x, None, _NEAREST)
    copies = len(old) == 2 and not exact  # the kernel for images copies an axis of the same size, whatever the factor
    for i, (o, n) in enumerate(zip(old, new, strict=True)):
        if o != n or not (copies or factors is None or factors[i] in (None, 1)):
            factor = factors[i] if factors else None
            x = h.emit("Gather", x, _neighbours(h, o, n, factor, exact, copies), axis=2 + i)
    return x


def _neighbours(h: Any, old: Any, new: Any, factor: float | None, exact: bool, copies: bool) -> Any:
    """Where each result comes from, in float32 as torch computes it.

    Source: aten/src/ATen/native/UpSample.h, nearest_neighbor_compute_source_index.
    """
    half: Any = np.float32(0.5 if exact else 0)
    if isinstance(old, int) and isinstance(new, int):
        scale = np.float32(1.0 / factor) if factor else np.float32(old) / np.float32(new)
        index = np.floor((np.arange(new, dtype=np.float32) + half) * scale).astype(np.int64)
        return h.constant(np.minimum(index, old - 1))
    places = _scaled(h, old, new, factor, half, 0, copies)
    return h.emit("Min", h.cast(h.emit("Floor", places), DType.int64), h.emit("Sub", h.size(old), 1))


@functools.lru_cache(maxsize=1024)
def _same_places(old: Any, new: Any) -> bool:
    """True if Resize from one size to the other picks torch's neighbours, wherever the sizes are up to LARGEST.

    torch multiplies by old / new, onnxruntime divides by new / old: rounded, these part where a place is whole (49 of
    2 -> 98). Sizes that hang together, as in a pyramid of features, can be tried; independent ones part somewhere.
    """
    symbols = {s for d in (old, new) if isinstance(d, Expr) for s in d.symbols}
    if old == new or len(symbols) > 1:
        return bool(old == new)
    sizes = np.arange(1, LARGEST + 1)
    try:
        pairs = [np.broadcast_to(evaluate(d, dict.fromkeys(symbols, sizes)), sizes.shape) for d in (old, new)]
    except (TypeError, ValueError, KeyError):  # a function that is no arithmetic
        return False
    for o, n in np.unique(np.stack(pairs, 1), axis=0).astype(np.float32):
        places = np.arange(n, dtype=np.float32)
        if o < 1 or n < 1 or (np.floor(places * (o / n)) != np.floor(places / (n / o))).any():
            return False
    return True


def _scaled(h: Any, old: Any, new: Any, factor: float | None, before: float, after: float, copies: bool) -> Any:
    """`(place + before) * scale - after` of each result, in float32; `copies` takes an unchanged size for scale 1."""
    f32 = DType.float32
    scale = h.const(1.0 / factor, f32) if factor else h.emit("Div", h.tensor(old, f32), h.tensor(new, f32))
    if factor and copies and 1 < factor < 2:
        same = h.emit("Equal", h.tensor(old, DType.int64), h.tensor(new, DType.int64))
        scale = h.emit("Where", same, h.const(1, f32), scale)
    places = h.cast(h.steps(new), f32)
    places = h.emit("Add", places, before) if before else places
    places = h.emit("Mul", places, scale)
    return h.emit("Sub", places, after) if after else places


# -- Resize ------------------------------------------------------------------------------------------------------------

Taps = Callable[[int, int, float, bool], tuple[np.ndarray, np.ndarray]]


def _resize(h: Any, x: Any, factors: Factors, align_corners: bool, taps: Taps, **attributes: Any) -> Any:
    """Given factors place the samples, the sizes do otherwise; with align_corners they do in any case."""
    old, new = x.type.shape[2:], h.out.shape[2:]
    factors = None if align_corners else factors
    if x.type.dtype is DType.uint8:
        return _bytes(h, x, factors, align_corners, taps)
    if _sayable(old, new, factors, taps is not _cubic_taps):
        place = "align_corners" if align_corners else "half_pixel"
        return _emit(h, x, factors, {**attributes, "coordinate_transformation_mode": place})
    if not any(isinstance(d, Expr) for d in (*old, *new)):
        return _by_taps(h, x, factors, align_corners, taps)
    if taps is not _linear_taps:
        h.refuse(f"the factors {factors} over a dynamic size: in ONNX's float32 they give other sizes than in torch")
    return _linear_by_taps(h, x, factors)


def _antialias(h: Any, x: Any, factors: Factors, align_corners: bool, kernel: Any, **attributes: Any) -> Any:
    def taps(old: int, new: int, scale: float, align: bool) -> tuple[np.ndarray, np.ndarray]:
        return _filter_taps(old, new, scale, kernel)

    old, new = x.type.shape[2:], h.out.shape[2:]
    native = h.opset >= 18 and not align_corners
    if x.type.dtype is DType.uint8:
        return _bytes(h, x, None if align_corners else factors, align_corners, taps)
    if native and _sayable(old, new, factors, True):
        return _resize(h, x, factors, align_corners, taps, antialias=1, exclude_outside=1, **attributes)
    if any(isinstance(d, Expr) for d in (*old, *new)):
        h.refuse("antialias over a dynamic size, other than by Resize of opset 18")
    return _by_taps(h, x, factors, align_corners, taps)


def _emit(h: Any, x: Any, factors: Factors, attributes: dict[str, Any]) -> Any:
    if x.type.rank == 3 and attributes["mode"] == "linear":  # the kernel of rank 3 reads other channels, 0 times nan
        row = h.unsqueeze(x, [2])
        factors = factors and [1.0, *factors]
        return h.squeeze(_to_sizes(h, row, (*h.out.shape[:2], 1, h.out.shape[2]), factors, attributes), [2])
    return _to_sizes(h, x, h.out.shape, factors, attributes)


def _to_sizes(h: Any, x: Any, new: Sequence[Any], factors: Factors, attributes: dict[str, Any]) -> Any:
    if factors is not None:
        scales = h.const([1.0, 1.0, *factors], DType.float32)
        return h.emit("Resize", x, None, scales, shape=new, **attributes)
    if h.opset >= 18:
        axes = list(range(2, len(new)))
        return h.emit("Resize", x, None, None, list(new[2:]), shape=new, axes=axes, **attributes)
    return h.emit("Resize", x, None, None, list(new), shape=new, **attributes)


def _sayable(old: Sequence[Any], new: Sequence[Any], factors: Factors, copies: bool) -> bool:
    """True if Resize with these factors is right.

    Its float32 must give the same sizes as torch's float64, or as the caller of the operator gave beside. And where a
    factor leaves a size as it was, torch copies that axis (all but cubic do), while Resize still follows the factor.
    """
    for o, n, f in zip(old, new, factors or (), strict=False):
        if isinstance(n, int) and (isinstance(o, Expr) or n != int(np.floor(o * np.float64(f)))):
            return False
        sizes = np.arange(1, 4097) if isinstance(o, Expr) else np.array([o])
        wanted = np.floor(sizes * np.float64(f)).astype(np.int64)
        rounded = np.floor(sizes.astype(np.float32) * np.float32(f)).astype(np.int64)
        if (rounded != wanted).any() or (copies and f != 1 and ((wanted == sizes) & (sizes > 1)).any()):
            return False
    return True


# -- by hand: each result is a few neighbours, weighted ----------------------------------------------------------------


def _by_taps(h: Any, x: Any, factors: Factors, align: bool, taps: Taps) -> Any:
    """Axis by axis, with constant indices and weights."""
    for i, (old, new) in enumerate(zip(x.type.shape[2:], h.out.shape[2:], strict=True)):
        factor = factors[i] if factors else None
        if old == new and (taps is not _cubic_taps or factor in (None, 1)):
            continue
        scale = _scale(old, new, factor, align)
        index, weight = taps(old, new, scale, align)
        x = _weighted(h, x, 2 + i, h.constant(index), h.constant(weight.astype(numpy_dtype(x.type.dtype))))
    return x


def _bytes(h: Any, x: Any, factors: Factors, align: bool, taps: Taps) -> Any:
    """Images of uint8, from the last axis to the first: weights are whole numbers, and each axis rounds anew.

    Source: aten/src/ATen/native/cpu/UpSampleKernel.cpp, compute_index_ranges_int16_weights.
    """
    old, new = x.type.shape[2:], h.out.shape[2:]
    if any(isinstance(d, Expr) for d in (*old, *new)):
        h.refuse(
            "uint8 over a dynamic size, which torch computes with weights in whole numbers; cast to float32 before"
        )
    x = h.cast(x, DType.int32)
    for i, (o, n) in reversed(list(enumerate(zip(old, new, strict=True)))):
        factor = factors[i] if factors else None
        if o == n and factor in (None, 1):
            continue
        index, weight = taps(o, n, _scale(o, n, factor, align), align)
        for j in reversed(range(1, index.shape[1])):  # what was cut off at the border counts as one tap
            again = index[:, j] == index[:, j - 1]
            weight[again, j - 1] += weight[again, j]
            weight[again, j] = 0
        bits = next(b for b in range(23) if b == 22 or int(0.5 + weight.max() * 2 ** (b + 1)) >= 2**15)
        whole = np.trunc(weight * 2**bits + np.copysign(0.5, weight)).astype(np.int32)
        total = _weighted(h, x, 2 + i, h.constant(index), h.constant(whole))
        total = h.emit("Max", h.emit("Add", total, 1 << (bits - 1)), 0)
        x = h.emit("Min", h.emit("Div", total, 1 << bits), 255)
    return h.cast(x, DType.uint8)


def _scale(old: int, new: int, factor: float | None, align: bool) -> float:
    if align:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1 / factor if factor else old / new


def _weighted(h: Any, x: Any, axis: int, index: Any, weight: Any) -> Any:
    behind = x.type.rank - axis - 1
    taps = h.emit("Gather", x, index, axis=axis)
    weighted = h.emit("Mul", taps, h.unsqueeze(weight, [2 + i for i in range(behind)]))
    return h.reduce("ReduceSum", weighted, [axis + 1])


def _linear_taps(old: int, new: int, scale: float, align: bool) -> tuple[np.ndarray, np.ndarray]:
    places = np.arange(new) * scale if align else np.maximum((np.arange(new) + 0.5) * scale - 0.5, 0)
    first = np.minimum(np.floor(places).astype(np.int64), old - 1)
    part = places - first
    return np.stack([first, np.minimum(first + 1, old - 1)], 1), np.stack([1 - part, part], 1)


def _cubic_taps(old: int, new: int, scale: float, align: bool) -> tuple[np.ndarray, np.ndarray]:
    places = np.arange(new) * scale if align else (np.arange(new) + 0.5) * scale - 0.5
    around = np.floor(places)[:, None] + np.arange(-1, 3)
    return np.clip(around, 0, old - 1).astype(np.int64), _keys(places[:, None] - around, -0.75)


def _filter_taps(old: int, new: int, scale: float, kernel: Callable[..., np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """PIL's filter: every neighbour within the kernel, stretched to the step.

    Source: aten/src/ATen/native/cpu/UpSampleKernel.cpp, HelperInterpBase::_compute_indices_min_size_weights_aa.
    """
    stretch = max(scale, 1.0)
    support = (1.0 if kernel is _triangle else 2.0) * stretch
    centre = scale * (np.arange(new) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), old)
    places = first[:, None] + np.arange(max(int((last - first).max()), 1))
    weight = np.where(places < last[:, None], kernel((places - centre[:, None] + 0.5) / stretch), 0)
    return np.minimum(places, last[:, None] - 1), weight / weight.sum(1, keepdims=True)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _keys(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    """Cubic convolution (Keys 1981)."""
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _linear_by_taps(h: Any, x: Any, factors: Factors) -> Any:
    """Two neighbours an axis, at places that are only known at run time."""
    for i, (old, new) in enumerate(zip(x.type.shape[2:], h.out.shape[2:], strict=True)):
        places = h.emit("Max", _scaled(h, old, new, factors[i] if factors else None, 0.5, 0.5, True), 0)
        first = h.emit("Floor", places)
        part = h.cast(h.emit("Sub", places, first), x.type.dtype)
        end = h.emit("Sub", h.size(old), 1)
        low = h.emit("Min", h.cast(first, DType.int64), end)
        high = h.emit("Min", h.emit("Add", low, 1), end)
        part = h.unsqueeze(part, [1 + a for a in range(x.type.rank - 3 - i)])
        near, far = (h.emit("Gather", x, index, axis=2 + i) for index in (low, high))
        x = h.emit("Add", near, h.emit("Mul", h.emit("Sub", far, near), part))
    return x
