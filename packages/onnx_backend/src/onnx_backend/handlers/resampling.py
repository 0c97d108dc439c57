"""Resize: how torch's coordinates are said in ONNX; where no Resize says them, ir.decompositions.resize does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.dims import Expr, evaluate, is_static, quotient
from ir.types import DType

Factors = Sequence[float | None] | None  # None for an axis whose sizes decide
LARGEST = 8192  # the sizes up to which the rounding of both was tried

NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def nearest(h: Any, x: Any, factors: Factors, exact: bool) -> Any:
    """Nearest neighbours by whole factors, or where Resize rounds to the same places."""
    old, new = x.type.shape[2:], h.out.shape[2:]
    whole = [quotient(n, o) for o, n in zip(old, new, strict=True)]
    given = [f or w for f, w in zip(factors or whole, whole, strict=True)]
    if is_static(whole) and all(w == f for w, f in zip(whole, given, strict=True)):
        return _emit(h, x, whole, NEAREST)
    if not (is_static((*old, *new)) or exact or factors) and all(map(_same_places, old, new)):
        return _emit(h, x, None, NEAREST)
    h.refuse("ONNX's Resize would choose other nearest neighbours than torch at these sizes")


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


def resize(h: Any, x: Any, factors: Factors, align_corners: bool, **attributes: Any) -> Any:
    """Interpolation: by the factors if they were given, by the sizes otherwise, and always with align_corners."""
    old, new = x.type.shape[2:], h.out.shape[2:]
    antialias = "antialias" in attributes
    if x.type.dtype is DType.uint8:
        h.refuse("torch interpolates bytes with whole weights, and rounds after each axis")
    if antialias and (h.opset < 18 or align_corners):
        h.refuse("antialias=True needs opset=18 or later and align_corners=False")
    if attributes["mode"] == "cubic" and tuple(old) == tuple(new):
        h.refuse(
            "Resize to the same size is a copy, where torch multiplies the neighbours by 0: of infinity it makes nan"
        )
    factors = None if align_corners else _completed(h, old, new, factors)
    if not _sayable(old, new, factors, antialias or attributes["mode"] == "linear"):
        h.refuse(
            f"the factors {factors} are rounded in ONNX's float32, by which Resize samples other coordinates than torch"
        )
    place = "align_corners" if align_corners else "half_pixel"
    return _emit(h, x, factors, {**attributes, "coordinate_transformation_mode": place})


def _completed(h: Any, old: Sequence[Any], new: Sequence[Any], factors: Factors) -> Factors:
    """The factors with the ratio of the sizes for an axis that was given none."""
    if factors is None or all(factors):
        return factors
    if not is_static((*old, *new)):
        h.refuse("scale_factor is given for some of the axes only, and another one has a dynamic size; give it for all")
    return [f or n / o for f, o, n in zip(factors, old, new, strict=True)]


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
