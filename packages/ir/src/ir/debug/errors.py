"""How far a tensor lies from another: absolute, relative to the largest magnitude, and in units of the last place."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ir.importer.weights import TorchWeight
from ir.verify import DEFAULT_TOLERANCE, TOLERANCES, rows

_FEW = 8  # units of the last place of the largest magnitude that another order of sums explains


@dataclass(frozen=True)
class Error:
    """The distance of a tensor from what it should be.

    Attributes:
        largest: the largest absolute difference; infinity where one side is nan, infinite, or of another shape or type.
        scale: the largest finite magnitude of the expected tensor.
        ulps: the largest distance of an element in units of the last place of what it should be; where that is zero,
            of the largest magnitude.
        place: the index of the element with the largest difference, None where all are equal.
        got: what stands there.
        wanted: what should.
        reason: what `verify` says where it is beyond its tolerances, or beyond the limit that was given; else empty.
    """

    largest: float
    scale: float
    ulps: float
    place: tuple[int, ...] | None = None
    got: float | None = None
    wanted: float | None = None
    reason: str = ""

    @property
    def relative(self) -> float:
        """The largest difference in units of the largest magnitude."""
        return self.largest / self.scale if self.scale else (math.inf if self.largest else 0.0)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"relative": self.relative}

    def __str__(self) -> str:
        if not self.largest:
            return "exact"
        return f"{self.relative:.2g} of scale, {_short(self.ulps)} ulp"


def _short(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:.0f}" if number < 1e4 else f"{number:.1e}"


def distance(actual: Tensor, expected: Tensor, checked: bool = True, limit: float | None = None) -> Error:
    """The error of `actual`; `checked` compares with verify's tolerances as well, or with `limit` times the scale."""
    if actual.layout is not torch.strided or expected.layout is not torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if actual.shape != expected.shape:
        return Error(math.inf, 0.0, math.inf, reason=_said(actual, expected) if checked else "")
    dtype = (actual.real if actual.is_complex() else actual).dtype  # of float64 beside a narrow type, the narrow one
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (actual, expected)]
    found = _real(parts[0], parts[1], dtype)
    if checked and limit is not None and actual.dtype == expected.dtype:
        return replace(found, reason=_beyond(found) if found.relative > limit else "")
    if checked and (found.largest > _slack(expected, found.scale) or actual.dtype != expected.dtype):
        return replace(found, reason=_said(actual, expected))
    return found


def check_limit(limit: Any) -> None:
    """Refuse what is no bound of an error.

    Raises:
        ValueError: it is no number from 0 on.
    """
    if limit is not None and not (isinstance(limit, (int, float)) and limit >= 0):
        raise ValueError(f"max_error={limit!r:.60} is no bound of an error: give a number from 0 on, such as 1e-4")


def _slack(expected: Tensor, scale: float) -> float:
    """The error up to which verify would not look at single elements."""
    name = str(expected.dtype).removeprefix("torch.")
    floating = expected.dtype.is_floating_point or expected.dtype.is_complex
    return TOLERANCES.get(name, DEFAULT_TOLERANCE)[1] * scale if floating else 0.0


def _beyond(found: Error) -> str:
    return f"an error of {found.relative:.2g} of the largest magnitude"


def _said(actual: Tensor, expected: Tensor) -> str:
    (row,) = rows([""], [TorchWeight("", actual).numpy()], [TorchWeight("", expected).numpy()])
    return row.reason


def _real(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> Error:
    if expected.numel() == 0:
        return Error(0.0, 0.0, 0.0)
    scale = _scale(expected)
    if torch.equal(actual, expected):
        return Error(0.0, scale, 0.0)
    a, e = actual.double(), expected.double()
    gap = (a - e).abs_()
    at = int(gap.argmax())  # of nan, where there is one
    if not math.isfinite(float(gap.flatten()[at])):
        gap = torch.where((a == e) | (a.isnan() & e.isnan()), 0.0, gap)
        gap = torch.where(gap.isnan(), math.inf, gap)
        at = int(gap.argmax())
    largest = float(gap.flatten()[at])
    if largest == 0:
        return Error(0.0, scale, 0.0)
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), gap.shape))
    ulps = float(gap.div_(_spacing(expected, scale, dtype)).max())
    return Error(largest, scale, ulps, place, float(a[place]), float(e[place]))


def _scale(expected: Tensor) -> float:
    """The largest finite magnitude."""
    if not _has_extremes(expected.dtype):
        expected = expected.double()
    low, high = map(float, expected.aminmax())
    scale = max(abs(low), abs(high))
    if not math.isfinite(low + high):
        scale = float(torch.where(expected.isfinite(), expected, 0.0).abs().max())
    return scale


def _spacing(expected: Tensor, scale: float, dtype: torch.dtype) -> Tensor | float:
    """The distance from each element to the next larger one of the type; 1 of integers.

    Zero has no last place: that of the largest magnitude.
    """
    if not dtype.is_floating_point:
        return 1.0
    info, size = torch.finfo(dtype), expected.to(dtype)
    size = size if dtype == torch.float64 else size.float()
    bits, exponent = _EXPONENT[size.dtype]
    powers = (size.view(bits) & exponent).view(size.dtype)
    most = _power(info.max)
    powers.masked_fill_(size == 0, min(_power(scale or 1.0), most))
    return powers.clamp_(info.tiny, most).mul_(info.eps)


# The bits of the exponent: without the others a number is the power of two at or below its magnitude.
_EXPONENT = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}


def _has_extremes(dtype: torch.dtype) -> bool:
    """Whether torch finds the least and the largest of this type: of types of 8 bits it does not."""
    return dtype.is_floating_point and dtype.itemsize > 1


def _power(number: float) -> float:
    return math.ldexp(1.0, math.frexp(number)[1] - 1)


def is_beyond_rounding(error: Error, dtype: torch.dtype) -> bool:
    """Whether a result of this type differs by more than sums in another order do."""
    few = _FEW * torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
    return bool(error.reason) or error.relative > few


def kinds_in(tensor: Tensor) -> frozenset[str]:
    """Which of "nan" and "inf" a tensor has."""
    floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if not floating or tensor.layout is not torch.strided or not tensor.numel():
        return frozenset()
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    if _has_extremes(real.dtype) and all(t.isfinite() for t in real.aminmax()):
        return frozenset()
    if not _has_extremes(real.dtype):
        real = real.float()
    return frozenset(kind for kind, has in (("nan", torch.isnan), ("inf", torch.isinf)) if has(real).any())
