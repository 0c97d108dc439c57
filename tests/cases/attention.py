"""Attention: the fused operator in its forms, torch's modules, and what is written by hand around them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import bf16, boolean, f16, f32, family, i64, inf, mod, nan, row

sdpa = F.scaled_dot_product_attention
Q, KV = f32("B", 2, "S", 4), f32("B", 2, "T", 4)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -inf).softmax(-1) @ v


def split_heads(x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    q, k, v = x.view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return sdpa(q, k, v).transpose(1, 2).reshape(batch, length, 8)


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def rotary(x: Tensor) -> Tensor:
    position = torch.arange(x.shape[-2], dtype=torch.float32)
    frequency = 1.0 / 10000 ** (torch.arange(0, 4, 2, dtype=torch.float32) / 4)
    angle = torch.outer(position, frequency).repeat(1, 2)
    return x * angle.cos() + rotate_half(x) * angle.sin()


def rotary_complex(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.01])
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    slope = torch.tensor([0.5, 0.25])[:, None, None]
    return sdpa(q, k, v, attn_mask=-slope * distance.abs())


class Cached(nn.Module):
    """One decoding step: the new key is written into a buffer of fixed length, at a given place."""

    keys: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 6, 4))

    def forward(self, query: Tensor, key: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(1, position, key)
        mask = torch.arange(6) <= position
        return sdpa(query, self.keys, self.keys, attn_mask=mask)


def transformer_layer(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)  # type: ignore[arg-type]


CASES = family(
    __name__,
    row("sdpa", lambda q, k, v: sdpa(q, k, v), Q, KV, KV),
    row("sdpa_3d", lambda q, k, v: sdpa(q, k, v), f32("B", "S", 4), f32("B", "T", 4), f32("B", "T", 4)),
    row("sdpa_2d", lambda q, k, v: sdpa(q, k, v), f32("S", 4), f32("T", 4), f32("T", 4)),
    row("sdpa_5d", lambda q, k, v: sdpa(q, k, v), *(f32("B", 2, 3, "S", 4),) * 3),
    row("sdpa_self", lambda x: sdpa(x, x, x), Q),
    row("sdpa_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), Q, Q, Q),
    row("sdpa_causal_longer_keys", lambda q, k, v: sdpa(q, k, v, is_causal=True), Q, KV, KV),
    row("sdpa_causal_3d", lambda q, k, v: sdpa(q, k, v, is_causal=True), *(f32("B", "S", 4),) * 3),
    row("sdpa_scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), Q, KV, KV),
    row("sdpa_causal_scale", lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=1.0), Q, Q, Q),
    row("sdpa_float_mask", lambda q, k, v, m: sdpa(q, k, v, m), Q, KV, KV, f32("S", "T")),
    row("sdpa_float_mask_4d", lambda q, k, v, m: sdpa(q, k, v, m), Q, KV, KV, f32("B", 1, "S", "T")),
    row("sdpa_infinite_mask", lambda q, m: sdpa(q, q, q, m), f32(2, 3, 4), f32(value=[0.0, -inf, 0.0])),
    row("sdpa_bool_mask", lambda q, k, v, m: sdpa(q, k, v, m | True), Q, KV, KV, boolean("S", "T")),
    row(
        "sdpa_padding_mask",
        lambda q, k, v, x: sdpa(q, k, v, (x > x.amin(-1, keepdim=True))[:, None, None, :]),
        *(Q, KV, KV, f32("B", "T")),
    ),
    # A row of keys that are all hidden is zero in torch (and nan where softmax is written by hand).
    row(
        "sdpa_row_hidden",
        lambda q, m: sdpa(q, q, q, m),
        f32(2, 2, 4),
        boolean(value=[[True, False], [False, False]]),
    ),
    row("sdpa_wide_values", lambda q, k, v: sdpa(q, k, v), Q, KV, f32("B", 2, "T", 6)),
    row(
        "sdpa_of_one_head_and_repeated_keys",
        lambda q, k: sdpa(q, k.repeat_interleave(4, 1), k.repeat_interleave(4, 1)),
        *(f32("B", 1, "S", 4), f32("B", 2, 5, 4)),
    ),
    row("sdpa_gqa", lambda q, k, v: sdpa(q, k, v, enable_gqa=True), f32("B", 4, "S", 4), KV, KV),
    row(
        "sdpa_gqa_causal",
        lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        f32("B", 4, "S", 4),
        Q,
        Q,
    ),
    row(
        "sdpa_gqa_no_queries", lambda q, k: sdpa(q[:, :, q.shape[2] :], k, k, enable_gqa=True), f32("B", 4, "S", 4), KV
    ),
    row("sdpa_no_features", lambda q, v: sdpa(q, q, v), f32("B", 2, "S", 0), f32("B", 2, "S", 3)),
    row("sdpa_one_query_head", lambda q, k, v: sdpa(q, k, v), f32("B", 1, "S", 4), KV, KV),
    row("sdpa_one_key_head", lambda q, k, v: sdpa(q, k, v), Q, f32("B", 1, "T", 4), f32("B", 1, "T", 4)),
    row(
        "flash_log_sums",
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True),
        *(Q,) * 3,
    ),
    row("sdpa_broadcast_batch", lambda q, k, v: sdpa(q, k, v), Q, f32(1, 2, "T", 4), f32(1, 2, "T", 4)),
    row("sdpa_f16", lambda q, k, v: sdpa(q, k, v), *(f16("B", 2, "S", 4),) * 3),
    row("sdpa_bf16_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), *(bf16("B", 2, "S", 4),) * 3),
    row("sdpa_one_query", lambda q, k, v: sdpa(q, k, v), f32("B", 2, 1, 4), KV, KV),
    row("by_hand_causal", by_hand, Q, Q, Q),
    row("split_heads", split_heads, f32("B", "S", 24)),
    row("alibi", alibi, Q, Q, Q),
    row("rotary", rotary, Q),
    row("rotary_complex", rotary_complex, Q),
    row(
        "rotary_given",
        lambda x, c, s: x * c + rotate_half(x) * s,
        *(Q, f32("S", 4), f32("S", 4)),
    ),
    mod("cache_written", Cached, f32(2, 1, 4), f32(2, 1, 4), i64(value=[2])),
    mod("multihead", lambda: nn.MultiheadAttention(8, 2, batch_first=True), *(f32("B", "S", 8),) * 3),
    mod("multihead_sequence_first", lambda: nn.MultiheadAttention(8, 2), *(f32("S", "B", 8),) * 3),
    mod(
        "multihead_cross",
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=5, bias=False),
        *(f32("B", "S", 8), f32("B", "T", 6), f32("B", "T", 5)),
    ),
    mod("encoder_layer", transformer_layer, f32("B", "S", 8)),
    mod(
        "encoder_layer_gelu_norm_first",
        lambda: transformer_layer(activation="gelu", norm_first=True),
        f32("B", "S", 8),
    ),
    mod(
        "encoder",
        lambda: nn.TransformerEncoder(transformer_layer(), 2, enable_nested_tensor=False),
        f32("B", "S", 8),
    ),
    mod(
        "decoder_layer",
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        *(f32("B", "S", 8), f32("B", "T", 8)),
    ),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row(
        "odd_sdpa",
        lambda q, k, v: sdpa(q, k, v),
        f32("B", 2, 3, 4),
        f32("B", 2, 3, 4),
        f32(1, 1, 3, 4, value=[[[[0.0], [nan], [inf]]]]),
    ),
    row(
        "odd_sdpa_hidden",
        lambda q, v: sdpa(q, q, v, is_causal=True),
        f32(1, 2, 3, 4),
        f32(1, 2, 3, 4, value=[[[[0.0], [-0.0], [1.0]]]]),
    ),
    row("empty_sdpa", lambda q, k: (sdpa(q, k, k), sdpa(q, k, k, is_causal=True)), f32(0, 2, 3, 4), f32(0, 2, 5, 4)),
    row("empty_queries", lambda q, k: sdpa(q, k, k), f32(2, 2, 0, 4), f32(2, 2, 5, 4)),
    row("size_one_heads", lambda q, k, v: sdpa(q, k, v), f32("B", 1, "S", 1), f32("B", 1, "T", 1), f32("B", 1, "T", 1)),
    row("size_one_mask", lambda q, k, m: sdpa(q, k, k, m), Q, KV, boolean(1, 1, value=True)),
)
