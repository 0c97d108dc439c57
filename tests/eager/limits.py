"""Cases of the table that the eager target cannot run, with the reason; strict."""

LIMITS: dict[str, str] = {}

# Handlers that no case of the table reaches on this target: tests/reached.py. None is to be added.
WITHOUT_CASE = [
    "aten::_native_multi_head_attention",
    "aten::_print",
    "aten::_scaled_dot_product_attention_math",
    "aten::_transformer_encoder_layer_fwd",
    "aten::_upsample_bicubic2d_aa",
    "aten::atleast_1d",
    "aten::binomial",
    "aten::conj",
    "aten::conj_physical",
    "aten::detach",
    "aten::matrix_exp",
    "aten::poisson",
    "aten::positive",
    "aten::resolve_conj",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "higher_order::associative_scan",
]
