"""Models of transformers over text, built from configurations.

Configurations are those of the published checkpoints where nothing else is said, with a smaller vocabulary:
the rows of an embedding table cost memory and time and add nothing. Models keep the default attention (sdpa)
and return their own ModelOutput.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from ir.importer import caches

from .entry import Entry, Inputs, Sizes, Variant, entry, padding_mask, tokens

VOCABULARY = 1000
SMALL_VOCABULARY = 64
_SIZES = {"batch": 3, "sequence": 32}
_OTHERS = ({"batch": 1, "sequence": 48}, {"batch": 5, "sequence": 9})

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


def _roberta(vocabulary: int, small: bool) -> nn.Module:
    """Positions are counted from the tokens that are not padding, by a cumulative sum."""
    from transformers import RobertaConfig, RobertaModel

    size: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
    return RobertaModel(RobertaConfig(vocab_size=vocabulary, **(size if small else {})))


def _gpt2(vocabulary: int, small: bool, cache: bool = False) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}
    size = size if small else {}
    # The default numbers of these two tokens lie outside the vocabulary.
    size |= {"bos_token_id": vocabulary - 1, "eos_token_id": vocabulary - 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, use_cache=cache, **size))


def _gpt2_cache(vocabulary: int, small: bool) -> nn.Module:
    """The same with its keys and values as a DynamicCache."""
    import transformers  # noqa: F401  (the caches of what is imported are registered)

    caches.register()  # for torch.export alone, which the peers use; ir does so itself
    return _gpt2(vocabulary, small, cache=True)


def causal(family: str, vocabulary: int, small: bool, cache: bool = False, **options: Any) -> nn.Module:
    """Four layers of a transformers family with grouped queries: eight heads share four of keys and values."""
    import transformers

    width, layers = (32, 2) if small else (256, 4)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=cache,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        **options,
    )
    model: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config)
    return model


class _Mamba(nn.Module):
    """Mamba with its recurrence said as torch's scan: transformers' own loop over time is unrolled by torch.export."""

    def __init__(self, vocabulary: int, small: bool) -> None:
        super().__init__()
        from transformers import MambaConfig, MambaModel

        size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2} if small else {"hidden_size": 256}
        layers = {} if small else {"num_hidden_layers": 6}
        self.model = MambaModel(MambaConfig(vocab_size=vocabulary, use_cache=False, **size, **layers))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        from transformers.models.mamba import modeling_mamba

        with mock.patch.object(modeling_mamba, "mamba_selective_scan", _selective_scan):
            hidden: torch.Tensor = self.model(input_ids).last_hidden_state
        return hidden


def _selective_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor,
    delta_bias: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """The selective state space of Mamba (Gu and Dao, 2023, algorithm 2), over (batch, channels, time)."""
    from torch._higher_order_ops.scan import scan

    delta = nn.functional.softplus(dt + delta_bias[:, None]).permute(2, 0, 1).contiguous()  # time first

    def step(state: torch.Tensor, xs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        delta, b, c, u = xs
        state = torch.exp(delta[:, :, None] * A) * state + (delta * u)[:, :, None] * b[:, None, :]
        return state, (state * c[:, None, :]).sum(-1)

    over_time = (delta, *(x.permute(2, 0, 1).contiguous() for x in (B, C, hidden_states)))
    start = torch.zeros(*hidden_states.shape[:2], A.shape[-1])
    _last, outputs = scan(step, start, over_time)
    result = outputs.permute(1, 2, 0) + hidden_states * D[None, :, None]
    return result * nn.functional.silu(z)


def _mamba(vocabulary: int, small: bool) -> nn.Module:
    return _Mamba(vocabulary, small)


def _t5_encoder(vocabulary: int, small: bool) -> nn.Module:
    """The published t5-small, whose configuration is the class's default."""
    from transformers import T5Config, T5EncoderModel

    size: dict[str, Any] = {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=vocabulary, use_cache=False, **(size if small else {})))


def _text(name: str, build: Build, mask: bool = True) -> Entry:
    """Token numbers and, with `mask`, an attention mask, both as keywords; batch and sequence are dynamic."""

    def variant(small: bool) -> Variant:
        vocabulary = SMALL_VOCABULARY if small else VOCABULARY

        def inputs(sizes: Sizes) -> Inputs:
            given = {"input_ids": tokens(sizes, vocabulary)}
            return (), given | ({"attention_mask": padding_mask(sizes)} if mask else {})

        return Variant(lambda: build(vocabulary, small), inputs, _SIZES, _OTHERS)

    names = ("input_ids", "attention_mask") if mask else ("input_ids",)
    return entry(name, {argument: {0: "batch", 1: "sequence"} for argument in names}, variant)


ENTRIES: dict[str, Entry] = {
    "bert": _text("bert", _bert),
    "distilbert": _text("distilbert", _distilbert),
    "roberta": _text("roberta", _roberta),
    "gpt2": _text("gpt2", _gpt2, mask=False),
    "gpt2_cache": _text("gpt2_cache", _gpt2_cache),
    "llama": _text("llama", partial(causal, "Llama")),
    "mistral": _text("mistral", partial(causal, "Mistral", sliding_window=16)),
    "qwen2": _text("qwen2", partial(causal, "Qwen2")),
    "mamba": _text("mamba", _mamba, mask=False),
    "t5_encoder": _text("t5_encoder", _t5_encoder),
}
