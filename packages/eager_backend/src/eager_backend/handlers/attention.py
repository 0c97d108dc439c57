"""Attention."""

import torch

from eager_backend.registry import rows

rows(torch._C._nn, "scaled_dot_product_attention")
rows(
    torch._C._VariableFunctions,
    "_native_multi_head_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu "
    "_transformer_encoder_layer_fwd",
)
