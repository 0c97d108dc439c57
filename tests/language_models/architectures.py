"""Small configurations of decoders: what each of transformers' architectures wants to be small and whole."""

from __future__ import annotations

from typing import Any

from tests.language_models.checkpoints import LLAMA, SIZES

_HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
           "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}  # fmt: skip
_ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": LLAMA,
    "Mistral": {**LLAMA, "sliding_window": 8},
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 8},
    "Gemma": {**LLAMA, "head_dim": 8},
    "Gemma2": {**LLAMA, "head_dim": 8, **_WINDOWS, "query_pre_attn_scalar": 8},
    "Gemma3": {**LLAMA, "head_dim": 8, **_WINDOWS},
    "Phi": LLAMA,
    "Phi3": {**LLAMA, "sliding_window": 8},
    "GPT2LMHeadModel": {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GPTNeoX": {**SIZES, **_HEADS, "max_position_embeddings": 128},
    "GPTJ": {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128},
    "GPTNeo": {**SIZES, "hidden_size": 32, "num_layers": 2, "num_heads": 4, 
               "attention_types": [[["global", "local"], 1]], "window_size": 8, "max_position_embeddings": 128},
    "GPTBigCode": {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "CodeGen": {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128},
    "Falcon": {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
               "new_decoder_architecture": True, "num_kv_heads": 2},
    "Bloom": {**SIZES, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "OPT": {**SIZES, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 128},
    "Mpt": {**SIZES, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "Starcoder2": {**LLAMA, "sliding_window": 8},
    "StableLm": LLAMA,
    "Granite": LLAMA,
    "Olmo": LLAMA,
    "Olmo2": LLAMA,
    "Olmo3": {**LLAMA, **_WINDOWS},
    "Cohere": LLAMA,
    "Cohere2": {**LLAMA, **_WINDOWS},
    "SmolLM3": LLAMA,
    "Glm4": {**LLAMA, "head_dim": 8},
    "Exaone4": {**LLAMA, "head_dim": 8, **_WINDOWS},
    "Ministral": {**LLAMA, "head_dim": 8, **_WINDOWS},
    "Nemotron": {**LLAMA, "head_dim": 8},
    "HunYuanDenseV1": {**LLAMA, "head_dim": 8},
    "Ernie4_5": {**LLAMA, "head_dim": 8},
    "Mixtral": {**LLAMA, **_ROUTED},
    "Qwen2Moe": {**LLAMA, **_EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3Moe": {**LLAMA, **_EXPERTS, "head_dim": 8},
    "Olmoe": {**LLAMA, **_EXPERTS},
    "Phimoe": {**LLAMA, **_ROUTED},
    "GraniteMoe": {**LLAMA, **_ROUTED},
    "DeepseekV3": {**LLAMA, **_LATENT, "num_key_value_heads": 4},
    "GptOss": {**LLAMA, **_ROUTED, "head_dim": 8, **_WINDOWS},
    "Mamba": {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "Mamba2": {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "head_dim": 8, "num_heads": 8,
               "n_groups": 1, "chunk_size": 8},
    "FalconMamba": {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "Jamba": {**LLAMA, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1,
              "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 4, "mamba_dt_rank": 4,
              "use_mamba_kernels": False},
    "Lfm2": {**LLAMA, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "Qwen3Next": {**LLAMA, **_EXPERTS, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                  "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
                  "linear_value_head_dim": 8, "shared_expert_intermediate_size": 32},
    "Bamba": {**LLAMA, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
              "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 8},
    "FalconH1": {**LLAMA, "head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
                 "mamba_d_ssm": 64, "mamba_chunk_size": 8},
}  # fmt: skip
