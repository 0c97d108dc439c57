"""Rotary embeddings with two sets of frequencies (longrope): one for short texts, another beyond a number of tokens.

A step turns new tokens by the set for the whole text, as the model does. Keys of the tokens before were turned by the
other set where the text has just become long: some models compute all of them anew then, others keep them.
"""

from __future__ import annotations

from typing import Any

import torch


def longest_short(config: Any) -> int:
    """Tokens of the longest text that has the frequencies of short ones; 0 where all texts have the same."""
    said = getattr(config, "rope_parameters", None) or {}
    kinds = [said, *(kind for kind in said.values() if isinstance(kind, dict))]  # for all layers, or by their type
    found = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return min((n for n in found if n), default=0)


def computes_anew(model: Any, cache: str, longest: int) -> bool:
    """True if `generate` drops what is remembered, and reads the text again, one token beyond `longest`.

    Args:
        cache: what the model calls its cache.
    """
    tokens, held = torch.ones(1, longest + 1, dtype=torch.int64), _Remembered(longest)
    given = model.prepare_inputs_for_generation(
        tokens, next_sequence_length=1, attention_mask=torch.ones_like(tokens), **{cache: held}
    )
    return given.get(cache) is None


class _Remembered:
    """As much of a cache as is asked for its length."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self.length = length

    def get_seq_length(self, *_: Any) -> int:
        return self.length
