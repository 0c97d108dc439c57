"""Bags of embeddings: rows of a table, reduced by bag."""

from __future__ import annotations

from ir.types import DType
from onnx_backend.handlers.scatter import scatter_nd
from onnx_backend.registry import register as op


@op("aten::embedding_bag.padding_idx")
def embedding_bag_padded(h, weight, padding_idx=None, **arguments):
    """Here a negative padding index counts from the end, and None is none; everywhere else -1 is none."""
    rows = weight.type.shape[0]
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else h.static(rows, "rows") + padding_idx
    return embedding_bag(h, weight, padding_idx=padding, **arguments)


@op("aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::embedding_bag")
def embedding_bag(h, weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False,
                  per_sample_weights=None, include_last_offset=False, padding_idx=-1):  # fmt: skip
    """Mode 0 sums, 1 averages, 2 takes the maximum. A bag is a row of a 0/1 matrix over all positions."""
    bags = h.out.shape[0]
    (size,) = indices.type.shape
    offsets = h.cast(offsets, DType.int64)
    starts = h.slice(offsets, 0, 0, bags, size=bags) if include_last_offset else offsets
    places = h.range(0, size, size=size)
    begun = h.cast(h.emit("LessOrEqual", h.unsqueeze(starts, [1]), places), DType.int64)
    bag = h.emit("Sub", h.reduce("ReduceSum", begun, [0]), 1)
    inside = h.emit("Equal", h.unsqueeze(h.range(0, bags, size=bags), [1]), bag)
    padding = h.emit("Equal", indices, padding_idx) if padding_idx is not None and padding_idx >= 0 else None
    if padding is not None:
        inside = h.emit("And", inside, h.emit("Not", padding))
    rows = h.emit("Gather", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = h.emit("Mul", rows, h.unsqueeze(per_sample_weights, [1]))
    share = h.cast(inside, weight.type.dtype)
    filled = h.reduce("ReduceSum", share, [1], True)
    if mode == 2:
        lowest = h.const(float("-inf"), weight)
        each = h.emit("Where", h.unsqueeze(inside, [2]), rows, lowest)
        result = h.emit("Where", h.emit("Equal", filled, 0), h.const(0, weight), h.reduce("ReduceMax", each, [1]))
    else:
        result = summed(h, rows, bag, share, padding)
        result = h.emit("Div", result, h.emit("Max", filled, 1)) if mode == 1 else result
    return [result, None, None, None][: len(h.results)]


def summed(h, rows, bag, share, padding):
    """The sum of each bag; a product with the matrix would bring nan and infinity into every bag."""
    if h.opset < 16:
        return h.emit("MatMul", share, rows)
    if padding is not None:
        rows = h.emit("Where", h.unsqueeze(padding, [1]), h.const(0, rows), rows)
    empty = h.full(h.out.shape, 0, rows.type.dtype)
    return scatter_nd(h, empty, h.unsqueeze(bag, [1]), rows, accumulate=True)
