"""What the generation settings of a checkpoint say of the likeliest token, as transformers itself applies it.

A setting is a field of transformers.GenerationConfig. Those that its processors of logits read are written into the
folder, and every loop applies them by the same processors. Of the others a warning tells, unless they say nothing of
which token is the likeliest: how text is drawn or searched for, its length, how it is computed, what comes back.
"""

from __future__ import annotations

import json
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers

from ir.errors import CaptureError
from language_models.checkpoint import Checkpoint

APPLIED = (
    "sequence_bias", "encoder_repetition_penalty", "repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "min_length", "min_new_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens",
)  # fmt: skip
# fields that leave the likeliest token as it is, by what they are about
SILENT = (
    # tokens that the loop reads by itself, and lengths that its caller gives
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "max_length", "max_new_tokens",
    # drawing, and searching by beams
    "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "renormalize_logits", "num_beams", "num_beam_groups", "early_stopping", "length_penalty", "diversity_penalty",
    "num_return_sequences",
    # the same tokens, guessed first by something smaller
    "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
    # how transformers computes, and what it gives back
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "transformers_version",
)  # fmt: skip


class _Loop(transformers.GenerationMixin):  # type: ignore[misc]
    """What transformers asks of a model while it makes its processors."""

    def __init__(self, two_halves: bool) -> None:
        self.config = types.SimpleNamespace(is_encoder_decoder=two_halves)


class Settings:
    """The settings that a folder has, for its loop.

    Args:
        said: fields of GenerationConfig and their values, as JSON has them.
        ends: the tokens that end a text.
        vocabulary: how many tokens have a score.
        two_halves: the tokens stand behind an encoder's text, and not behind the prompt.

    Raises:
        CaptureError: transformers does not take a value.
    """

    def __init__(self, said: Mapping[str, Any], ends: Sequence[int], vocabulary: int, two_halves: bool = False) -> None:
        self._said, self._ends, self._two_halves = dict(said), list(ends), two_halves
        for name, value in self._said.items():
            try:
                text = torch.zeros(1, 1, dtype=torch.int64)
                made = self._made({name: value}, text, 1, None, text)
                likeliest(torch.zeros(1, vocabulary), text, made)
            except Exception as error:  # of whatever class a processor says that it does not take a value
                raise CaptureError(f"the generation setting {name} is {value!r:.60}, which transformers does not apply "
                                   f"({error}): correct it, or take it out") from error  # fmt: skip

    def processors(
        self, prompt: torch.Tensor, count: int, mask: torch.Tensor | None = None, source: torch.Tensor | None = None
    ) -> Sequence[Any]:
        """transformers' own processors for so many tokens behind a prompt; none where no setting is there.

        Args:
            mask: of the prompt, which is padded on its left.
            source: what `generate` of transformers is given: the encoder's tokens, or its sound.
        """
        return self._made(self._said, prompt, count, mask, prompt if source is None else source) if self._said else ()

    def _made(self, said: Mapping[str, Any], prompt: torch.Tensor, count: int, mask: Any, source: Any) -> Sequence[Any]:
        config: Any = transformers.GenerationConfig(**said)
        begin = prompt.shape[1]
        config.max_length = begin + count
        if config.min_new_tokens is not None:
            config.min_length = begin + config.min_new_tokens
        config._eos_token_tensor = torch.tensor(self._ends) if self._ends else None
        with warnings.catch_warnings():
            # an encoder of sound has no tokens that could be repeated, which transformers says of each text
            warnings.filterwarnings("ignore", message="Passing `encoder_")
            made: Sequence[Any] = _Loop(self._two_halves)._get_logits_processor(
                config, begin, source, device="cpu", model_kwargs={"attention_mask": mask}
            )
        return made


def likeliest(logits: torch.Tensor, tokens: torch.Tensor, processors: Sequence[Any]) -> torch.Tensor:
    """The likeliest token of each row [rows, vocabulary] behind the tokens so far."""
    scores = logits.float() if processors else logits  # as in transformers, whose processors count in float32
    for processor in processors:
        scores = processor(tokens, scores)
    return scores.argmax(-1)


def settings_of(checkpoint: Checkpoint, ends: Sequence[int], vocabulary: int) -> dict[str, Any]:
    """The settings that a loop has to apply, as JSON; of those that none applies a warning tells.

    Raises:
        CaptureError: transformers does not take a value.
    """
    own = _other_than_default(checkpoint.generation)
    if other := sorted(own.keys() - {*APPLIED, *SILENT}):
        named = ", ".join(f"{name}={own[name]!r:.40}" for name in other)
        warnings.warn(f"{checkpoint.name}: its generation settings have {named}, which no exported folder applies: "
                      "transformers may generate other tokens", stacklevel=3)  # fmt: skip
    _tell_of_no_tokens(checkpoint, ends, vocabulary)
    said = {name: _plain(name, own[name]) for name in APPLIED if name in own}
    Settings(said, ends, vocabulary, checkpoint.model.config.is_encoder_decoder)
    return said


def _tell_of_no_tokens(checkpoint: Checkpoint, ends: Sequence[int], vocabulary: int) -> None:
    """Warn of tokens outside of the vocabulary, which the loop never meets."""
    named = [("pad_token_id", checkpoint.generation.pad_token_id), *(("eos_token_id", end) for end in ends)]
    if wrong := [f"{name}={token}" for name, token in named if token is not None and not 0 <= token < vocabulary]:
        warnings.warn(f"{checkpoint.name}: its generation settings have {', '.join(wrong)}, and tokens are 0 to "
                      f"{vocabulary - 1}: no text ends there, and {checkpoint.padding} is behind a text that has ended",
                      stacklevel=4)  # fmt: skip


def _other_than_default(generation: Any) -> dict[str, Any]:
    """Fields of GenerationConfig that have another value than those of a model that says nothing."""
    fresh = transformers.GenerationConfig()
    default = {**vars(fresh), **getattr(fresh, "_get_default_generation_params", dict)()}
    found = {n: getattr(generation, n, None) for n in vars(fresh) if not n.startswith("_")}
    return {n: v for n, v in found.items() if v is not None and v != [] and v != default[n]}


def _plain(name: str, value: Any) -> Any:
    """A value as JSON has it; a bias by sequences of tokens becomes pairs, which transformers reads as well."""
    pairs: Any = [[list(key), bias] for key, bias in value.items()] if isinstance(value, dict) else value
    try:
        return json.loads(json.dumps(pairs))
    except (TypeError, ValueError) as error:
        raise CaptureError(f"the generation setting {name} is {value!r:.60}, no JSON ({error}): correct it") from error
