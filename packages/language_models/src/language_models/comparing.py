"""What a folder generates beside what the model itself does, token by token."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers

from ir.errors import MismatchError
from language_models.checkpoint import Checkpoint
from language_models.longrope import longest_short
from language_models.loss import logits_of
from language_models.parts import HALVES

FARTHEST = 512  # tokens of the longest text that is compared
ROWS, BESIDE = 8, 4  # texts of a batch, and how many tokens behind them are compared
TIE_ULPS = 4  # in the last place, by which two computations of logits in 16 bits may differ
GUESSING = ("prompt_lookup_num_tokens", "use_mtp")  # settings of guessing tokens first, which leaves them the same


def check(checkpoint: Checkpoint, generator: Any, count: int = 16) -> None:
    """Compare greedy tokens with those of the model itself, behind a text of random tokens.

    Where the file takes a mask, texts of different lengths are compared at once, too, padded as they then are. Where
    rotary frequencies change beyond a length (longrope), a text that becomes longer is compared as well.

    Raises:
        MismatchError: they differ, or are those of nan.
    """
    short, context = longest_short(checkpoint.config), generator.manifest.context_length
    length = max(1, min(12, context // 2))
    _compare(checkpoint, generator, _text(checkpoint, length), min(count, context - length))
    if generator.manifest.mask and generator.manifest.contract.batch and length > 1:
        texts, mask = _padded(checkpoint, length)
        _compare(checkpoint, generator, texts, min(count, BESIDE, context - length), mask)
    if not 0 < short < context:
        return
    if short > FARTHEST:
        warnings.warn(
            f"texts of more than {short:,} tokens, where rotary frequencies are others (longrope), are not compared",
            stacklevel=3,
        )
        return
    before = max(1, short - count // 2)
    _compare(checkpoint, generator, _text(checkpoint, before), min(count, context - before))


def _text(checkpoint: Checkpoint, length: int) -> torch.Tensor:
    """A text of random tokens, always the same one."""
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(0, checkpoint.config.vocab_size, (1, length), generator=drawn)


def _padded(checkpoint: Checkpoint, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths, all but the first padded, and their mask.

    They are several, as a row that is wrong has some token of the model's by chance.
    """
    drawn, padding = torch.Generator().manual_seed(1), checkpoint.padding
    texts = torch.randint(0, checkpoint.config.vocab_size, (ROWS, longest), generator=drawn)
    begins = torch.arange(ROWS)[:, None] * longest // ROWS
    mask = (torch.arange(longest) >= begins).to(torch.int64)
    texts[mask == 0] = padding
    return texts, mask


def _compare(
    checkpoint: Checkpoint, generator: Any, tokens: torch.Tensor, count: int, mask: torch.Tensor | None = None
) -> None:
    """Compare so many tokens behind these texts."""
    model = checkpoint.model
    wanted = reference(model, tokens, count, mask, None, checkpoint.padding)
    found = generator.generate(tokens, mask, max_new_tokens=count)
    if not torch.equal(wanted, found) and model.dtype in HALVES.values():
        wanted = reference(model, tokens, count, mask, found, checkpoint.padding)
    if not torch.equal(wanted, found):
        said = [t[:, tokens.shape[1] :].tolist() for t in (found, wanted)]
        made = f"the folder generates {said[0][0]}, the model {said[1][0]}"
        if mask is not None:
            made = f"behind texts of different lengths the folder generates {said[0]}, the model {said[1]}"
        raise MismatchError(made)
    if mask is None and logits_of(model, wanted).isnan().any():
        raise MismatchError("the model's own logits are nan, of which no token is the likeliest: check its weights")


def reference(
    model: Any,
    tokens: torch.Tensor,
    count: int,
    mask: torch.Tensor | None = None,
    found: torch.Tensor | None = None,
    padding: int | None = None,
) -> torch.Tensor:
    """What transformers itself generates, each token the likeliest; of equally likely ones (`Ties`) that of `found`.

    `padding` is behind a text that has ended, where the model's own settings may have what is no token.
    """
    mask = torch.ones_like(tokens) if mask is None else mask
    given: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": count, "do_sample": False, "num_beams": 1}
    given |= {} if padding is None else {"pad_token_id": padding}
    if len(tokens) > 1:  # which transformers does for one text alone
        settings = getattr(model, "generation_config", None)
        given |= {name: None for name in GUESSING if getattr(settings, name, None)}
    if found is not None:
        ties = Ties(found, TIE_ULPS * torch.finfo(model.dtype).eps)
        given["logits_processor"] = transformers.LogitsProcessorList([ties])
        seen = model.register_forward_hook(ties.seen)
    try:
        made: torch.Tensor = model.generate(tokens, **given)
    finally:
        if found is not None:
            seen.remove()
    return made


class Ties(transformers.LogitsProcessor):  # type: ignore[misc]
    """Of tokens that are equally likely up to rounding, as many of a large vocabulary are in 16 bits, takes one.

    It stands behind the processors of the generation settings, so that scores are compared as they left them.

    Args:
        found: texts, whose token is taken.
        part: of the largest logit, by which equally likely tokens may differ.
    """

    def __init__(self, found: torch.Tensor, part: float) -> None:
        self._found, self._part = found, part
        self._largest = torch.zeros(())

    def seen(self, _model: Any, _given: Any, result: Any) -> None:
        """A hook of the model: the settings move scores, and rounding errors are those of logits."""
        self._largest = result.logits[:, -1].float().abs().amax(-1, keepdim=True)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = input_ids.shape[1]
        if at >= self._found.shape[1]:
            return scores
        token = self._found[:, at : at + 1]
        own = scores.gather(1, token)
        tied = scores.amax(1, keepdim=True) - own <= self._part * self._largest
        return scores.scatter(1, token, own.masked_fill(tied, float("inf")))
