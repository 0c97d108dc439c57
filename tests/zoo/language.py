"""Models of transformers, built from configurations: text, audio and CLIP's image tower.

Configurations are those of the published checkpoints where nothing else is said, with a smaller vocabulary:
the rows of an embedding table cost memory and time and add nothing. Models keep the default attention (sdpa)
and return their own ModelOutput.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, floats, images, padding_mask, tokens

_VOCABULARY = 1000
_SMALL_VOCABULARY = 64
_SIZES = {"batch": 3, "sequence": 32}
_OTHERS = ({"batch": 1, "sequence": 48}, {"batch": 5, "sequence": 9})
_BATCHES: tuple[Sizes, tuple[Sizes, Sizes]] = ({"batch": 2}, ({"batch": 1}, {"batch": 3}))

# From the vocabulary's size and whether the small variant is wanted.
Build = Callable[[int, bool], nn.Module]


def _bert(vocabulary: int, small: bool) -> nn.Module:
    from transformers import BertConfig, BertModel

    size: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=vocabulary, **(size if small else {})))


def _distilbert(vocabulary: int, small: bool) -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    size: dict[str, Any] = {"n_layers": 2, "dim": 32, "n_heads": 2, "hidden_dim": 64}
    return DistilBertModel(DistilBertConfig(vocab_size=vocabulary, **(size if small else {})))


def _gpt2(vocabulary: int, small: bool, cache: bool = False) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}
    size = size if small else {}
    # The default numbers of these two tokens lie outside the vocabulary.
    size |= {"bos_token_id": vocabulary - 1, "eos_token_id": vocabulary - 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, use_cache=cache, **size))


def _gpt2_cache(vocabulary: int, small: bool) -> nn.Module:
    """The same with its keys and values as a DynamicCache, which torch.export takes once it is a pytree."""
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    return _gpt2(vocabulary, small, cache=True)


def _llama(vocabulary: int, small: bool) -> nn.Module:
    """Four layers with grouped queries: eight heads share four of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (32, 2) if small else (256, 4)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _t5_encoder(vocabulary: int, small: bool) -> nn.Module:
    """The published t5-small, whose configuration is the class's default."""
    from transformers import T5Config, T5EncoderModel

    size: dict[str, Any] = {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=vocabulary, use_cache=False, **(size if small else {})))


def _text(name: str, build: Build, mask: bool = True) -> Entry:
    """Token numbers and, with `mask`, an attention mask, both as keywords; batch and sequence are dynamic."""

    def variant(small: bool) -> Variant:
        vocabulary = _SMALL_VOCABULARY if small else _VOCABULARY

        def inputs(sizes: Sizes) -> Inputs:
            given = {"input_ids": tokens(sizes, vocabulary)}
            return (), given | ({"attention_mask": padding_mask(sizes)} if mask else {})

        return Variant(lambda: build(vocabulary, small), inputs, _SIZES, _OTHERS)

    names = ("input_ids", "attention_mask") if mask else ("input_ids",)
    return entry(name, {argument: {0: "batch", 1: "sequence"} for argument in names}, variant)


def _whisper_encoder(small: bool) -> Variant:
    """The encoder of whisper-tiny, over 30 seconds of 80 mel bands (one second in the small variant)."""
    positions = 50 if small else 1500

    def build() -> nn.Module:
        from transformers import WhisperConfig, WhisperModel

        width, layers, heads = (32, 2, 2) if small else (384, 4, 6)
        config = WhisperConfig(
            vocab_size=64,
            d_model=width,
            encoder_layers=layers,
            encoder_attention_heads=heads,
            encoder_ffn_dim=4 * width,
            decoder_layers=1,
            decoder_attention_heads=heads,
            decoder_ffn_dim=width,
            max_source_positions=positions,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
        return WhisperModel(config).encoder

    def inputs(sizes: Sizes) -> Inputs:
        return (floats(sizes["batch"], 80, 2 * positions),), {}

    return Variant(build, inputs, *_BATCHES)


def _clip_vision(small: bool) -> Variant:
    """ViT-B/32, the class's default configuration."""
    side = 64 if small else 224

    def build() -> nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModel

        size: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": side,
        }
        return CLIPVisionModel(CLIPVisionConfig(**(size if small else {})))

    def inputs(sizes: Sizes) -> Inputs:
        return (), {"pixel_values": images(sizes["batch"], side, side)}

    return Variant(build, inputs, *_BATCHES)


def _wav2vec2(small: bool) -> Variant:
    """The base model with four of its twelve layers, over raw samples of any length."""

    def build() -> nn.Module:
        from transformers import Wav2Vec2Config, Wav2Vec2Model

        size: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "conv_dim": (16,) * 7,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        }
        layers = 2 if small else 4
        return Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=layers, **(size if small else {})))

    def inputs(sizes: Sizes) -> Inputs:
        return (floats(sizes["batch"], sizes["samples"]),), {}

    sizes = {"batch": 2, "samples": 8000}
    others = ({"batch": 1, "samples": 12345}, {"batch": 3, "samples": 5000})
    return Variant(build, inputs, sizes, others)


ENTRIES: dict[str, Entry] = {
    "bert": _text("bert", _bert),
    "distilbert": _text("distilbert", _distilbert),
    "gpt2": _text("gpt2", _gpt2, mask=False),
    "gpt2_cache": _text("gpt2_cache", _gpt2_cache),
    "llama": _text("llama", _llama),
    "t5_encoder": _text("t5_encoder", _t5_encoder),
    "whisper_encoder": entry("whisper_encoder", {"input_features": {0: "batch"}}, _whisper_encoder),
    "clip_vision": entry("clip_vision", {"pixel_values": {0: "batch"}}, _clip_vision),
    "wav2vec2": entry("wav2vec2", {"input_values": {0: "batch", 1: "samples"}}, _wav2vec2),
}
