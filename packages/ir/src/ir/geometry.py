"""Axes, broadcasting, windows and pads: the arithmetic that every backend needs, on plain numbers and dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

from ir.bounds import bounds
from ir.dims import Dim, floordiv, maximum, minimum

T = TypeVar("T")


def axis(dim: int, rank: int) -> int:
    """The axis counted from the front; a 0-d tensor has one axis, as in torch.

    Raises:
        IndexError: the axis is out of range.
    """
    n = max(rank, 1)
    if not -n <= dim < n:
        raise IndexError(f"dim {dim} is out of range for rank {rank}")
    return dim % n


def axes(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Axes counted from the front, in the order given; None and [] mean all."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    return [axis(d, rank) for d in ([dims] if isinstance(dims, int) else dims)]


def split_axis(op: str, rank: int) -> int:
    """The axis that `vsplit`, `hsplit` or `dsplit` splits; `hsplit` of a tensor of one axis splits that."""
    return {"vsplit": 0, "hsplit": min(rank - 1, 1), "dsplit": 2}[op]


def squeezed(sizes: Sequence[Dim], dims: Sequence[int], result: Sequence[Dim]) -> list[int]:
    """Which of these axes `squeeze` drops, by the shape it gives.

    torch drops an axis that was 1 at the trace, and the graph holds where it is: s0//2 of a size traced as 3.
    """
    choices = itertools.combinations(sorted(dims, key=lambda d: sizes[d] != 1), len(sizes) - len(result))
    return sorted(next(c for c in choices if [s for i, s in enumerate(sizes) if i not in c] == list(result)))


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that numpy's rules give; where two unequal dimensions meet, the one that is not 1, as far as is known.

    >>> from ir.dims import minimum, symbol; n = symbol("n"); most_one = minimum(1, n)
    >>> broadcast([n, n, most_one], [n + 1, 3, n]) == (n, 3, n)
    True
    """
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, start=rank - len(shape)):
            if result[i] == 1 or (d != 1 and d != result[i] and _gives_way(result[i], d)):
                result[i] = d
    return tuple(result)


def runtime_broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that numpy's rules give at run time, where any of two sizes may turn out to be 1.

    >>> from ir.dims import evaluate, symbol; n, m = symbol("n"), symbol("m")
    >>> (size,) = runtime_broadcast([n], [m])
    >>> [evaluate(size, {"n": a, "m": b}) for a, b in [(1, 5), (5, 1), (1, 0), (0, 1), (3, 3)]]
    [5, 5, 0, 0, 3]
    """
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, start=rank - len(shape)):
            result[i] = _runtime_size(result[i], d)
    return tuple(result)


def _runtime_size(d: Dim, other: Dim) -> Dim:
    both_open = not isinstance(d, int) and not isinstance(other, int) and d != other
    if not both_open or _gives_way(d, other) or _gives_way(other, d):
        return broadcast([d], [other])[0]
    return maximum(d, other) * minimum(d, other, 1)


def _gives_way(d: Dim, other: Dim) -> bool:
    """Whether a dimension is repeated to another one: to a number, to 0, or since it is 1 at the most itself."""
    if isinstance(d, int) or isinstance(other, int):
        return not isinstance(d, int)
    most, others = bounds(d, {})[1], bounds(other, {})[1]
    return most > 0 and (most <= 1 or others <= 0)


def unsqueezed(shape: Sequence[Dim], axes: Sequence[int]) -> list[Dim]:
    """The shape with axes of size 1 put in, which count in the result; none is negative.

    >>> unsqueezed([5, 6], [0, 2])
    [1, 5, 1, 6]
    """
    result = list(shape)
    for axis in sorted(axes):
        result.insert(axis, 1)
    return result


def differ(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    """True of shapes that are provably not the same at any size; a negative number stands for an unknown one.

    >>> from ir.dims import symbol; n = symbol("n")
    >>> differ([n, 3], [n + 1, 3]), differ([n, 3], [2 * n, 3])
    (True, False)
    """
    if len(left) != len(right):
        return True
    gaps = (a - b for a, b in zip(left, right, strict=True) if not (isinstance(a, int) and a < 0))
    return any(isinstance(gap, int) and gap != 0 for gap in gaps)


def stretches(operands: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> bool:
    """True if the result repeats an operand along a size that is not 1 in itself, though it was in an example.

    >>> from ir.dims import symbol; n = symbol("n")
    >>> stretches([[n - 1], [n]], [n]), stretches([[1], [n]], [n])
    (True, False)
    """
    ends = [(d, r) for shape in operands for d, r in zip(shape[::-1], result[::-1], strict=False) if d != 1]
    return len(operands) > 1 and any(differ([d], [r]) for d, r in ends)


def ntuple(values: T | Sequence[T], n: int) -> list[T]:
    """A scalar or one-element list repeated to `n`; a list of n as it is.

    Raises:
        ValueError: the list has another length.
    """
    items: list[T] = list(values) if isinstance(values, (list, tuple)) else [values]  # type: ignore[list-item]
    if len(items) == 1:
        return items * n
    if len(items) != n:
        raise ValueError(f"{values} does not fit {n} spatial dimensions")
    return items


def same_pads(kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """The pads of padding="same" at stride 1: the odd one goes to the end (torch.nn.functional.conv1d)."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in totals]


def window_size(size: Dim, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool) -> Dim:
    """The number of windows of a convolution or pool (torch.nn.MaxPool2d's formula), symbolic sizes included.

    With ceil_mode a last window must start inside the input or its left padding. Of `(size + a) // stride` windows
    that reach no further than they may and `(size + b) // stride` that start there, it is the fewer: that of the
    smaller of a and b.
    """
    return floordiv(size + window_reach(kernel, stride, pads, dilation, ceil_mode), stride)


def window_reach(kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool) -> int:
    """What `window_size` adds to a size before it divides by the stride."""
    past = pads[1] - dilation * (kernel - 1) - 1
    return pads[0] + (stride - 1 + min(past + stride, 0) if ceil_mode else past + stride)


def ceil_overhang(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """How far the last window of ceil_mode reaches past the right padding, in elements."""
    count = window_size(size, kernel, stride, pads, dilation, True)
    assert isinstance(count, int)
    return max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - (size + pads[0] + pads[1]))


def invert(permutation: Sequence[int]) -> list[int]:
    """The inverse permutation."""
    result = [0] * len(permutation)
    for i, p in enumerate(permutation):
        result[p] = i
    return result
