"""Arguments of other sizes, made from those that a model was captured with: for verifying what users run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ir.bounds import Range
from ir.dims import Dim, Expr, evaluate
from ir.graph import Graph, Value
from ir.importer.calling_convention import TENSOR, Integer
from ir.importer.torch_api import pytree

Sizes = dict[str, int]
_ALONE = 6  # dimensions up to which each is tried by itself where not all of them can change


def sizes_of(graph: Graph, inputs: Sequence[torch.Tensor]) -> Sizes:
    """The values of the symbols that the shapes of these inputs, and arguments that are numbers, give."""
    given = dict(zip(graph.inputs, inputs, strict=True))
    numbers = {i.name for i in graph.structure.inputs if isinstance(i, Integer)}
    found = {}
    for name, source in graph.sources.items():
        tensor = given.get(source.value)
        if tensor is not None and source.axis is not None:
            found[name] = (tensor.shape[source.axis] - source.offset) // source.scale
        elif tensor is not None and source.value.name in numbers:
            found[name] = int(tensor)
    return dict(sorted(found.items()))


def plans(graph: Graph, known: Sizes) -> list[list[list[Sizes]]]:
    """What to try beside the known sizes: others, then the ends of the ranges, 1 and 0.

    Each is a list of rounds: one round in which all dimensions change together, then one for each alone. A round is a
    list of sizes, the first of which that torch takes is enough; rounds behind one that succeeds are not needed.
    """
    several = len(known) > 1 and len(known) <= _ALONE
    ranges = graph.symbols
    found = []
    for wish in (_others, _least, _most, _ones, _zeros):
        rounds = [wish(known, ranges), *(wish({n: known[n]}, ranges) for n in known if several)]
        found.append([[known | s for s in sizes] for sizes in rounds if sizes])
    return [rounds for rounds in found if rounds]


def _others(known: Sizes, ranges: Mapping[str, Range]) -> list[Sizes]:
    """A little more, each by another amount, so that no two are mistaken for each other; multiples; less."""
    ways = (
        {n: size + i for i, (n, size) in enumerate(known.items(), 1)},
        {n: 2 * size for n, size in known.items()},
        {n: 3 * size for n, size in known.items()},
        {n: size // 2 for n, size in known.items()},
        {n: size - 1 for n, size in known.items()},
    )
    return [changed for way in ways if (changed := _within(known, way, ranges))]


def _least(known: Sizes, ranges: Mapping[str, Range]) -> list[Sizes]:
    """The smallest sizes in range, where that is neither 0 nor 1."""
    least = {n: r.min for n in known if (r := ranges.get(n, Range())).min is not None and r.min > 1}
    return [c for c in [_within(known, least, ranges)] if c]


def _most(known: Sizes, ranges: Mapping[str, Range]) -> list[Sizes]:
    """The largest sizes in range, where they take little more than the example."""
    most = {n: r.max for n, s in known.items() if (r := ranges.get(n, Range())).max is not None and r.max <= 2 * s}
    return [c for c in [_within(known, most, ranges)] if c]


def _ones(known: Sizes, ranges: Mapping[str, Range]) -> list[Sizes]:
    return [c for c in [_within(known, dict.fromkeys(known, 1), ranges)] if c]


def _zeros(known: Sizes, ranges: Mapping[str, Range]) -> list[Sizes]:
    return [c for c in [_within(known, dict.fromkeys(known, 0), ranges)] if c]


def _within(known: Sizes, wished: Sizes, ranges: Mapping[str, Range]) -> Sizes:
    """The wished sizes that are in range and new."""

    def fits(name: str, size: int) -> bool:
        r = ranges.get(name, Range())
        return size != known[name] and (r.min or 0) <= size and (r.max is None or size <= r.max)

    return {n: s for n, s in wished.items() if fits(n, s)}


def resized(
    graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Sizes
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments at these sizes.

    Axes are cut at the end, or stretched: by rows between those that are there, which make no ties; of masks and what
    is no float each row is repeated in its place. Both keep what is sorted sorted and values in their range. Where
    indices turn out too large for smaller sizes, the second form has them cut to fit.
    """
    structure = graph.structure
    leaves, spec = pytree.tree_flatten((tuple(args), structure.ordered(kwargs)))
    for most in (None, min(sizes.values()) - 1):
        if most is not None and (most < 0 or not any(map(_holds_indices, leaves))):
            return
        values = iter(graph.inputs)
        made = []
        for leaf, expected in zip(leaves, structure.inputs, strict=True):
            if expected is TENSOR:
                shape = [_size(d, leaf.shape[i], sizes) for i, d in enumerate(next(values).type.shape)]
                leaf = _stretched(leaf, shape)
                made.append(leaf.clamp(max=most) if most is not None and _holds_indices(leaf) else leaf)
            elif isinstance(expected, Integer):
                made.append(_number(graph, next(values), leaf, sizes))
            else:
                made.append(leaf)
        yield pytree.tree_unflatten(made, spec)


def _holds_indices(leaf: Any) -> bool:
    integers = (torch.int64, torch.int32)
    return isinstance(leaf, torch.Tensor) and leaf.dtype in integers and leaf.layout is torch.strided


def _size(dim: Dim, now: int, sizes: Sizes) -> int:
    if not isinstance(dim, Expr) or not dim.symbols <= sizes.keys():
        return now
    return int(evaluate(dim, sizes))


def _number(graph: Graph, value: Value, leaf: Any, sizes: Sizes) -> Any:
    for name, source in graph.sources.items():
        if source.value is value and name in sizes:
            return sizes[name]
    return leaf


def _stretched(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    for axis, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
        if new < old:
            tensor = tensor.narrow(axis, 0, new)
        elif new > old > 1 and _is_smooth(tensor):
            at = torch.arange(new, device=tensor.device) * ((old - 1) / (new - 1))
            low = at.floor().long().clamp(max=old - 2)
            part = (at - low).reshape([-1] + [1] * (tensor.dim() - axis - 1)).to(tensor.dtype)
            one, other = (tensor.index_select(axis, i) for i in (low, low + 1))
            tensor = one + (other - one) * part
        elif new > old:
            rows = torch.arange(new, device=tensor.device) * old // new
            whole = tensor.new_zeros([*tensor.shape[:axis], new, *tensor.shape[axis + 1 :]])
            tensor = tensor.index_select(axis, rows) if old else whole
    return tensor


def _is_smooth(tensor: torch.Tensor) -> bool:
    """True of floats that are no mask: numbers between two of them are as good."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or not tensor.numel():
        return False
    if tensor.dtype.itemsize == 1:  # torch does not compute with floats of 8 bits
        return False
    return bool(tensor.isfinite().all()) and not bool(((tensor == 0) | (tensor == 1)).all())
