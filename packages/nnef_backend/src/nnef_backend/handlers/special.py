"""Special functions: the formulas stand in special.nnef beside this file, on tensors of f64."""

from __future__ import annotations

import math
from pathlib import Path

from ir.types import DType
from nnef_backend.library import add_builtin
from nnef_backend.registry import rows

add_builtin(Path(__file__).with_suffix(".nnef"))


def special(h, x, fragment):
    """A fragment of one tensor, computed in f64 with the digits of f32."""
    if h.out.dtype is DType.float64 and not h.target.allow_narrowing:
        h.refuse(f"{fragment} has the digits of float32 alone{h.way_out(DType.float64)}")
    wide = h.cast(x, DType.float64)
    return h.apply(fragment, wide, dtype=DType.float64, shape=wide.type.shape)


def _row(fragment, after=None):
    def handler(h, self=None, x=None):  # some schemas name their operand x
        operand = self if x is None else x
        made = special(h, operand, fragment)
        return h.cast(after(h, h.cast(operand, DType.float64), made) if after else made, h.out.dtype)

    return handler


def _unscaled(h, x, y):
    return h.emit("mul", y, h.emit("exp", h.emit("abs", x)))


def ndtri(h, self):
    """sqrt(2) erfinv(2 x - 1)."""
    doubled = h.emit("sub", h.emit("mul", h.cast(self, DType.float64), 2.0), 1.0)
    return h.cast(h.emit("mul", special(h, doubled, "ir_erfinv"), math.sqrt(2)), h.out.dtype)


def polygamma(h, n, self):
    if n > 1:
        h.refuse("polygamma is written for orders 0 and 1")
    return h.cast(special(h, self, ("ir_digamma", "ir_trigamma")[n]), h.out.dtype)


rows({
    **dict.fromkeys(("lgamma", "special_gammaln"), _row("ir_lgamma")),
    **dict.fromkeys(("digamma", "special_digamma", "special_psi"), _row("ir_digamma")),
    **dict.fromkeys(("erfinv", "special_erfinv"), _row("ir_erfinv")),
    **dict.fromkeys(("i0", "special_i0", "special_modified_bessel_i0"), _row("ir_i0e", _unscaled)),
    **dict.fromkeys(("special_i1", "special_modified_bessel_i1"), _row("ir_i1e", _unscaled)),
    "special_i0e": _row("ir_i0e"),
    "special_i1e": _row("ir_i1e"),
    "special_erfcx": _row("ir_erfcx"),
    "special_log_ndtr": _row("ir_log_ndtr"),
    "special_ndtri": ndtri,
    "polygamma": polygamma,
    "special_polygamma": polygamma,
})  # fmt: skip
