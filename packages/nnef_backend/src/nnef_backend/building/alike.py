"""Axes of a value along which its elements are equal, or one element is repeated, which tract sees as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnef_backend.building.steps import NnefValue


def repeated(
    op: str, old: Sequence[Any], known: frozenset[int], shape: Sequence[Any], attributes: Mapping[str, Any]
) -> frozenset[int]:
    """The axes of a result along which, to tract, one element is repeated: it sees through these operations.

    `old` is the operand's shape, and `known` are such axes of it.
    """
    axes = attributes.get("axes", ())
    if op in ("tract_core_broadcast", "tile"):
        new = len(shape) - len(old)
        kept = {a for a in range(new, len(shape)) if old[a - new] == shape[a] and a - new not in known}
        return frozenset(range(len(shape))) - kept - {a for a, s in enumerate(shape) if s == 1}
    if not known:
        return frozenset()
    if op == "transpose":
        return frozenset(i for i, a in enumerate(axes) if a in known)
    if op == "squeeze":
        return frozenset(i for i, a in enumerate(a for a in range(len(old)) if a not in axes) if a in known)
    if op == "unsqueeze":
        return frozenset(a for i, a in enumerate(a for a in range(len(shape)) if a not in axes) if i in known)
    if op != "reshape":
        return known
    first, count = attributes.get("axis_start", 0), attributes.get("axis_count", len(old))
    grown, middle = len(shape) - len(old), range(first, first + count)
    apart = {a if a < first else a + grown for a in known if a not in middle}
    whole = all(a in known or old[a] == 1 for a in middle)
    return frozenset(apart | set(range(first, first + count + grown) if whole else ()))


def together(operands: Sequence[tuple[Sequence[Any], frozenset[int]]], shape: Sequence[Any]) -> frozenset[int]:
    """The axes of a product or sum along which each operand repeats one element, given (shape, such axes) of each.

    tract makes one operation of a square, or of `x * (1 + erf(x))`, and sees through that. Numbers do not matter.
    """
    found = [axes if len(old) == len(shape) else frozenset() for old, axes in operands if any(s != 1 for s in old)]
    return frozenset.intersection(*found) if found else frozenset()


def still_alike(
    op: str, old: Sequence[Any], known: frozenset[int], shape: Sequence[Any], attributes: Mapping[str, Any]
) -> frozenset[int]:
    """The axes of a result along which all its elements are equal: as `repeated`, but of one element alone."""
    found, new = repeated(op, old, known, shape, attributes), len(shape) - len(old)
    if op not in ("tract_core_broadcast", "tile"):
        return found
    return frozenset(a for a in found if a < new or a - new in known or old[a - new] == 1)


def uniform(array: np.ndarray) -> frozenset[int]:
    """The axes of a constant along which all its elements are equal."""
    axes = range(array.ndim) if array.size else ()
    return frozenset(a for a in axes if (array == array.take([0], a)).all())


def alike(xs: Sequence[NnefValue], shape: Sequence[Any]) -> frozenset[int]:
    """The axes of a result of operands that broadcast along which all its elements are equal."""
    if any(x.type.shape is None for x in xs):
        return frozenset()
    return frozenset(
        axis
        for axis, size in enumerate(shape)
        if size != 1 and all(axis >= x.type.rank or x.type.shape[axis] == 1 or axis in x.alike for x in xs)
    )


def may_choose_constant(condition: NnefValue, one: NnefValue, other: NnefValue) -> bool:
    """True of a choice that tract may find to be a constant: the condition is one, and true or false all over."""
    uniform = all(s == 1 or a in condition.alike for a, s in enumerate(condition.type.shape))
    return condition.fixed and uniform and (one.fixed or other.fixed)


def product_alike(
    op: str, xs: Sequence[NnefValue], shape: Sequence[Any], attributes: Mapping[str, Any]
) -> frozenset[int]:
    """The axes of a contraction's result along which all its elements are equal: they are so in its operands."""
    if op == "matmul":
        batch, x, y = "".join(chr(ord("a") + i) for i in range(len(shape) - 2)), "xz", "zy"
        x, y = x[:: -1 if attributes.get("transposeA") else 1], y[:: -1 if attributes.get("transposeB") else 1]
        terms, result = [batch + x, batch + y], batch + "xy"
    elif op == "tract_core_einsum":
        before, _, result = attributes["expr"].partition("->")
        terms = before.split(",")
    else:
        return frozenset()
    if any(len(t) != x.type.rank for t, x in zip(terms, xs, strict=True)):
        return frozenset()

    def equal(letter: str) -> bool:
        found = [(x, t.index(letter)) for x, t in zip(xs, terms, strict=True) if letter in t]
        return all(axis in x.alike or x.type.shape[axis] == 1 for x, axis in found)

    return frozenset(a for a, letter in enumerate(result) if shape[a] != 1 and equal(letter))
