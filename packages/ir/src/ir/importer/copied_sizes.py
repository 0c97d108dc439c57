"""At which sizes `reshape` and `contiguous` copy their operand: those at which its strides allow no view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from ir.dims import Dim, call
from ir.importer.strided import Place
from ir.ops import RESHAPES

Axis = tuple[Dim, Dim]  # size, stride


def copies_where(op: str, memory_format: Any, place: Place, shape: Sequence[Dim]) -> Any:
    """The condition, or a truth value; None where it is not known.

    Args:
        op: its name.
        memory_format: its argument; 0 is torch.contiguous_format in a schema.
        place: where the operand lies.
        shape: the result's.

    Neighbours that become one axis, or that have to lie in rows, do if the one's stride is the other's size times its
    stride; what has one element does not matter (aten/src/ATen/TensorUtils.cpp, computeStride).
    """
    axes = list(zip(place.shape, place.strides, strict=True))
    if op == "aten::contiguous" and memory_format in (None, 0, "contiguous_format"):
        groups: list[list[Axis]] | None = [axes]
        ends = [_all([_ne(n, 1), *(_eq(m, 1) for m, _ in axes[i + 1 :]), _ne(s, 1)]) for i, (n, s) in enumerate(axes)]
    elif op in RESHAPES:
        groups, ends = _merged(axes, shape), []
    else:
        return None
    if groups is None:
        return None
    apart = [_apart(group, i, j) for group in groups for j in range(len(group)) for i in range(j)]
    return _any([*ends, *apart, *(_eq(n, 0) for n, _ in axes if not isinstance(n, int))])


def _apart(axes: Sequence[Axis], i: int, j: int) -> Any:
    """Where axis i does not lie in rows of axis j, none between them."""
    (rows, far), (columns, near) = axes[i], axes[j]
    return _all([_ne(rows, 1), _ne(columns, 1), *(_eq(n, 1) for n, _ in axes[i + 1 : j]), _ne(far, columns * near)])


def _merged(axes: Sequence[Axis], shape: Sequence[Dim]) -> list[list[Axis]] | None:
    """The axes that become one each; None where some become several, in which sizes may happen to be alike."""
    groups, left = [], list(axes)
    for size in shape:
        group: list[Axis] = []
        whole: Dim = 1
        while left and (whole != size or not group):
            group.append(left.pop(0))
            whole = whole * group[-1][0]
        if whole != size:
            return None
        groups.append(group)
    return groups if all(n == 1 for n, _ in left) else None


def _compared(sign: str, a: Dim, b: Dim) -> Any:
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return (a == b) is (sign == "eq")
    return call(sign, a, b)


def _eq(a: Dim, b: Dim) -> Any:
    return _compared("eq", a, b)


def _ne(a: Dim, b: Dim) -> Any:
    return _compared("ne", a, b)


def _folded(name: str, end: bool) -> Callable[[Iterable[Any]], Any]:
    """`and` or `or` of conditions, of which those that are `end` decide."""

    def fold(parts: Iterable[Any]) -> Any:
        known = list(parts)
        if any(p is end for p in known):
            return end
        open_ = [p for p in dict.fromkeys(known) if p is not (not end)]
        return reduce(lambda a, b: call(name, a, b), open_) if open_ else not end

    return fold


_all, _any = _folded("and", False), _folded("or", True)
