"""Attention: the fused operator.

It is written out as two products around a softmax: tract's own `sdpa` takes two to three times as long on the lengths
that vision models have, lays a causal diagonal differently where queries and keys differ in number, and wants the
scores' axes of a mask in full.
"""

from __future__ import annotations

import math

from ir.dims import quotient
from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::scaled_dot_product_attention")
def attention(h, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if dropout_p:
        h.refuse("dropout_p is not 0, and tract draws no random numbers; call model.eval()")
    q, k, v = (h.floating(x) for x in (query, key, value))
    if q.type.rank < 2 or q.type.shape[-1] == 0:
        h.refuse("the embedding dimension of the query has size 0")
    scale = h.static(q.type.shape[-1], "the width") ** -0.5 if scale is None else float(scale)
    heads = [x.type.shape[-3] for x in (q, k)] if enable_gqa and q.type.rank > 2 else [1, 1]
    group = quotient(*heads) if heads[0] != heads[1] else None
    if group is None:
        k, v = (_repeated(h, x, heads[0]) if heads[0] != heads[1] else x for x in (k, v))
    else:
        # the heads that share a key lie beside each other, over one axis more
        q = _split(h, q, heads[1], group)
        k, v = (h.unsqueeze(x, [x.type.rank - 2]) for x in (k, v))
    q, k, v = h.align(q, k, v)
    scores = h.emit("matmul", q if scale == 1 else h.emit("mul", q, scale), k, transposeB=True)
    seen = None
    if is_causal:
        lengths = scores.type.shape[-2:]
        below = h.emit("tract_core_trilu", h.expand(h.const(-math.inf, scores), lengths), 1, upper=True)
        scores = h.emit("add", scores, below)
    elif attn_mask is not None:
        mask, seen = _added(h, attn_mask, scores)
        if group is not None and mask.type.rank > 2:
            mask, seen = (_split(h, m, heads[1], group) for m in (mask, seen))
        scores = h.emit("add", scores, mask)
    y = h.emit("matmul", h.emit("softmax", scores, axes=[scores.type.rank - 1]), v)
    y = y if seen is None else h.emit("mul", y, seen)  # quicker than a select, and NaN among the values stays NaN
    return h.cast(h.reshape(y, h.out.shape), query.type.dtype)


def _repeated(h, x, heads):
    """As many heads as the query has, each in the place of those that share it: how many those are a run tells."""
    axis = x.type.rank - 3
    own, all_heads = (h.tensor(n, DType.int64) for n in (x.type.shape[axis], heads))
    place, _ = h.floor_division(h.emit("mul", h.positions(heads), own), all_heads)
    return h.take(x, place, axis)


def _split(h, x, heads, group):
    """[..., heads * group, a, b] as [..., heads, group, a, b]; an axis of size 1 serves all heads."""
    *batch, all_heads, a, b = x.type.shape
    return h.reshape(x, [*batch, *((1, 1) if all_heads == 1 else (heads, group)), a, b])


def _added(h, mask, scores):
    """The mask as numbers to add, and 0 for rows that see no key at all (torch has 0 there, not NaN), 1 for others."""
    mask = h.unsqueeze(mask, [0]) if mask.type.rank == 1 else mask
    keys, zero, closed = [mask.type.rank - 1], h.const(0, scores), h.const(-math.inf, scores)
    if mask.type.dtype is DType.bool:
        hidden = h.emit("not", h.emit("any_reduce", mask, axes=keys))
        mask = h.emit("select", mask, zero, closed)
    else:
        mask = h.cast(mask, scores.type.dtype)
        hidden = h.emit("all_reduce", h.emit("eq", mask, closed), axes=keys)
    return h.emit("select", hidden, zero, mask), h.cast(h.emit("not", hidden), scores.type.dtype)


@op("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(h, query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, attn_mask=None,
                    scale=None):  # fmt: skip
    # what torch.export makes of attention with grouped heads as well
    return [attention(h, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa=True), None]
