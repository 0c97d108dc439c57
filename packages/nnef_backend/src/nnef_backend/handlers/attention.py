"""Attention: the fused operator."""

from __future__ import annotations

import math

from ir.dims import product
from ir.types import DType
from nnef_backend.registry import register as op


@op("aten::scaled_dot_product_attention")
def attention(h, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if dropout_p:
        h.refuse("tract has no dropout")
    q, k, v = (_ranked(h, x) for x in (query, key, value))
    k, v = (_over_batch(h, x, q) for x in (k, v))
    lengths = q.type.shape[-2], k.type.shape[-2]
    if is_causal and lengths[0] != lengths[1]:
        # tract lays the diagonal to the end of both, torch to their beginning
        full = h.emit("tract_core_broadcast", True, shape_=list(lengths), dtype=DType.bool, shape=lengths)
        attn_mask = h.emit("tract_core_trilu", full, 0, upper=False, shape=lengths)
        is_causal = False
    mask = [] if attn_mask is None else [_added(h, attn_mask, q, lengths)]
    shape = (*q.type.shape[:-1], v.type.shape[-1])
    short = "f32" if q.type.dtype is DType.float16 else q.type.dtype.short
    y = h.emit("tract_transformers_sdpa", q, k, v, *mask, scale=None if scale is None else float(scale),
               datum_type=q.type.dtype, acc_datum_type=short, is_causal=is_causal, shape=shape)  # fmt: skip
    return h.reshape(y, h.out.shape)


def _ranked(h, x):
    """Three or four axes, as tract has it."""
    *batch, heads, length, width = (1,) * max(0, 3 - x.type.rank) + x.type.shape
    return h.reshape(x, [product(batch), heads, length, width] if batch else [heads, length, width])


def _over_batch(h, x, q):
    return h.expand(x, [q.type.shape[0], *x.type.shape[1:]]) if x.type.rank == 4 else x


def _added(h, mask, q, lengths):
    """The mask as numbers to add, the scores' two axes in full: tract takes no other."""
    if mask.type.dtype is DType.bool:
        mask = h.emit("select", mask, h.const(0, q), h.const(-math.inf, q))
    batch = mask.type.shape[:-2]
    mask = h.expand(h.cast(mask, q.type.dtype), [*batch, *lengths])
    return h.reshape(mask, [product(batch[:-1]), batch[-1], *lengths]) if len(batch) > 2 else mask
