"""Pools: windows at steps, drawn by chance, or adapted to a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition
from ir.decompositions.series import own
from ir.geometry import ntuple
from ir.importer.torch_api import statically_known_true


@decomposition("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional_max_pool(
    self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Windows at places that the samples choose, for each channel its own (B. Graham, 2014)."""
    n = len(output_size)
    kernel_size = kernel_size if len(kernel_size) == n else [*kernel_size] * n
    planes = math.prod(self.shape[:-n])
    samples = random_samples.reshape(planes, n)
    places = []
    for i, (size, kernel, count) in enumerate(zip(self.shape[-n:], kernel_size, output_size, strict=True)):
        column = n - 1 - i if n == 2 else i  # 2-d samples count the axes from the last, 3-d ones from the first
        first = _starts(samples[:, column : column + 1], size, kernel, count)
        places.append(first.unsqueeze(2) + torch.arange(kernel))
    return _largest(self, places)


def _starts(sample: Tensor, size: Any, kernel: int, count: int) -> Tensor:
    """[planes, count]: where windows start, in steps of two sizes, the last one at the end."""
    i = torch.arange(count)
    step = torch.scalar_tensor(size - kernel, dtype=sample.dtype) / max(count - 1, 1)
    first = ((i + sample) * step).to(torch.int64) - (sample * step).to(torch.int64)
    return torch.where(i == count - 1, size - kernel, first)


@decomposition(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
def _adaptive_avg_pool(self: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Slices, which overlap and differ in size; windows as wide as the widest where a slice might have size 1."""
    x = self.to(torch.promote_types(self.dtype, torch.float32))
    for dim, count in enumerate(output_size, x.dim() - len(output_size)):
        size = x.shape[dim]
        if statically_known_true(size == count):
            continue
        if isinstance(count, int) and (isinstance(size, int) or statically_known_true(size > count)):
            ends = [(i * size // count, ((i + 1) * size + count - 1) // count) for i in range(count)]
            x = torch.cat([x.narrow(dim, a, b - a).mean(dim, keepdim=True) for a, b in ends], dim)
        else:
            place, end = _places(size, count)
            read = x.index_select(dim, torch.minimum(place, end - 1).reshape(-1)).unflatten(dim, place.shape)
            inside = (place < end).reshape(*place.shape, *[1] * (x.dim() - dim - 1))
            x = torch.where(inside, read, 0.0).sum(dim + 1) / inside.sum(1)
    return x.to(self.dtype)


@decomposition("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Each window as wide as the widest: a place more is its last one again."""
    if sum(not isinstance(s, int) for s in self.shape[-len(output_size) :]) > 1:
        raise NotImplementedError("indices of windows that differ in size, over several dynamic sizes")
    places = []
    for size, count in zip(self.shape[-len(output_size) :], output_size, strict=True):
        place, end = _places(size, count)
        places.append(torch.minimum(place, end - 1))
    return _largest(self, places)


def _places(size: Any, count: Any) -> tuple[Tensor, Tensor]:
    """[count, width]: what windows as wide as the widest read, and where each one ends."""
    i = torch.arange(count).unsqueeze(1)
    first = torch.div(i * size, count, rounding_mode="floor")
    end = torch.div((i + 1) * size + (count - 1), count, rounding_mode="floor")
    return first + torch.arange((size + count - 1) // count + 1), end


def _largest(x: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its place in the plane: the first, or that of the last nan.

    `places` has a tensor [windows, width] for each of the last axes, or [planes, windows, width].
    """
    n, own = len(places), places[0].dim() == 3
    sizes, counts, widths = x.shape[-n:], [p.shape[-2] for p in places], [p.shape[-1] for p in places]
    index = torch.zeros((), dtype=torch.int64)
    for i, (size, p) in enumerate(zip(sizes, places, strict=True)):
        shape = [1] * (2 * n)
        shape[i], shape[n + i] = counts[i], widths[i]
        index = index * size + p.reshape([*p.shape[:-2], *shape])
    index = index.reshape([*index.shape[: -2 * n], math.prod(counts), math.prod(widths)])
    flat = x.reshape(math.prod(x.shape[:-n]), math.prod(sizes))
    found = flat.gather(1, index.flatten(1)).reshape(index.shape) if own else flat[:, index]
    value = found.amax(2)
    place = torch.where(found == value.unsqueeze(2), index, math.prod(sizes)).amin(2)
    if x.dtype.is_floating_point:
        last = torch.where(found.isnan(), index, -1).amax(2)
        place = torch.where(last >= 0, last, place)
    shape = [*x.shape[:-n], *counts]
    return value.reshape(shape), place.reshape(shape)


# -- windows at steps --------------------------------------------------------------------------------------------------


def _number(size: Any, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> Any:
    """How many windows there are; with ceil_mode the last one starts inside or in the padding before."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    if not isinstance(size, int):
        raise NotImplementedError("windows that ceil_mode adds behind a dynamic size")
    count = -(-span // stride) + 1
    return count - ((count - 1) * stride >= size + pad)


@decomposition("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    self: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A place outside is the nearest one of its window again."""
    n = 3 if self.dim() == 5 else len(kernel_size)
    kernel: list[int] = ntuple([*kernel_size], n)
    steps: list[int] = ntuple([*stride], n) if stride else kernel
    places = []
    for size, k, s, p, d in zip(self.shape[-n:], kernel, steps, ntuple(padding, n), ntuple(dilation, n), strict=True):
        count = _number(size, k, s, p, d, ceil_mode)
        first = (torch.arange(count) * s - p).unsqueeze(1)
        inside = torch.where(first < 0, first + (d - 1 - first) // d * d, first)
        last = first + torch.div(size - 1 - first, d, rounding_mode="floor").clamp(max=k - 1) * d
        places.append(torch.minimum(torch.maximum(first + torch.arange(k) * d, inside), last))
    return _largest(self, places)


@decomposition("max_pool1d")
def _max_pool1d(self: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Tensor:  # fmt: skip
    return _max_pool(self, kernel_size, stride, padding, dilation, ceil_mode)[0]


@decomposition("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    self: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Sums along one axis after the other; what ceil_mode adds behind the padding is never counted."""
    n = len(kernel_size)
    steps = stride if len(stride) else kernel_size
    x: Tensor = own(self)
    number = torch.ones([], dtype=x.dtype)
    for axis, (k, s, p) in enumerate(zip(kernel_size, steps, ntuple(padding, n), strict=True), start=-n):
        size = x.shape[axis]
        count = _number(size, k, s, p, 1, ceil_mode)
        first = torch.arange(count) * s - p
        places = first.unsqueeze(1) + torch.arange(k)
        near, far = (-p, size + p) if count_include_pad else (0, size)
        counted = (torch.clamp(first + k, max=far) - torch.clamp(first, min=near)).to(x.dtype)
        number = number.unsqueeze(-1) * counted
        inside = torch.clamp(torch.clamp(places, min=0), max=size - 1)
        found = x.index_select(axis, inside.reshape(-1)).unflatten(axis, inside.shape)
        kept = (places == inside).reshape([*inside.shape, *[1] * (-axis - 1)])
        x = torch.where(kept, found, 0.0).sum(axis)
    return (x / (number if divisor_override is None else divisor_override)).to(self.dtype)
