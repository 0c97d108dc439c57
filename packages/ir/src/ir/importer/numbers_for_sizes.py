"""Sizes that torch's kernels took for the number that they have in the example.

Where `z[1::2]` is one row in the example, torch's shape rules ask whether it is, and give what is computed from it one
row too. The code then reads 1 as its size. Such a graph holds where the size is that number, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ir.bounds import Range
from ir.conditions import symbols_of
from ir.dims import Call, Dim, Expr, evaluate
from ir.graph import Node
from ir.importer.evaluate import result_shapes
from ir.importer.guards import Branch
from ir.ops import CHECKS

_LARGE, _GAP = 290, 3  # a size that the slices of an example hardly reach, and the distance to the next symbol's


def needed(nodes: Iterable[Node], asked: Sequence[Branch], ranges: Mapping[str, Range]) -> Sequence[Branch]:
    """What torch's kernels asked of sizes, all of it if a number stands in a result where torch has another one."""
    return asked if asked and any(_has_fixed_size(n, ranges) for n in nodes) else ()


def equalities(nodes: Iterable[Node]) -> Iterator[tuple[Dim, Dim]]:
    """Sizes that are one, or a number, where these checks hold."""
    for node in nodes:
        condition = node.args["self"] if node.op in CHECKS and "self" in node.args else None
        for atom in (a for m, _ in condition.terms for a, _ in m) if isinstance(condition, Expr) else ():
            if isinstance(atom, Call) and atom.fn == "eq":
                one, other = atom.args
                if isinstance(one, Expr) and one.as_symbol is None and isinstance(other, int | Expr):
                    yield one, other


def _has_fixed_size(node: Node, ranges: Mapping[str, Range]) -> bool:
    """Whether torch gives a result of these operands other sizes than the trace has, at sizes far from the example."""
    if node.graphs or not any(isinstance(d, int) for v in node.outputs for d in v.type.shape):
        return False
    names = sorted(symbols_of(node))
    sizes = {n: _within(_LARGE + _GAP * i, ranges.get(n, Range())) for i, n in enumerate(names)}
    made = result_shapes(node, sizes) if names else None
    if made is None:
        return False
    return any(
        len(m) == v.type.rank and any(evaluate(d, sizes) != size for d, size in zip(v.type.shape, m, strict=True))
        for v, m in zip(node.outputs, made, strict=True)
    )


def _within(size: int, known: Range) -> int:
    size = max(size, known.min or 0)
    return size if known.max is None else min(size, known.max)
