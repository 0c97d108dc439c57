"""Resizing: where torch reads for each place of the result, and with which weights.

Source: aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp. What follows from sizes that are known is folded to
constants when the artifact is written, in torch's own arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.importer.torch_api import statically_known_true

NARROW = 16  # what reads no more places is quicker one by one than as a window
Scales = Sequence[float | None] | float | None  # the factors of all axes in a list, or an argument for each


class Axis(NamedTuple):
    """An axis, its size before and after, and the factor where the model gave that; torch places samples by it."""

    dim: int
    old: Any
    new: Any
    factor: float | None

    @property
    def same(self) -> bool:
        return bool(statically_known_true(self.old == self.new))


def _axes(x: Tensor, output_size: Sequence[Any] | None, scales: Sequence[Scales]) -> Iterator[Axis]:
    """The axes that are resized, from the last to the first, as torch goes."""
    given = scales[0] if isinstance(scales[0], (list, tuple)) else scales
    factors: list[Any] = list(given) if any(given) else [None] * (x.dim() - 2)
    for dim in reversed(range(2, x.dim())):
        old, factor = x.shape[dim], factors[dim - 2]
        if output_size is not None:
            new = output_size[dim - 2]
        else:
            new = old * int(factor) if factor == int(factor) else torch.sym_int(old * factor)
        yield Axis(dim, old, new, factor)


def _ratio(a: Axis, real: torch.dtype, corners: bool = False, copies: bool = False) -> Any:
    """How far apart in the input the places of the result lie; `copies` takes an unchanged size for a factor of 1."""
    old, new = (torch.scalar_tensor(n - int(corners), dtype=real) for n in (a.old, a.new))
    if corners:
        return torch.where(new > 0, old / new, 0.0)
    if a.factor is None:
        return old / new
    if copies and 1 < a.factor < 2:
        return torch.where(old == new, old / new, 1 / a.factor)
    return 1 / a.factor


# -- nearest neighbours ------------------------------------------------------------------------------------------------


@decomposition("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(x: Tensor, output_size: Any, *scales: Scales) -> Tensor:
    copies = x.dim() == 4  # torch's kernel for images copies an axis whose size does not change, whatever the factor
    for a in _axes(x, output_size, scales):
        if not (a.same and (copies or a.factor is None)):
            x = _picked(x, a, torch.arange(a.new, dtype=torch.float32) * _ratio(a, torch.float32, copies=copies))
    return x


@decomposition("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _nearest_exact(x: Tensor, output_size: Any, *scales: Scales) -> Tensor:
    for a in _axes(x, output_size, scales):
        if not (a.same and a.factor is None):
            x = _picked(x, a, (torch.arange(a.new, dtype=torch.float32) + 0.5) * _ratio(a, torch.float32))
    return x


def _picked(x: Tensor, a: Axis, place: Tensor) -> Tensor:
    return x.index_select(a.dim, place.to(torch.int64).clamp(max=a.old - 1))


# -- interpolation -----------------------------------------------------------------------------------------------------

Taps = Sequence[tuple[Tensor, Tensor]]  # places in the input and their weights: [new], or [new, width] for a window
Kernel = Callable[[Axis, torch.dtype, bool], Taps]


@decomposition("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear(x: Tensor, output_size: Any, align_corners: bool, *scales: Scales) -> Tensor:
    return _interpolated(x, _axes(x, output_size, scales), align_corners, _linear_taps)


@decomposition("upsample_bicubic2d")
def _cubic(x: Tensor, output_size: Any, align_corners: bool, *scales: Scales) -> Tensor:
    return _interpolated(x, _axes(x, output_size, scales), align_corners, _cubic_taps)


@decomposition("_upsample_bilinear2d_aa")
def _linear_antialiased(x: Tensor, output_size: Any, align_corners: bool, *scales: Scales) -> Tensor:
    return _interpolated(x, _axes(x, output_size, scales), align_corners, _linear_filter)


@decomposition("_upsample_bicubic2d_aa")
def _cubic_antialiased(x: Tensor, output_size: Any, align_corners: bool, *scales: Scales) -> Tensor:
    return _interpolated(x, _axes(x, output_size, scales), align_corners, _cubic_filter)


def _interpolated(x: Tensor, axes: Iterator[Axis], corners: bool, kernel: Kernel) -> Tensor:
    """Axis by axis; torch copies those that keep their size, but for a cubic, which reads them with weights of 0."""
    if x.dtype is torch.uint8:
        return _bytes(x, axes, corners, kernel)
    real = torch.promote_types(x.dtype, torch.float32)
    y = x.to(real)
    for a in axes:
        if not a.same or kernel is _cubic_taps:
            y = _weighted(y, a.dim, [(i, w.to(x.dtype).to(real)) for i, w in kernel(a, real, corners)])
    return y.to(x.dtype)


def _weighted(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """The sum of the taps, each times its weight: a product with a matrix would carry nan to places that read none."""
    behind = [1] * (x.dim() - dim - 1)

    def read(index: Tensor, weight: Tensor) -> Tensor:
        if index.dim() == 1:
            return x.index_select(dim, index) * weight.reshape(-1, *behind)
        window = x.index_select(dim, index.reshape(-1)).unflatten(dim, index.shape)
        weighed: Tensor = (window * weight.reshape(*index.shape, *behind)).sum(dim + 1)
        return weighed

    first, *others = (read(i, w) for i, w in taps)
    return sum(others, first)


def _bytes(x: Tensor, axes: Iterator[Axis], corners: bool, kernel: Kernel) -> Tensor:
    """Images of uint8: weights are whole numbers, of as many bits as the largest leaves, and each axis rounds anew."""
    y = x.to(torch.int32)
    for a in axes:
        if not a.same:
            taps = _merged(kernel(a, torch.float64, corners))
            largest = torch.stack([w.amax() for _, w in taps]).amax()
            bits = torch.arange(1, 23)
            fits = (0.5 + largest * 2**bits).to(torch.int64) < 1 << 15
            unit = 1 << torch.where(fits, bits, 0).amax()
            whole = [(i, torch.trunc(w * unit + torch.where(w < 0, -0.5, 0.5)).to(torch.int32)) for i, w in taps]
            total = (_weighted(y, a.dim, whole) + (unit // 2).to(torch.int32)).clamp(min=0)
            y = torch.div(total, unit.to(torch.int32), rounding_mode="floor").clamp(max=255)
    return y.to(torch.uint8)


def _merged(taps: Taps) -> Taps:
    """What was cut off at the border counts as one tap."""
    index, weight = (list(t) for t in zip(*taps, strict=True))
    for j in reversed(range(1, len(taps))):
        again = index[j] == index[j - 1]
        weight[j - 1] = weight[j - 1] + torch.where(again, weight[j], 0.0)
        weight[j] = torch.where(again, 0.0, weight[j])
    return list(zip(index, weight, strict=True))


# -- the taps of an axis -----------------------------------------------------------------------------------------------


def _places(a: Axis, real: torch.dtype, corners: bool, copies: bool) -> Tensor:
    index, ratio = torch.arange(a.new, dtype=real), _ratio(a, real, corners, copies)
    places: Tensor = index * ratio if corners else (index + 0.5) * ratio - 0.5
    return places


def _linear_taps(a: Axis, real: torch.dtype, corners: bool) -> Taps:
    place = _places(a, real, corners, copies=True).clamp(min=0)
    first = place.to(torch.int64).clamp(max=a.old - 1)
    part = place - first
    return [(first, 1 - part), ((first + 1).clamp(max=a.old - 1), part)]


def _cubic_taps(a: Axis, real: torch.dtype, corners: bool) -> Taps:
    place = _places(a, real, corners, copies=False)
    first = place.floor().to(torch.int64).clamp(max=a.old - 1)
    part = (place - first).clamp(0, 1)
    weights = _far(part + 1, -0.75), _near(part, -0.75), _near(1 - part, -0.75), _far(2 - part, -0.75)
    return [((first + i).clamp(min=0).clamp(max=a.old - 1), w) for i, w in zip((-1, 0, 1, 2), weights, strict=True)]


def _linear_filter(a: Axis, real: torch.dtype, corners: bool) -> Taps:
    return _filter(a, real, corners, 1, lambda x: (1 - x).clamp(min=0))


def _cubic_filter(a: Axis, real: torch.dtype, corners: bool) -> Taps:
    """With PIL's coefficient, which is not that of OpenCV above."""
    return _filter(a, real, corners, 2, lambda x: torch.where(x < 1, _near(x, -0.5), _far(x.clamp(max=2), -0.5)))


def _filter(a: Axis, real: torch.dtype, corners: bool, support: int, kernel: Callable[[Tensor], Tensor]) -> Taps:
    """PIL's: every neighbour within the kernel, which is as wide as the step, cut off at the border and normed."""
    ratio = torch.as_tensor(_ratio(a, real, corners, copies=True), dtype=real)
    stretch = ratio.clamp(min=1)
    centre = (torch.arange(a.new, dtype=real) + 0.5) * ratio
    first = (centre - support * stretch + 0.5).to(torch.int64).clamp(min=0)
    end = (centre + support * stretch + 0.5).to(torch.int64).clamp(max=a.old)
    place = first.unsqueeze(1) + torch.arange(_width(a, corners, support))
    weight = kernel(((place - centre.unsqueeze(1) + 0.5) / stretch).abs())
    weight = torch.where(place < end.unsqueeze(1), weight, 0.0)
    place, weight = torch.minimum(place, end.unsqueeze(1) - 1), weight / weight.sum(1, keepdim=True)
    if not isinstance(place.shape[1], int) or place.shape[1] > NARROW:
        return [(place, weight)]
    return list(zip(place.unbind(1), weight.unbind(1), strict=True))


def _width(a: Axis, corners: bool, support: int) -> Any:
    """How many places the filter reads at most."""
    if a.factor is not None and not corners:
        return math.ceil(2 * support * max(1 / a.factor, 1.0))
    new = torch.sym_max(a.new - corners, 1)
    return torch.sym_max((2 * support * (a.old - corners) + new - 1) // new, 2 * support)


def _near(x: Tensor, coefficient: float) -> Tensor:
    """Cubic convolution (Keys 1981) at a distance up to 1."""
    return ((coefficient + 2) * x - (coefficient + 3)) * x * x + 1


def _far(x: Tensor, coefficient: float) -> Tensor:
    """The same from 1 to 2."""
    return ((coefficient * x - 5 * coefficient) * x + 8 * coefficient) * x - 4 * coefficient


@decomposition("affine_grid_generator")
def _affine_grid(theta: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """Each place of an image, from -1 to 1 along every axis, through a matrix; torch's own fixes the sizes."""
    batch, _channels, *extent = size
    rank = len(extent)

    def column(i: int) -> Tensor:
        return theta[:, :, i].reshape([batch, *[1] * rank, rank])

    total = column(rank).expand([batch, *extent, rank])
    for i, n in enumerate(reversed(extent)):
        place = torch.arange(n, dtype=theta.dtype, device=theta.device)
        count = torch.scalar_tensor(n, dtype=theta.dtype)  # compared as a number of run time: a size is 2 to torch
        if align_corners:
            line = place * (2 / (count - 1).clamp(min=1)) - 1 + (count == 1)  # of one place it is the middle
        else:
            line = (place * 2 + 1) / count - 1
        total = total + line.reshape([-1, *[1] * i, 1]) * column(i)
    return total
