"""transformers over text, by class: encoders, decoders without a cache, encoders with decoders, state spaces."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..entry import Entry
from .rows import Draw, ids, kept, numbers, row
from .shrink import build

_TOKENS = ids("batch", "sequence")
_TEXT = {"input_ids": _TOKENS, "attention_mask": kept("batch", "sequence")}
_IDS = {"input_ids": _TOKENS}
_PAIR = _TEXT | {"decoder_input_ids": ids("batch", "target")}  # without a mask some of them export no graph
_FIXED = {"input_ids": ids("batch", 12), "attention_mask": kept("batch", 12)}


def transformer(name: str, draws: Mapping[str, Draw], label: str = "", **given: Any) -> tuple[str, Entry]:
    """A row for a class of transformers; fields of its configuration that the general rule would get wrong are given.

    `label` stands for the class where it has several rows.
    """
    return row(label or name.removesuffix("Model").lower(), partial(build, name, **given), draws)


# Classes whose small configuration needs nothing said.
_ENCODERS = (
    "Electra Albert Deberta DebertaV2 MPNet SqueezeBert ConvBert XLM XLNet RemBert RoFormer Nystromformer "
    "Longformer FNet Yoso Mra IBert Camembert Ernie MegatronBert XLMRoberta ModernBert EuroBert NomicBert Flaubert "
    "Luke Splinter RoCBert LayoutLM Tapas Data2VecText XLMRobertaXL RobertaPreLayerNorm Gte JinaEmbeddingsV3"
)
_DECODERS = (
    "OPT Bloom GPTNeoX Falcon Mpt Gemma Gemma2 Gemma3Text Phi Phi3 StableLm Cohere Cohere2 Olmo Olmo2 Olmo3 "
    "Starcoder2 Qwen3 Glm Glm4 Granite Persimmon BioGpt XGLM CTRL GPTBigCode OpenAIGPT Helium "
    "SmolLM3 Exaone4 DiffLlama BitNet Apertus Arcee Lfm2 NanoChat GPTNeoXJapanese ModernBertDecoder SeedOss "
    "VaultGemma Doge Ernie4_5"
)
# Their code loops over the tokens, or over pieces of them that it counts: the length is fixed.
_LOOPS = "Funnel Canine RecurrentGemma"
_LOOPS_WITHOUT_MASK = "Rwkv xLSTM"
_BOTH = "T5 MT5 UMT5 Bart MBart Pegasus PegasusX Marian Blenderbot M2M100 LED ProphetNet FSMT PLBart Mvp"

_ROWS = (
    *(transformer(f"{n}Model", _IDS if n == "FNet" else _TEXT) for n in f"{_ENCODERS} {_DECODERS}".split()),
    *(transformer(f"{n}Model", _FIXED) for n in _LOOPS.split()),
    *(transformer(f"{n}Model", {"input_ids": _FIXED["input_ids"]}) for n in _LOOPS_WITHOUT_MASK.split()),
    *(transformer(f"{n}Model", _PAIR) for n in (*_BOTH.split(), "SwitchTransformers")),
    transformer(
        "LongT5Model", _PAIR | {"input_ids": ids("batch", "passage"), "attention_mask": kept("batch", "passage")}
    ),
    transformer("BertGenerationEncoder", _TEXT),
    transformer("DPRQuestionEncoder", _TEXT),
    transformer("MobileBertModel", _TEXT, true_hidden_size=32, intra_bottleneck_size=32, embedding_size=32),
    transformer("EsmModel", _TEXT, vocab_size=64, pad_token_id=1, mask_token_id=2, position_embedding_type="rotary"),
    transformer("XmodModel", _TEXT, default_language="en_XX", languages=["en_XX"]),
    transformer("BigBirdModel", _TEXT, label="bigbird_full", attention_type="original_full"),
    transformer(
        "BigBirdModel",
        {"input_ids": ids("batch", 128), "attention_mask": kept("batch", 128)},
        label="bigbird_sparse",
        block_size=8,
        num_random_blocks=2,
        max_position_embeddings=256,
    ),
    transformer(
        "ReformerModel",
        {"input_ids": ids("batch", 64)},
        axial_pos_embds=False,
        attn_layers=["local", "local"],
        local_attn_chunk_length=16,
    ),
    transformer(
        "PerceiverModel",
        {"inputs": numbers("batch", "sequence", 32)},
        num_latents=8,
        d_latents=32,
        num_blocks=1,
        num_self_attends_per_block=2,
    ),
    transformer("BigBirdPegasusModel", _PAIR),  # makes layers anew in its forward
    transformer("GPTNeoModel", _TEXT, attention_types=[[["global", "local"], 1]]),
    transformer("GPTJModel", _TEXT, rotary_dim=4),
    transformer("CodeGenModel", _TEXT, rotary_dim=4),
    transformer("NemotronModel", _TEXT, num_key_value_heads=2),
    transformer("MinistralModel", _TEXT, head_dim=8),
    transformer("HunYuanDenseV1Model", _TEXT, head_dim=8),
    transformer("MiniCPM3Model", _TEXT, num_key_value_heads=4),
    transformer("Mamba2Model", _TEXT, num_heads=8, n_groups=2, chunk_size=8, state_size=16),
    transformer("BambaModel", _TEXT, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, attn_layer_indices=[1]),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
