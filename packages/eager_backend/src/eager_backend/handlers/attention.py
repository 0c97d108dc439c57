"""Attention."""

from eager_backend.registry import rows
from ir.importer.torch_api import NN, VF

rows(NN, "scaled_dot_product_attention")
rows(
    VF,
    "_native_multi_head_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu "
    "_transformer_encoder_layer_fwd",
)
