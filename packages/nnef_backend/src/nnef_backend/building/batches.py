"""Permutations behind products of matrices whose batch comes last: tract would have the product write them itself.

tract moves permutations into a product where that leaves fewer of them. Its kernel `mmm_f32_16x5` for x86 takes a
column stride of 64 bytes for a tile without gaps, whatever the row stride is (`cmp rbx, 64` in its `store`): with a
batch of 16 innermost in the result it writes over other elements, and leaves some unwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ir.dims import Dim, product
from ir.types import DType
from nnef_backend.building.hiding import maker
from nnef_backend.building.steps import NnefValue

_TILE = 16  # elements of 4 bytes in the stride that the kernel misreads


def of(op: str, operands: Sequence[Any], shape: Sequence[Dim], attributes: Mapping[str, Any]) -> frozenset[int]:
    """The axes of a result over which a product of matrices goes that it is computed of, one element at a time."""
    rank = len(shape)
    if op == "matmul":
        return frozenset(a for a in range(rank - 2) if shape[a] != 1)
    if op == "tract_core_einsum":
        terms, _, result = attributes["expr"].partition("->")
        return frozenset(i for i, c in enumerate(result) if terms.count(c) > 1 and shape[i] != 1)
    if not any(x.batches for x in operands):
        return frozenset()
    if op == "transpose":
        return frozenset(i for i, a in enumerate(attributes["axes"]) if a in operands[0].batches)
    return frozenset[int]().union(*(x.batches for x in operands if _same_but_repeated(x.type.shape, shape)))


def _same_but_repeated(shape: Sequence[Dim] | None, result: Sequence[Dim]) -> bool:
    return (
        shape is not None and len(shape) == len(result) and all(a in (1, b) for a, b in zip(shape, result, strict=True))
    )


def permute(h: Any, x: NnefValue, perm: Sequence[int]) -> NnefValue:
    """`x` with its axes permuted; a batch that comes last is moved past the matrices as past one axis.

    tract moves a permutation neither over the reshape that joins rows and columns nor over the one that parts them. Of
    two permutations in a row one is left: tract wrongly merges two products of an operand in both forms.
    """
    if (earlier := maker(h, x)) is not None and earlier.op == "transpose":
        x, perm = earlier.inputs[0], [earlier.attributes["axes"][p] for p in perm]
    shape, rank = x.type.shape, x.type.rank
    batches = x.batches if h.target.tract and x.type.dtype is DType.float32 else frozenset()
    inner = next((i for i, a in enumerate(reversed(range(rank))) if a in batches), rank)  # rows and columns
    split = rank - inner
    last = perm[rank - next((i for i, a in enumerate(reversed(perm)) if a >= split), rank) :]
    if inner < 2 or not writes_batch_last([shape[a] for a in last]):
        return _permuted(h, x, perm)
    joined = h.reshape(x, [*shape[:split], product(shape[split:])])
    before = [a for a in perm if a < split and a not in last]
    moved = _permuted(h, joined, [*before, split, *last])
    order = [*before, *range(split, rank), *last]
    return _permuted(h, h.reshape(moved, [shape[a] for a in order]), [order.index(a) for a in perm])


def writes_batch_last(sizes: Sequence[Dim]) -> bool:
    """True if some of the last of these sizes may be 16 elements together."""
    strides = [product(sizes[i:]) for i in range(len(sizes))]
    return any(s == _TILE or not isinstance(s, int) for s in strides)


def _permuted(h: Any, x: NnefValue, perm: Sequence[int]) -> NnefValue:
    if list(perm) == list(range(len(perm))):
        return x
    made: NnefValue = h.emit("transpose", x, axes=list(perm), shape=[x.type.shape[p] for p in perm])
    return made
