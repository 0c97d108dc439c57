"""Padding, and cropping by negative pads."""

from __future__ import annotations

import numpy as np

from ir.bounds import bounds
from ir.dims import Expr, maximum
from ir.helper import numpy_dtype
from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::constant_pad_nd")
def constant_pad_nd(h, self, pad, value=0):
    return padded(h, self, pad, "constant", value)


@op("aten::pad")
def pad(h, self, pad, mode="constant", value=None):
    return circular(h, self, pad) if mode == "circular" else padded(h, self, pad, BORDERS[mode], value)


@op("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(h, self, padding):
    return padded(h, self, padding, "reflect")


@op("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(h, self, padding):
    return padded(h, self, padding, "replicated")


BORDERS = {"constant": "constant", "reflect": "reflect", "replicate": "replicated"}


def pairs(pad, rank):
    """torch's pads, from the last axis backwards, as (before, after) from the first axis on."""
    given = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(given)) + given[::-1]


def padded(h, x, pad, border, value=None):
    """Growth first and cuts after it: what is cut off may be what the other side repeats."""
    amounts = pairs(pad, x.type.rank)
    value = 0 if value is None else value
    grow = [tuple(not_negative(h, p) for p in pair) for pair in amounts]
    if any(p != (0, 0) for p in grow):
        if x.type.dtype is DType.bool:
            x = h.cast(_emit_pad(h, h.cast(x, DType.uint8), grow, border, bool(value)), DType.bool)
        else:
            x = _emit_pad(h, x, grow, border, value)
    for axis, (pair, grown) in enumerate(zip(amounts, grow, strict=True)):
        x = h.slice(x, axis, grown[0] - pair[0], x.type.shape[axis] + pair[1] - grown[1])
    return x


def not_negative(h, amount):
    """The amount, or 0 where it is below: what it is in a run, if sizes decide it and their ranges do not tell."""
    return amount if bounds(amount, h.graph.symbols)[0] >= 0 else maximum(amount, 0)


def _emit_pad(h, x, grow, border, value):
    value = h.stored(value, x.type.dtype)
    symbolic = any(isinstance(p, Expr) for pair in grow for p in pair)
    # nnef-tools pads neither batch nor channels, nor anything of rank 2
    beyond = not h.target.tract and (x.type.rank not in (3, 4, 5) or any(grow[0] + grow[1]))
    if border == "constant" and (symbolic or beyond or not _in_single(value, x.type.dtype)):
        return _joined_pad(h, x, grow, value)
    if symbolic:
        h.refuse("tract pads by fixed amounts only")
    if beyond:
        h.refuse("it pads batch or channels")
    border = "replicate" if border == "replicated" and not h.target.tract else border
    return h.emit("pad", x, padding=grow, border=border, value=float(value))


def _in_single(value, dtype):
    """Whether a 32-bit float says the same number of this type, which is what the operation takes: it has no word for
    NaN, and to tract 0.0 and -0.0 are one.
    """
    if isinstance(value, Expr):
        return False
    number = np.asarray(value).astype(numpy_dtype(dtype))
    with np.errstate(over="ignore"):
        exact = number.astype(np.float32).astype(number.dtype) == number
    return bool(exact and (number or not np.signbit(number)))


def _joined_pad(h, x, grow, value):
    for axis, pair in enumerate(grow):
        before, after = ([h.expand(h.const(value, x), [p if a == axis else s for a, s in enumerate(x.type.shape)])]
                         if p != 0 else [] for p in pair)  # fmt: skip
        x = h.concat([*before, x, *after], axis)
    return x


def circular(h, x, pad):
    for axis, pair in enumerate(pairs(pad, x.type.rank)):
        before, after = (not_negative(h, p) for p in pair)
        x = h.slice(x, axis, before - pair[0], x.type.shape[axis] + pair[1] - after)
        size = x.type.shape[axis]
        parts = [h.slice(x, axis, size - before, size)] if before != 0 else []
        parts += [x, h.slice(x, axis, 0, after)] if after != 0 else [x]
        x = h.concat(parts, axis)
    return x
