"""The artifact against torch: same inputs, every result compared, a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ir.errors import MismatchError

# rtol and atol by element type; this atol counts in units of the result's largest magnitude. Those of float64 are
# below what one rounding to float32 makes (6e-8).
TOLERANCES = {
    "float16": (1e-2, 1e-2), "bfloat16": (2e-2, 2e-2), "complex32": (1e-2, 1e-2),
    "float64": (1e-9, 1e-10), "complex128": (1e-9, 1e-10),
}  # fmt: skip
DEFAULT_TOLERANCE = (1e-3, 1e-4)
_LEAST = 1e-3  # the scale stays fixed below, so that the rounding of results that cancel to nothing is no error


@dataclass(frozen=True)
class Row:
    """One result compared: `error` is the largest absolute difference, `scale` the reference's largest magnitude.

    `skipped` says why its values were not compared; its error is nan then. `sizes` are those of this run, "b=2".
    `rounding`, of a result that was held to float64, says how far both sides lie from it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    error: float
    scale: float
    reason: str = ""
    skipped: str = ""
    sizes: str = ""
    rounding: str = ""

    @property
    def ok(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        place = f"{self.name} at {self.sizes}" if self.sizes else self.name
        what = f"{place}: {self.dtype}{list(self.shape)}"
        if self.skipped:
            what = f"{what} not compared: {self.skipped}"
        else:
            what = f"{what} max error {self.error:.3g} (scale {self.scale:.3g})"
        what = f"{what}; {self.rounding}" if self.rounding else what
        return f"{what}  MISMATCH: {self.reason}" if self.reason else what


@dataclass(frozen=True)
class Report:
    """Every compared result of all runs; `notes` are what else there is to say, one line or more each."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.rows)

    @property
    def error(self) -> float:
        """The largest absolute difference of all results; nan where no values were compared."""
        return max((r.error for r in self.rows if not r.skipped), default=float("nan"))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.rows), *self.notes])

    def _repr_html_(self) -> str:
        """For notebooks."""
        from ir.view.notebook import report_table

        return report_table(self)

    def check(self) -> Report:
        """The report itself.

        Raises:
            MismatchError: a result differs.
        """
        if not self.ok:
            wrong = [r for r in self.rows if not r.ok]
            agree = len(self.rows) - len(wrong)
            others = [f"({agree} other results agree)"] if agree else []
            raise MismatchError("\n".join(["the artifact differs from torch:", *map(str, wrong), *others, *self.notes]))
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
        names: what the report calls each pair.
        actual: arrays, numpy's or tensors of torch, of any shape.
        expected: as many of the same, which count as right.
        rtol, atol: None chooses by element type, atol then in units of the largest magnitude; a number given for atol
            is absolute. Integers and bools must be equal.
        values: False compares dtypes and shapes only, for models that draw random numbers.

    Examples:
        >>> report = ir.compare(["y"], [numpy.ones(2)], [numpy.ones(2) + 1e-12])
        >>> report.ok, report.rows[0].dtype
        (True, 'float64')
    """
    skipped = {} if values else dict.fromkeys(names, "only dtypes and shapes were asked for")
    return Report(rows(names, actual, expected, rtol, atol, skipped))


def rows(
    names: Sequence[str],
    actual: Sequence[Any],
    expected: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
    skipped: Mapping[str, str] | None = None,
    unsized: Collection[str] = (),
    sizes: str = "",
    scales: Mapping[str, float] | None = None,
    limit: float | None = None,
) -> tuple[Row, ...]:
    """One row for each result; of those in `skipped` dtype and shape are compared, of those in `unsized` the rank.

    `scales` are magnitudes of the results at other sizes: where terms cancel at these, rounding does not. `limit` is
    the error of floats that passes, in units of the largest magnitude, in place of the tolerances.
    """
    why = skipped or {}
    found = []
    for name, a, e in zip(names, map(np.asarray, actual), map(np.asarray, expected), strict=True):
        alike = a.ndim == e.ndim if name in unsized else a.shape == e.shape
        if a.dtype != e.dtype or not alike:
            row = Row(name, e.shape, str(e.dtype), float("inf"), 0.0, _other_type(a, e), why.get(name, ""))
        elif name in why:
            row = Row(name, e.shape, str(e.dtype), float("nan"), float("nan"), "", why[name])
        else:
            row = _row(name, a, e, rtol, atol, (scales or {}).get(name, 0.0), limit)
        found.append(replace(row, sizes=sizes))
    return tuple(found)


def _other_type(actual: np.ndarray, expected: np.ndarray) -> str:
    return f"got {actual.dtype}{list(actual.shape)}, torch has {expected.dtype}{list(expected.shape)}"


def _row(
    name: str,
    actual: np.ndarray,
    expected: np.ndarray,
    rtol: float | None,
    atol: float | None,
    known: float,
    limit: float | None = None,
) -> Row:
    dtype = str(expected.dtype)
    if expected.size == 0:
        return Row(name, expected.shape, dtype, 0.0, 0.0)
    if expected.dtype.kind in "biu":
        wrong = int((actual != expected).sum())
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max() if wrong else 0.0
        reason = f"{wrong} of {expected.size} elements differ" if wrong else ""
        return Row(name, expected.shape, dtype, float(gap), float(np.abs(expected.astype(np.float64)).max()), reason)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # a signalling nan warns in the cast
        a, e = actual.astype(wide), expected.astype(wide)
    default = TOLERANCES.get(dtype, DEFAULT_TOLERANCE) if limit is None else (0.0, limit)
    r = default[0] if rtol is None else rtol
    finite = np.isfinite(e)
    scale = float(np.abs(e[finite]).max(initial=0.0))
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - e))
    gap = np.where(np.isnan(gap), np.inf, gap)
    slack = default[1] * max(scale, known, _LEAST) if atol is None else atol
    wrong = ~same & ~(gap <= r * np.where(finite, np.abs(e), 0.0) + slack)
    count = int(wrong.sum())
    reason = f"{count} of {expected.size} elements differ" if count else ""
    return Row(name, expected.shape, dtype, float(gap.max(initial=0.0)), scale, reason)


# Two sums of the same float32 numbers in other orders: neither is further from the exact one than twice the other.
_ORDER = 2.0


def held_to_float64(row: Row, actual: Any, expected: Any, exact: Any) -> Row:
    """A float32 row beyond its tolerance, judged by what torch computes in float64 in place of its float32.

    Deep in a network torch's own float32 lies as far from float64 as another float32 does, and two such numbers may be
    further apart than either is wrong. The row is right where torch's error is below the tolerance in the root mean
    square, so that only its largest ones are not, and the artifact's is at most twice torch's in the root mean square
    and at its largest. A fault that this would hide is as small as rounding.
    """
    a, e, x = (np.asarray(v) for v in (actual, expected, exact))
    if x.shape != a.shape or x.dtype != np.float64:
        return row
    finite = np.isfinite(e)
    if (
        not np.array_equal(a[~finite], e[~finite], equal_nan=True)
        or not (np.isfinite(a[finite]) & np.isfinite(x[finite])).all()
    ):
        return row
    ours, own = (np.abs(v[finite] - x[finite]) for v in (a, e))
    unit = max(row.scale, _LEAST)
    text = f"torch's own float32 is {own.max():.2g} from float64 ({_rms(own):.1g} in the root mean square), "
    noted = replace(row, rounding=f"{text}this {ours.max():.2g} ({_rms(ours):.1g})")
    slack = DEFAULT_TOLERANCE[1] * unit
    alike = _rms(ours) <= _ORDER * _rms(own) and ours.max() <= _ORDER * own.max()
    if _rms(own) <= slack and alike:
        return replace(noted, reason="")
    return noted if own.max() > slack else row  # where torch rounds less, its rounding explains nothing


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
