"""Sizes below those that torch.export traces for, where a slice has another length than the graph says.

torch.export takes a dynamic size to be 2 at least, so that `x[:2]` has the length 2 in the graph. At 1 it has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ir import dims
from ir.bounds import Range
from ir.dims import Dim, Expr, call, evaluate
from ir.graph import Graph

_ABOVE = (0, 1, 2, 5)  # the lower bound and sizes above it, at which two formulas are compared


def sliced(size: Dim, start: Any, end: Any, step: Any) -> Dim:
    """The length of `x[start:end:step]` where x has this size, as torch.Tensor has it."""
    first, last = _place(0 if start is None else start, size), _place(size if end is None else end, size)
    return dims.ceildiv(dims.maximum(last - first, 0), step)


def _place(index: Dim, size: Dim) -> Dim:
    from_end = call("where", call("lt", index, 0), index + size, index) if isinstance(index, Expr) else index
    if isinstance(index, int) and index < 0:
        from_end = index + size
    return dims.minimum(dims.maximum(from_end, 0), size)


def of_inputs(graph: Graph, *sizes: Dim) -> bool:
    """True if these sizes are dynamic and the shapes of the inputs tell them."""
    symbols = {s for d in sizes if isinstance(d, Expr) for s in d.symbols}
    sources = graph.sources if symbols else {}
    return bool(symbols) and all(
        s in sources and sources[s].axis is not None and sources[s].value in graph.inputs for s in symbols
    )


def differ(a: Dim, b: Dim, ranges: Mapping[str, Range]) -> bool:
    """True if two sizes are seen to differ within the ranges of their symbols."""
    names = sorted({s for d in (a, b) if isinstance(d, Expr) for s in d.symbols})
    return any(_at(a, sizes) != _at(b, sizes) for sizes in _samples(names, ranges))


def _at(size: Dim, sizes: Mapping[str, int]) -> int | None:
    """The size where the symbols have these values; None where it divides by zero, which no call comes to."""
    try:
        found: int = evaluate(size, sizes)
    except ZeroDivisionError:
        return None
    return found


def _samples(names: list[str], ranges: Mapping[str, Range]) -> Iterator[dict[str, int]]:
    lows = [max(ranges[n].min or 0, 0) if n in ranges else 0 for n in names]
    highs = [ranges[n].max if n in ranges else None for n in names]
    together = len(names) > 3
    for steps in zip(*[_ABOVE] * len(names)) if together else itertools.product(_ABOVE, repeat=len(names)):
        values = [low + s for low, s in zip(lows, steps, strict=True)]
        if all(high is None or v <= high for v, high in zip(values, highs, strict=True)):
            yield dict(zip(names, values, strict=True))
