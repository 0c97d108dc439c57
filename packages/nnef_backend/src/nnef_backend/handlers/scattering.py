"""Writing rows of a tensor at computed places."""

from __future__ import annotations

from typing import Any

from ir.geometry import invert
from ir.types import DType


def scatter_rows(h: Any, x: Any, places: Any, rows: Any, reduction: str) -> Any:
    """`x` with rows written at places (one axis) along its first axis; negative places count from the end."""
    size = h.tensor(x.type.shape[0], DType.int64)
    places = h.cast(places, DType.int64)
    places = h.emit("select", h.emit("lt", places, 0), h.emit("add", places, size), places)
    return written(h, "tract_core_scatter_nd", x, h.unsqueeze(places, [1]), rows, reduction)


def written(h: Any, op: str, x: Any, places: Any, values: Any, reduction: str, **axis: int) -> Any:
    """What scatters; tract adds up no truth values, of which one is enough."""
    if x.type.dtype is not DType.bool or reduction == "none":
        return h.emit(op, x, places, values, reduction=reduction, **axis)
    x, values = (h.cast(v, DType.int32) for v in (x, values))
    reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    return h.cast(h.emit(op, x, places, values, reduction=reduction, **axis), DType.bool)


def along(h: Any, x: Any, axis: int, places: Any, values: Any, reduction: str = "none") -> Any:
    """`x` with slices of `values` written at places along an axis; a 0-d tensor is one of one element."""
    places, values = (t if t.type.rank else h.unsqueeze(t, [0]) for t in (places, values))
    if x.type.rank == 0:
        return h.squeeze(along(h, h.unsqueeze(x, [0]), 0, places, values, reduction), [0])
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    made = scatter_rows(h, h.transpose(x, order), places, h.transpose(values, order), reduction)
    return h.transpose(made, invert(order))
