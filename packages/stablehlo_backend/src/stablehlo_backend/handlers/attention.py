"""Scaled dot-product attention."""

import math

from ir.types import DType
from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


@op("aten::scaled_dot_product_attention")
def scaled_dot_product_attention(h, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):  # fmt: skip
    if dropout_p:
        h.refuse("it drops out at random")
    dtype = h.out.dtype
    query, key, value = (wide(h, x) for x in (query, key, value))
    lead = h.out.shape[:-2]
    if enable_gqa:
        key, value = (repeated(h, x, query.type.shape[-3]) for x in (key, value))
    query, key, value = (h.broadcast(x, (*lead, *x.type.shape[-2:])) for x in (query, key, value))
    rank = query.type.rank
    axes = tuple(range(rank - 2))
    factor = 1 / math.sqrt(h.static(query.type.shape[-1], "the size of a head")) if scale is None else scale
    scores = h.emit("multiply", h.dot(query, key, (axes, axes), ((rank - 1,), (rank - 1,))), factor)
    masks = []
    if is_causal:
        masks.append(h.compare("GE", h.iota(scores.type.shape, rank - 2), h.iota(scores.type.shape, rank - 1)))
    if attn_mask is not None and attn_mask.type.dtype is DType.bool:
        masks.append(attn_mask)
    elif attn_mask is not None:
        scores = h.emit("add", scores, h.cast(attn_mask, scores.type.dtype))
    for mask in masks:
        scores = h.where(mask, scores, -math.inf)
    top = h.unsqueeze(h.reduce([scores], [-math.inf], [rank - 1], "maximum")[0], rank - 1)
    none = h.compare("EQ", top, -math.inf)  # a row that sees nothing is zeros
    powers = h.emit("exponential", h.emit("subtract", scores, h.where(none, 0, top)))
    total = h.unsqueeze(h.reduce([powers], [0], [rank - 1], "add")[0], rank - 1)
    weights = h.emit("divide", powers, h.where(none, 1, total))
    return h.cast(h.dot(weights, value, (axes, axes), ((rank - 1,), (rank - 2,))), dtype)


def repeated(h, x, heads):
    """Each head so often that there are as many as of the queries."""
    own = h.static(x.type.shape[-3], "the number of heads")
    shape = (*x.type.shape[:-2], h.static(heads, "the number of heads") // own, *x.type.shape[-2:])
    spread = h.broadcast(x, shape, [i + (i > x.type.rank - 3) for i in range(x.type.rank)])
    return h.flat(spread, x.type.rank - 3, x.type.rank - 2)
