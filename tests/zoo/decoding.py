"""One step of a decoder, with what it remembers as plain inputs and outputs: keys and values of a length of their own.

The cache objects of transformers are made inside of the model, so that a runtime sees tensors and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, floats, padding_mask, tokens
from .language import SMALL_VOCABULARY, VOCABULARY, causal
from .perception import whisper

Past = list[tuple[torch.Tensor, torch.Tensor]]

_SIZES = {"batch": 3, "past": 20}
_OTHERS = ({"batch": 1, "past": 33}, {"batch": 5, "past": 7})


def _cache(past: Past) -> Any:
    from transformers import DynamicCache

    return DynamicCache(past)


def _present(cache: Any) -> Past:
    return [(layer.keys, layer.values) for layer in cache.layers]


class CausalStep(nn.Module):
    """The next token's scores from one token, and keys and values that are one longer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: Past) -> tuple[torch.Tensor, Past]:
        cache = _cache(past)
        result = self.model(input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return result.logits, _present(cache)


class WhisperStep(nn.Module):
    """One token of Whisper's decoder; keys and values over the sound were computed once and come in as `sound`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.decoder

    def forward(self, input_ids: torch.Tensor, past: Past, sound: Past) -> tuple[torch.Tensor, Past]:
        from transformers import EncoderDecoderCache

        cache = EncoderDecoderCache(_cache(past), _cache(sound))
        # the states themselves are not read where their keys and values are there; their presence asks for attention
        states = torch.zeros(input_ids.shape[0], 1, self.model.config.d_model)
        result = self.model(input_ids, encoder_hidden_states=states, past_key_values=cache, use_cache=True)
        return result.last_hidden_state, _present(cache.self_attention_cache)


class T5Decoder(nn.Module):
    """T5's decoder over a whole target sequence, against states of an encoder of another length."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.decoder

    def forward(self, input_ids: torch.Tensor, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False)
        hidden: torch.Tensor = result.last_hidden_state
        return hidden


def _pairs(layers: int, batch: int, heads: int, length: int, width: int) -> Past:
    pair = floats(2 * layers, batch, heads, length, width).unbind()
    return list(zip(pair[::2], pair[1::2], strict=True))


def _pair_shapes(layers: int, shape: dict[int, str]) -> list[tuple[dict[int, str], dict[int, str]]]:
    return [(shape, shape)] * layers


def _causal_step(build: Callable[[int, bool], nn.Module], heads: tuple[int, int], width: tuple[int, int]) -> Any:
    """From a builder of (vocabulary, small), and the heads and widths of keys, full and small."""

    def variant(small: bool) -> Variant:
        vocabulary, layers = (SMALL_VOCABULARY, 2) if small else (VOCABULARY, 4)

        def inputs(sizes: Sizes) -> Inputs:
            batch, length = sizes["batch"], sizes["past"]
            past = _pairs(layers, batch, heads[small], length, width[small])
            mask = padding_mask({"batch": batch, "sequence": length + 1}).flip(1)  # padding stands on the left
            return (tokens({"batch": batch, "sequence": 1}, vocabulary), mask, past), {}

        return Variant(lambda: CausalStep(build(vocabulary, small)), inputs, _SIZES, _OTHERS)

    return variant


def _whisper_step(small: bool) -> Variant:
    """whisper-tiny's decoder after `past` tokens over 30 seconds of sound (one second in the small variant)."""
    layers, heads, width, length = (2, 2, 16, 50) if small else (4, 6, 64, 1500)

    def inputs(sizes: Sizes) -> Inputs:
        batch = sizes["batch"]
        past = _pairs(layers, batch, heads, sizes["past"], width)
        sound = _pairs(layers, batch, heads, length, width)
        return (tokens({"batch": batch, "sequence": 1}, 64), past, sound), {}

    return Variant(lambda: WhisperStep(whisper(small)), inputs, _SIZES, _OTHERS)


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
        "past": _pair_shapes(layers, {0: "batch", 2: "past"}),
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
    "whisper_step": _by_size(
        "whisper_step",
        lambda layers: {
            "input_ids": {0: "batch"},
            "past": _pair_shapes(layers, {0: "batch", 2: "past"}),
            "sound": _pair_shapes(layers, {0: "batch"}),
        },
        _whisper_step,
    ),
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
