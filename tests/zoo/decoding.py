"""One step of a decoder, with the cache of transformers among its arguments and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ir.importer import caches

from .entry import Entry, Inputs, Sizes, Variant, entry, floats, padding_mask, tokens
from .language import SMALL_VOCABULARY, VOCABULARY, causal
from .perception import whisper

_SIZES = {"batch": 3, "past": 20}
_OTHERS = ({"batch": 1, "past": 33}, {"batch": 5, "past": 7})


def _cache(layers: int, batch: int, heads: int, length: int, width: int) -> Any:
    from transformers import DynamicCache

    caches.register()  # for torch.export alone, which the peers use; ir does so itself
    pair = floats(2 * layers, batch, heads, length, width).unbind()
    return DynamicCache(list(zip(pair[::2], pair[1::2], strict=True)))


class T5Decoder(nn.Module):
    """T5's decoder over a whole target sequence, against states of an encoder of another length."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.decoder

    def forward(self, input_ids: torch.Tensor, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False)
        hidden: torch.Tensor = result.last_hidden_state
        return hidden


def cache_argument() -> str:
    """What this version of transformers calls the cache that a model takes."""
    from transformers import LlamaForCausalLM

    return "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


def _causal_step(build: Callable[[int, bool], nn.Module], heads: tuple[int, int], width: tuple[int, int]) -> Any:
    """From a builder of (vocabulary, small), and the heads and widths of keys, full and small."""

    def variant(small: bool) -> Variant:
        vocabulary, layers = (SMALL_VOCABULARY, 2) if small else (VOCABULARY, 4)

        def inputs(sizes: Sizes) -> Inputs:
            batch, length = sizes["batch"], sizes["past"]
            return (), {
                "input_ids": tokens({"batch": batch, "sequence": 1}, vocabulary),
                # padding stands on the left
                "attention_mask": padding_mask({"batch": batch, "sequence": length + 1}).flip(1),
                cache_argument(): _cache(layers, batch, heads[small], length, width[small]),
            }

        return Variant(lambda: build(vocabulary, small), inputs, _SIZES, _OTHERS)

    return variant


def _whisper_step(small: bool) -> Variant:
    """whisper-tiny's decoder after `past` tokens over 30 seconds of sound (one second in the small variant).

    Keys and values over the sound were computed once; the encoder's states are not read again, their presence asks for
    attention to them.
    """
    layers, heads, width, length = (2, 2, 16, 50) if small else (4, 6, 64, 1500)

    def inputs(sizes: Sizes) -> Inputs:
        from transformers import EncoderDecoderCache

        batch = sizes["batch"]
        past = _cache(layers, batch, heads, sizes["past"], width)
        return (), {
            "decoder_input_ids": tokens({"batch": batch, "sequence": 1}, 64),
            "encoder_outputs": (floats(batch, length, heads * width),),
            cache_argument(): EncoderDecoderCache(past, _cache(layers, batch, heads, length, width)),
        }

    return Variant(lambda: whisper(small), inputs, _SIZES, _OTHERS)


def _t5_decoder(small: bool) -> Variant:
    """The decoder of t5-small."""
    vocabulary = SMALL_VOCABULARY if small else VOCABULARY

    def build() -> nn.Module:
        from transformers import T5Config, T5Model

        size: dict[str, Any] = {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
        return T5Decoder(T5Model(T5Config(vocab_size=vocabulary, **(size if small else {}))))

    def inputs(sizes: Sizes) -> Inputs:
        batch, source = sizes["batch"], sizes["source"]
        states = floats(batch, source, 32 if small else 512)
        mask = padding_mask({"batch": batch, "sequence": source})
        return (tokens(sizes, vocabulary), states, mask), {}

    sizes = {"batch": 3, "sequence": 16, "source": 24}
    others = ({"batch": 1, "sequence": 20, "source": 9}, {"batch": 5, "sequence": 5, "source": 30})
    return Variant(build, inputs, sizes, others)


def _causal_shapes(layers: int) -> dict[str, Any]:
    return {
        "input_ids": {0: "batch"},
        "attention_mask": {0: "batch", 1: "total"},
        cache_argument(): [{0: "batch", 2: "past"}] * (2 * layers),
    }


def _whisper_shapes(layers: int) -> dict[str, Any]:
    of_tokens, of_sound = [{0: "batch", 2: "past"}] * (2 * layers), [{0: "batch"}] * (2 * layers)
    return {
        "decoder_input_ids": {0: "batch"},
        "encoder_outputs": ({0: "batch"},),
        cache_argument(): [*of_tokens, *of_sound],
    }


def _by_size(name: str, shapes: Callable[[int], dict[str, Any]], variant: Callable[[bool], Variant]) -> Entry:
    """An entry whose dynamic shapes depend on the number of layers: two in the small variant, else four."""
    return lambda small: entry(name, shapes(2 if small else 4), variant)(small)


ENTRIES: dict[str, Entry] = {
    "llama_step": _by_size(
        "llama_step", _causal_shapes, _causal_step(partial(causal, "Llama", cache=True), (4, 4), (32, 4))
    ),
    "qwen2_step": _by_size(
        "qwen2_step", _causal_shapes, _causal_step(partial(causal, "Qwen2", cache=True), (4, 4), (32, 4))
    ),
    "whisper_step": _by_size("whisper_step", _whisper_shapes, _whisper_step),
    "t5_decoder": entry(
        "t5_decoder",
        {
            "input_ids": {0: "batch", 1: "sequence"},
            "states": {0: "batch", 1: "source"},
            "mask": {0: "batch", 1: "source"},
        },
        _t5_decoder,
    ),
}
