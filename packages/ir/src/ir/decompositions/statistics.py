"""What is found by counting: modes and medians, histograms, segments, pairs, places that are not zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition

# -- the most frequent and the middle ----------------------------------------------------------------------------------


@decomposition("mode")
def _mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, and its last place."""
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64)
    axis = dim % self.dim()
    often = (self.unsqueeze(axis) == self.unsqueeze(axis + 1)).sum(axis + 1)
    most = often == often.amax(axis, keepdim=True)
    value = torch.where(most, self, _last(self.dtype)).amin(axis, keepdim=True)
    places = torch.arange(self.shape[axis]).reshape([-1] + [1] * (self.dim() - axis - 1))
    place = torch.where(self == value, places, 0).amax(axis, keepdim=True)
    return (value, place) if keepdim else (value.squeeze(axis), place.squeeze(axis))


def _last(dtype: torch.dtype) -> float | bool:
    """The largest value of a type."""
    return math.inf if dtype.is_floating_point else True if dtype is torch.bool else torch.iinfo(dtype).max


@decomposition("nanmedian")
def _nanmedian(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of what is a number: nan comes last in order, and so the middle of the others lies before it."""
    if not self.dtype.is_floating_point or self.dim() == 0:
        return torch.median(self) if dim is None else torch.median(self, dim, keepdim)
    if dim is None:
        row = self.reshape(-1)
        known = isinstance(row.shape[0], int) and row.shape[0] > 0
        return _nanmedian(row if known else torch.cat([row, row.new_full([1], math.nan)]), 0)[0]
    numbers = (~self.isnan()).sum(dim, keepdim=True)
    middle = torch.div(numbers.clamp(min=1) - 1, 2, rounding_mode="trunc")
    found = [torch.gather(x, dim, middle) for x in torch.sort(self, dim=dim, stable=True)]
    return tuple(found if keepdim else [x.squeeze(dim) for x in found])


# -- histograms --------------------------------------------------------------------------------------------------------


@decomposition("histc")
def _histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    x = self.reshape(-1)
    low, high = _ends(x, None if min == max else (min, max), apart=1.0)
    return _tally(_place(x, low, high, bins), _within(x, low, high), bins, torch.ones_like(x))


def _ends(x: Tensor, given: Sequence[float] | None, apart: float = 0.5) -> tuple[Tensor, Tensor]:
    """The ends of a histogram: those given, or the extremes, moved `apart` to both sides if they are one."""
    low, high = _extremes(x) if given is None else (torch.scalar_tensor(e, dtype=x.dtype) for e in given)
    width = torch.where(low == high, apart, 0.0).to(x.dtype)
    return low - width, high + width


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number of a vector; 0 and 1 of none."""
    if isinstance(x.shape[0], int) and x.shape[0] > 0:
        return x.amin(), x.amax()
    low, high = torch.cat([x, x.new_full([1], math.inf)]).amin(), torch.cat([x, x.new_full([1], -math.inf)]).amax()
    return torch.where(low > high, 0.0, low), torch.where(low > high, 1.0, high)


def _within(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return (x >= low) & (x <= high)


def _place(x: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """The bin of each number of a range that is divided evenly; the last one is closed."""
    return ((x - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)


def _tally(place: Tensor, inside: Tensor, count: Any, weight: Tensor) -> Tensor:
    """The sum of the weights at each place."""
    return weight.new_zeros([count + 1]).index_add(0, torch.where(inside, place, count), weight)[:count]


def _equal_bins(x: Tensor, bins: int, range: Sequence[float] | None) -> Tensor:
    """The edges of bins of one width, the upper half counted from the end, as torch's linspace does."""
    low, high = _ends(x, range)
    place = torch.arange(bins + 1, dtype=x.dtype)
    step = (high - low) / bins
    return torch.where(place < (bins + 1) // 2, low + place * step, high - (bins - place) * step)


def _between(x: Tensor, edges: Tensor) -> Tensor:
    """The bin of each number between any edges; the last one is closed."""
    return (torch.bucketize(x, edges, right=True) - 1).clamp(0, edges.shape[0] - 2)


def _between_equal(x: Tensor, edges: Tensor) -> Tensor:
    """The same by a guess, which rounding puts one bin too low or too high at most."""
    bins = edges.shape[0] - 1
    guess = _place(x, edges[0], edges[-1], bins)
    place = guess + (x >= edges[guess + 1]).to(torch.int64) - (x < edges[guess]).to(torch.int64)
    return place.clamp(0, bins - 1)


def _counted(
    x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool, find: Callable[..., Tensor]
) -> Tensor:
    """The histogram of rows of coordinates, each of which `find` puts between its edges."""
    index: Any = 0
    inside: Any = True
    for column, e in zip(x.unbind(1), edges, strict=True):
        inside = inside & _within(column, e[0], e[-1])
        index = index * (e.shape[0] - 1) + find(column.contiguous(), e)
    shape = [e.shape[0] - 1 for e in edges]
    weight = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1).to(x.dtype)
    found = _tally(index, inside, math.prod(shape), weight).reshape(shape)
    if density:
        found = found / found.sum()
        for axis, e in enumerate(edges):
            found = found / e.diff().reshape([-1] + [1] * (len(edges) - axis - 1))
    return found


@decomposition("histogram.bins_tensor")
def _histogram(
    self: Tensor, bins: Tensor, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counted(self.reshape(-1, 1), [bins], weight, density, _between), bins.clone()


@decomposition("histogram.bin_ct")
def _histogram_of_equal_bins(
    self: Tensor, bins: int = 100, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    edges = _equal_bins(self.reshape(-1), bins, range)
    return _counted(self.reshape(-1, 1), [edges], weight, density, _between_equal), edges


@decomposition("_histogramdd_bin_edges")
def _bin_edges(
    self: Tensor, bins: Sequence[int], range: Any = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    ends = [None] * len(bins) if range is None else zip(range[::2], range[1::2], strict=True)
    return [_equal_bins(x, n, e) for x, n, e in zip(self.reshape(-1, len(bins)).unbind(1), bins, ends, strict=True)]


@decomposition("_histogramdd_from_bin_tensors")
def _from_edges(self: Tensor, bins: Sequence[Tensor], weight: Tensor | None = None, density: bool = False) -> Tensor:
    return _counted(self.reshape(-1, len(bins)), bins, weight, density, _between)


@decomposition("_histogramdd_from_bin_cts")
def _from_counts(
    self: Tensor, bins: Sequence[int], range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    edges = _bin_edges(self, bins, range)
    return _counted(self.reshape(-1, len(bins)), edges, weight, density, _between_equal)


@decomposition("histogramdd")
def _histogramdd(
    self: Tensor, bins: Any, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Bins are edges, or their number for each column, or for all."""
    bins = [bins] * self.shape[-1] if isinstance(bins, int) else bins
    if isinstance(bins[0], Tensor):
        return _from_edges(self, bins, weight, density), [b.clone() for b in bins]
    return _from_counts(self, bins, range, weight, density), _bin_edges(self, bins, range)


# -- segments ----------------------------------------------------------------------------------------------------------

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}  # what an empty segment gives


def segment_of(edges: Tensor, size: Any) -> Tensor:
    """How many edges lie at or before each of `size` places; edges ascend along the last axis up to `size`."""
    marks = edges.new_zeros([*edges.shape[:-1], size + 1]).scatter_add(-1, edges, torch.ones_like(edges))
    return marks.cumsum(-1)[..., :size]


@decomposition("segment_reduce")
def _segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Before the first segment and after the last one there are two more, which are dropped."""
    if lengths is None and offsets is None:
        raise NotImplementedError("segments by indices; give lengths or offsets")
    if offsets is None:
        assert lengths is not None
        ends = lengths.to(torch.int64).cumsum(-1)
        offsets = torch.cat([ends.new_zeros([*ends.shape[:-1], 1]), ends], -1)
    edges, size = offsets.to(torch.int64), data.shape[axis]
    count, outer, inner = edges.shape[-1] - 1, data.shape[:axis], data.shape[axis + 1 :]
    segment = segment_of(edges, size)
    start = _NEUTRAL[reduce] if initial is None else initial
    if reduce in ("max", "min") and size != 0:
        here = (torch.arange(1, count + 1).unsqueeze(-1) == segment.unsqueeze(-2)).reshape(
            [*outer, count, size] + [1] * len(inner)
        )
        each = torch.where(here, data.unsqueeze(axis), _NEUTRAL[reduce])
        found = each.amax(axis + 1) if reduce == "max" else each.amin(axis + 1)
        return found if initial is None else found.clamp(**{"min" if reduce == "max" else "max": initial})
    rows = math.prod(outer)
    segment = (segment.reshape(rows, size) + torch.arange(rows).unsqueeze(-1) * (count + 2)).reshape(-1)
    empty = data.new_full([rows * (count + 2), *inner], start)
    flat = data.reshape([rows * size, *inner])
    found = empty.index_reduce(0, segment, flat, "prod") if reduce == "prod" else empty.index_add(0, segment, flat)
    found = found.reshape([*outer, count + 2, *inner]).narrow(axis, 1, count)
    if reduce != "mean":
        return found
    filled = edges.diff().reshape([*outer, count] + [1] * len(inner)).to(data.dtype)
    return found / filled if initial is None else torch.where(filled == 0, found, found / filled)


# -- covariance --------------------------------------------------------------------------------------------------------


@decomposition("cov")
def _cov(
    self: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Of rows, each of which is a variable."""
    x = self if self.dim() == 2 else self.reshape(1, -1)
    w = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if w is None:
        # no maximum of sizes: torch's, of a size that it takes to be 2 at least, is that size
        freedom: Any = torch.scalar_tensor(x.shape[1] - correction, dtype=torch.get_default_dtype()).clamp(min=0)
        apart = x - x.sum(1, keepdim=True) / x.shape[1]
        other = apart
    else:
        total = w.sum()
        lost = correction if aweights is None else correction * (w * aweights).sum() / total
        freedom = torch.clamp(total - lost, min=0)
        apart = x - (x * w).sum(1, keepdim=True) / total
        other = apart * w
    covariance: Tensor = ((apart @ other.mT.conj()) / freedom.to(apart.dtype)).squeeze()
    return covariance


@decomposition("corrcoef")
def _corrcoef(self: Tensor) -> Tensor:
    c = _cov(self)
    if c.dim() == 0:
        return c / c
    deviation = torch.sqrt(c.diagonal())
    return (c / deviation.unsqueeze(1) / deviation).clamp(-1, 1)


# -- pairs and places --------------------------------------------------------------------------------------------------


@decomposition("pdist", "_pdist_forward")
def _pdist(self: Tensor, p: float = 2.0) -> Tensor:
    """The distances of the pairs i < j of rows, in the order of a triangle's rows."""
    n, columns = self.shape
    if columns == 0:
        return self.new_zeros([n * (n - 1) // 2])
    pair = torch.arange(n * (n - 1) // 2)
    turn = (2 * n - 1) - torch.sqrt(((2 * n - 1) ** 2 - 8 * pair).to(torch.float64))  # float64: the root is exact
    first = torch.floor(turn / 2).to(torch.int64)
    second = pair - torch.div(first * (2 * n - 3 - first), 2, rounding_mode="floor") + 1
    apart = self[first] - self[second]
    if p == 0:  # as torch's kernel, which keeps nan
        return apart.abs().ceil().clamp(max=1).sum(-1)
    distance: Tensor = torch.linalg.vector_norm(apart, p, -1)
    return distance


@decomposition("nonzero_static")
def _nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Each element that is not zero goes to the row of its running number, all others to one row too many."""
    hit = (self != 0).reshape(-1)
    row = torch.where(hit, (hit.cumsum(0) - 1).clamp(max=size), size)
    rest, columns = torch.arange(hit.shape[0]), []
    for n in reversed(self.shape):
        columns.append(torch.remainder(rest, n))
        rest = torch.div(rest, n, rounding_mode="floor")
    if not columns:
        return self.new_zeros([size, 0], dtype=torch.int64)
    found = torch.full([size + 1, self.dim()], fill_value, dtype=torch.int64)
    return found.index_copy(0, row, torch.stack(columns[::-1], 1))[:size]


# -- membership --------------------------------------------------------------------------------------------------------


@decomposition("isin.Tensor_Tensor")
def _isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Each element beside all of those tested for."""
    found = (elements.unsqueeze(-1) == test_elements.reshape(-1)).any(-1)
    return ~found if invert else found


@decomposition("isin.Tensor_Scalar")
def _isin_number(elements: Tensor, test_element: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    answer: Tensor = elements != test_element if invert else elements == test_element
    return answer


@decomposition("isin.Scalar_Tensor")
def _number_isin(element: Any, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """torch sorts from ten tested elements on: then as tensors of one type, before as a number beside a tensor."""
    tested = test_elements.reshape(-1)
    if not _holds(tested.dtype, element):
        if not isinstance(tested.shape[0], int):
            raise NotImplementedError(f"{tested.dtype} does not hold {element}, and torch's answer depends on the size")
        element = torch.full([1], element) if tested.shape[0] >= 10 else element
    found = (tested == element).any()
    answer: Tensor = ~found if invert else found
    return answer


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether an integer is one of the type's; all others torch compares in a type that holds both."""
    if dtype.is_floating_point or dtype is torch.bool or not isinstance(number, int):
        return True
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max
