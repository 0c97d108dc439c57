"""Padding, and cropping by negative pads."""

from __future__ import annotations

import math

from ir.dims import Expr
from onnx_backend.registry import register as op

END = 2**63 - 1  # torch's word for "to the end"


@op("aten::pad")
def pad(h, self, pad, mode="constant", value=None):
    return _pad(h, self, pad, mode, value)


@op("aten::constant_pad_nd")
def constant_pad_nd(h, self, pad, value=0):
    return _pad(h, self, pad, "constant", value)


@op("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(h, self, padding):
    return _pad(h, self, padding, "reflect", None)


@op("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(h, self, padding):
    return _pad(h, self, padding, "replicate", None)


def _pad(h, x, pads, mode, value):
    """torch counts pads from the last axis, before and after in pairs; a negative one crops, which Slice does."""
    grown = [max(p, 0) if isinstance(p, int) else p for p in pads]
    if mode == "constant":
        return constant_pad(h, _crop(h, x, pads), grown, 0 if value is None else value)
    if mode == "circular":
        return _wrap(h, _crop(h, x, pads), grown)
    # here a crop comes last: what it takes away is still mirrored or repeated on the other side
    return _crop(h, _emit_pad(h, x, grown, {"reflect": "reflect", "replicate": "edge"}[mode]), pads)


def _crop(h, x, pads):
    for i, p in enumerate(pads):
        if isinstance(p, int) and p < 0:
            axis = x.type.rank - 1 - i // 2
            bounds = (-p, END) if i % 2 == 0 else (0, p)
            x = h.slice(x, axis, *bounds, 1, x.type.shape[axis] + p)
    return x


def constant_pad(h, x, pads, value):
    default = not isinstance(value, Expr) and not value and math.copysign(1, value) > 0  # -0.0 is another number
    return _emit_pad(h, x, pads, None, *([] if default else [h.tensor(h.stored(value, x.type.dtype), x)]))


def _emit_pad(h, x, pads, mode, *value):
    if all(p == 0 for p in pads):
        return x
    axes = range(x.type.rank)
    before, after = ([0] * x.type.rank for _ in range(2))
    for i, p in enumerate(pads):
        (before, after)[i % 2][-1 - i // 2] = p
    shape = [x.type.shape[a] + before[a] + after[a] for a in axes]
    return h.emit("Pad", x, [*before, *after], *value, mode=mode, shape=shape)


def _wrap(h, x, pads):
    """Circular padding, axis by axis: the other end's slice is joined on."""
    for i in range(0, len(pads), 2):
        axis, (before, after) = x.type.rank - 1 - i // 2, pads[i : i + 2]
        size = x.type.shape[axis]
        parts = [x]
        if before != 0:
            parts.insert(0, h.slice(x, axis, size - before if isinstance(before, Expr) else -before, END, 1, before))
        if after != 0:
            parts.append(h.slice(x, axis, 0, after, 1, after))
        x = h.concat(parts, axis)
    return x
