"""Attention: one operator, as ONNX's Attention from opset 23 on, in products and softmax below; rotary embeddings."""

from __future__ import annotations

import math

import numpy as np

from ir.dims import Expr, call, floordiv
from ir.types import DType
from onnx_backend.handlers.norm import dropped
from onnx_backend.registry import register as op


@op("aten::scaled_dot_product_attention")
def sdpa(h, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if query.type.dtype is DType.bfloat16:  # few kernels take it: one cast for all rather than one for each node
        query, key, value = (h.cast(x, DType.float32) for x in (query, key, value))
        attn_mask = (
            attn_mask
            if attn_mask is None or attn_mask.type.dtype is DType.bool
            else h.cast(attn_mask, query.type.dtype)
        )
    if h.has("Attention") and not dropout_p and _fits(query, key, value):
        y = _native(h, query, key, value, attn_mask, is_causal, scale)
    else:
        y = _by_hand(h, query, key, value, attn_mask, dropout_p, is_causal, scale)
    return h.cast(y, h.out.dtype)


@op("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash(h, query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
    if not h.wanted(1):
        return sdpa(h, query, key, value, attn_mask, dropout_p, is_causal, scale), None
    work = h.results[1].dtype
    query, key, value = (h.cast(x, work) for x in (query, key, value))
    attn_mask = attn_mask if attn_mask is None or attn_mask.type.dtype is DType.bool else h.cast(attn_mask, work)
    sums = []
    y = _by_hand(h, query, key, value, attn_mask, dropout_p, is_causal, scale, sums)
    return h.cast(y, h.out.dtype), *sums


@op("ir::rotary_embedding")
def rotary_embedding(h, input, cos, sin, interleaved):
    batch, _, length, width = input.type.shape
    half = cos.type.shape[-1]
    # onnxruntime 1.31 takes no batch of one for all
    cos, sin = (
        h.shared(("rotary table", id(t.value), batch), lambda t=t: h.expand(t, (batch, length, half)))
        for t in (cos, sin)
    )
    return h.emit(
        "RotaryEmbedding", input, cos, sin, interleaved=int(interleaved) or None,
        rotary_embedding_dim=2 * half if 2 * half != width else None,
    )  # fmt: skip


# -- opset 23 ----------------------------------------------------------------------------------------------------------


def _fits(q, k, v):
    """True where nothing is broadcast but heads in whole groups."""
    shapes = [x.type.shape for x in (q, k, v)]
    if len({len(s) for s in shapes}) != 1 or len(shapes[0]) not in (3, 4):
        return False
    heads = [s[1] if len(s) == 4 else 1 for s in shapes]
    if len({s[0] for s in shapes}) != 1 or heads[1] != heads[2] or not all(isinstance(n, int) for n in heads):
        return False
    return heads[1] != 0 and heads[0] % heads[1] == 0


def _native(h, q, k, v, mask, causal, scale):
    heads = {"q_num_heads": 1, "kv_num_heads": 1} if q.type.rank == 3 else {}
    if mask is not None:
        mask = _whole_mask(h, mask, q.type.rank, q.type.shape[-2], k.type.shape[-2])
    if isinstance(scale, Expr):
        q, scale = h.emit("Mul", q, h.tensor(scale, q)), 1.0
    return h.emit(
        "Attention", q, k, v, mask, is_causal=int(causal) or None, scale=scale, shape=h.out.shape, dtype=q.type.dtype,
        **heads,
    )  # fmt: skip


def _whole_mask(h, mask, rank, queries, keys):
    """The mask with both its last axes written out, as onnxruntime wants it, and a place for the heads."""
    shape = (1,) * (2 - mask.type.rank) + mask.type.shape
    whole = (*shape[:-2], queries, keys)
    if whole != mask.type.shape:
        mask = h.shared(("whole mask", id(mask.value), whole), lambda: h.expand(mask, whole))
    return h.unsqueeze(mask, [1]) if rank == mask.type.rank == 3 else mask


# -- in products and softmax -------------------------------------------------------------------------------------------


def _by_hand(h, q, k, v, mask, dropout, causal, scale, sums=None):
    """Attention; where a list is given, the logarithms of softmax's sums are put into it."""
    groups = _groups(q, k)
    shape, dtype = q.type.shape, q.type.dtype
    if scale is None:
        width = shape[-1]
        known = isinstance(width, int)  # products of no features are 0, by any scale
        scale = 1 / math.sqrt(max(width, 1)) if known else call("truediv", 1.0, call("sqrt", width))
    q = q if scale == 1 else h.emit("Mul", q, h.tensor(scale, q))
    inner = (k.type.shape[1], floordiv(shape[1], k.type.shape[1]) * shape[2]) if groups else ()
    if groups:  # the queries of a group lie behind each other, so that no key is repeated
        q = _regroup(h, q, inner)
    rank = k.type.rank
    scores = h.emit("MatMul", q, h.transpose(k, [*range(rank - 2), rank - 1, rank - 2]))
    if groups:
        scores = _regroup(h, scores, shape[1:3])
    bias = _causal(h, shape[-2], k.type.shape[-2], dtype) if causal else mask
    hidden = None
    if mask is not None:
        bias = mask if mask.type.dtype is not DType.bool else h.shared(
            ("mask", id(mask.value), dtype), lambda: h.emit("Where", mask, h.const(0, dtype), h.const(-np.inf, dtype))
        )  # fmt: skip
        hidden = h.shared(("hidden", id(mask.value), dtype), lambda: _hidden(h, bias))
    scores = scores if bias is None else h.emit("Add", scores, h.cast(bias, dtype))
    if sums is not None:
        sums.append(h.reduce("ReduceLogSumExp", scores, [rank - 1]))
    weights = h.emit("Softmax", scores, axis=-1)
    if dropout:
        weights = h.emit("Mul", weights, 0) if dropout == 1 else dropped(h, weights, dropout)[0]
    if groups:
        weights = _regroup(h, weights, inner)
    y = h.emit("MatMul", weights, v, shape=(shape[0], *inner, v.type.shape[-1]) if groups else h.out.shape)
    y = _regroup(h, y, shape[1:3]) if groups else y
    return y if hidden is None else h.emit("Where", hidden, h.const(0, dtype), y)


def _groups(q, k):
    """True where several heads of queries share a head of keys; one head on either side is broadcast."""
    heads = [x.type.shape[1] for x in (q, k) if x.type.rank == 4]
    return len(heads) == 2 and heads[0] != heads[1] and 1 not in heads


def _regroup(h, x, inner):
    """Heads and rows dealt out anew; what the other two axes hold is none of its business."""
    shape = (x.type.shape[0], *inner, x.type.shape[-1])
    if any(map(h.may_be_empty, shape)):  # a 0 has no -1 beside it
        return h.reshape(x, shape)
    return h.emit("Reshape", x, [0, inner[0], -1, 0], shape=shape)


def _hidden(h, bias):
    """The rows that see nothing: softmax makes them nan, torch zero."""
    return h.emit("Equal", h.reduce("ReduceMax", bias, [bias.type.rank - 1], keepdim=True), -np.inf)


def _causal(h, queries, keys, dtype):
    """Minus infinity above the diagonal."""

    def make():
        if isinstance(queries, int) and isinstance(keys, int):
            return h.cast(h.constant(np.triu(np.full((queries, keys), -np.inf, np.float32), 1)), dtype)
        if h.has("Trilu"):
            full = h.full((queries, keys), -np.inf, DType.float32)
            return h.cast(h.emit("Trilu", full, h.const(1, DType.int64), upper=1), dtype)
        above = h.emit("Less", h.unsqueeze(h.steps(queries), [1]), h.steps(keys))
        return h.emit("Where", above, h.const(-np.inf, dtype), h.const(0, dtype))

    return h.shared(("causal", queries, keys, dtype), make)
