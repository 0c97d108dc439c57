"""Max, Min, Clip, Sign, ReduceMax and ReduceMin of int64, written in comparisons and ArgMax.

onnxruntime's own (1.31, vectorised, so from two elements on) compare the low 32 bits as signed numbers where the high
32 bits are equal: Max(4, 3000000000) is 4. Its Less, Greater, ArgMax and ArgMin are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from ir.dims import product
from onnx_backend.building.values import OnnxValue


def _of_two(comparison: str) -> Callable[..., OnnxValue]:
    """An op of any number of operands that gives the one for which the comparison with all others holds."""

    def pair(h: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        made: OnnxValue = h.emit("Where", h.emit(comparison, a, b), a, b)
        return made

    return lambda h, *operands: reduce(lambda a, b: pair(h, a, b), operands)


_LARGER, _SMALLER = _of_two("Greater"), _of_two("Less")


def _clip(h: Any, x: OnnxValue, low: OnnxValue | None = None, high: OnnxValue | None = None) -> OnnxValue:
    x = x if low is None else _LARGER(h, x, low)
    return x if high is None else _SMALLER(h, x, high)


def _sign(h: Any, x: OnnxValue) -> OnnxValue:
    above, below = (h.cast(h.emit(c, x, 0), x.type.dtype) for c in ("Greater", "Less"))
    made: OnnxValue = h.emit("Sub", above, below)
    return made


def extreme(h: Any, op: str, x: OnnxValue, axes: Sequence[int], shape: Sequence[Any]) -> OnnxValue:
    """ReduceMax or ReduceMin: the element at the place of the extreme, along one axis after the other."""
    if len(axes) == x.type.rank > 1:
        x, axes = h.reshape(x, [product(x.type.shape)]), [0]
    for axis in axes:
        kept = tuple(1 if i == axis else s for i, s in enumerate(x.type.shape))
        at = h.emit(op.replace("Reduce", "Arg"), x, axis=axis, keepdims=True, shape=kept)
        x = h.emit("GatherElements", x, at, axis=axis)
    return x if x.type.shape == tuple(shape) else h.reshape(x, shape)


FORMS: Mapping[str, Callable[..., OnnxValue]] = {"Max": _LARGER, "Min": _SMALLER, "Clip": _clip, "Sign": _sign}
