"""Models of transformers over sound and images, built from configurations."""

from __future__ import annotations

from typing import Any

from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, floats, images, padding_mask, tokens
from .language import SMALL_VOCABULARY, VOCABULARY

_BATCHES: tuple[Sizes, tuple[Sizes, Sizes]] = ({"batch": 2}, ({"batch": 1}, {"batch": 3}))


def whisper(small: bool) -> Any:
    """whisper-tiny, or with small layers and one second of sound, with a small vocabulary."""
    from transformers import WhisperConfig, WhisperModel

    width, layers, heads = (32, 2, 2) if small else (384, 4, 6)
    config = WhisperConfig(
        vocab_size=64,
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_layers=layers,
        decoder_attention_heads=heads,
        decoder_ffn_dim=4 * width,
        max_source_positions=50 if small else 1500,
        max_target_positions=448,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return WhisperModel(config)


def _whisper_encoder(small: bool) -> Variant:
    """The encoder of whisper-tiny, over 30 seconds of 80 mel bands (one second in the small variant)."""
    positions = 50 if small else 1500

    def build() -> nn.Module:
        return whisper(small).encoder

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


def _clip(small: bool) -> Variant:
    """Both towers of ViT-B/32 and the scores of every image against every text, with their own batches."""
    side, vocabulary = (64, SMALL_VOCABULARY) if small else (224, VOCABULARY)

    def build() -> nn.Module:
        from transformers import CLIPConfig, CLIPModel

        size: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        size = size if small else {}
        ends = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
        text = {"vocab_size": vocabulary, **ends, **size}
        return CLIPModel(CLIPConfig(text_config=text, vision_config={"image_size": side, **size}))

    def inputs(sizes: Sizes) -> Inputs:
        words = {"batch": sizes["texts"], "sequence": sizes["sequence"]}
        return (), {
            "input_ids": tokens(words, vocabulary),
            "pixel_values": images(sizes["images"], side, side),
            "attention_mask": padding_mask(words),
        }

    sizes = {"images": 2, "texts": 3, "sequence": 12}
    others = ({"images": 1, "texts": 4, "sequence": 20}, {"images": 3, "texts": 2, "sequence": 7})
    return Variant(build, inputs, sizes, others)


def _vit(small: bool) -> Variant:
    """ViT-B/16 as transformers writes it."""
    side = 64 if small else 224

    def build() -> nn.Module:
        from transformers import ViTConfig, ViTModel

        size: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": side,
        }
        return ViTModel(ViTConfig(**(size if small else {})))

    def inputs(sizes: Sizes) -> Inputs:
        return (), {"pixel_values": images(sizes["batch"], side, side)}

    return Variant(build, inputs, *_BATCHES)


_CLIP_SHAPES = {
    "input_ids": {0: "texts", 1: "sequence"},
    "pixel_values": {0: "images"},
    "attention_mask": {0: "texts", 1: "sequence"},
}

ENTRIES: dict[str, Entry] = {
    "whisper_encoder": entry("whisper_encoder", {"input_features": {0: "batch"}}, _whisper_encoder),
    "clip": entry("clip", _CLIP_SHAPES, _clip),
    "clip_vision": entry("clip_vision", {"pixel_values": {0: "batch"}}, _clip_vision),
    "vit": entry("vit", {"pixel_values": {0: "batch"}}, _vit),
    "wav2vec2": entry("wav2vec2", {"input_values": {0: "batch", 1: "samples"}}, _wav2vec2),
}
