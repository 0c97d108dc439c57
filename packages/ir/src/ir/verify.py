"""The artifact against torch: same inputs, every result compared, a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.errors import MismatchError

# rtol and atol by element type; this atol counts in units of the result's largest magnitude.
TOLERANCES = {"float16": (1e-2, 1e-2), "bfloat16": (2e-2, 2e-2), "complex32": (1e-2, 1e-2)}
DEFAULT_TOLERANCE = (1e-3, 1e-4)


@dataclass(frozen=True)
class Row:
    """One result compared: `error` is the largest absolute difference, `scale` the reference's largest magnitude."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    error: float
    scale: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Report:
    """Every compared result of one run."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.rows)

    @property
    def error(self) -> float:
        """The largest absolute difference of all results."""
        return max((r.error for r in self.rows), default=0.0)

    def __str__(self) -> str:
        return "\n".join(
            f"{r.name}: {r.dtype}{list(r.shape)} max error {r.error:.3g} (scale {r.scale:.3g})"
            + (f"  MISMATCH: {r.reason}" if r.reason else "")
            for r in self.rows
        )

    def check(self) -> Report:
        """The report itself.

        Raises:
            MismatchError: a result differs.
        """
        if not self.ok:
            raise MismatchError(f"the artifact differs from torch:\n{self}")
        return self


def compare(
    names: Sequence[str],
    actual: Sequence[Any],
    expected: Sequence[Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    values: bool = True,
) -> Report:
    """Compare arrays pairwise: dtype, shape, and `|a - e| <= rtol * |e| + atol`; nan equals nan.

    Args:
        rtol, atol: None chooses by element type, atol then in units of the largest magnitude; a number given for atol
            is absolute. Integers and bools must be equal.
        values: False compares dtypes and shapes only, for models that draw random numbers.
    """
    rows = [
        _row(n, np.asarray(a), np.asarray(e), rtol, atol, values)
        for n, a, e in zip(names, actual, expected, strict=True)
    ]
    return Report(tuple(rows))


def _row(
    name: str, actual: np.ndarray, expected: np.ndarray, rtol: float | None, atol: float | None, values: bool
) -> Row:
    dtype = str(expected.dtype)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        reason = f"got {actual.dtype}{list(actual.shape)}, torch has {dtype}{list(expected.shape)}"
        return Row(name, expected.shape, dtype, float("inf"), 0.0, reason)
    if not values or expected.size == 0:
        return Row(name, expected.shape, dtype, 0.0, 0.0)
    if expected.dtype.kind in "biu":
        wrong = int((actual != expected).sum())
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max() if wrong else 0.0
        reason = f"{wrong} of {expected.size} elements differ" if wrong else ""
        return Row(name, expected.shape, dtype, float(gap), float(np.abs(expected.astype(np.float64)).max()), reason)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    default = TOLERANCES.get(dtype, DEFAULT_TOLERANCE)
    r = default[0] if rtol is None else rtol
    finite = np.isfinite(e)
    scale = float(np.abs(e[finite]).max(initial=0.0))
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - e))
    gap = np.where(np.isnan(gap), np.inf, gap)
    # below 1e-3 the scale stays fixed, so that the rounding of results that cancel to nothing is no error
    slack = default[1] * max(scale, 1e-3) if atol is None else atol
    wrong = ~same & ~(gap <= r * np.where(finite, np.abs(e), 0.0) + slack)
    count = int(wrong.sum())
    reason = f"{count} of {expected.size} elements differ" if count else ""
    return Row(name, expected.shape, dtype, float(gap.max(initial=0.0)), scale, reason)
