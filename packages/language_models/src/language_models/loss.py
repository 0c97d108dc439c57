"""What few bits cost: perplexity on a text by teacher forcing, beside that of the float weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ir.errors import CaptureError, RefusedError
from language_models.checkpoint import Checkpoint
from language_models.prompts import check_tokens, integers

LONGEST = 512  # tokens that are read
PIECE = 2048  # tokens that a model reads at once
TOP = 10


@dataclass(frozen=True)
class Loss:
    """Perplexity of the folder and of the model in float; overlap: of the ten likeliest tokens, those in both."""

    perplexity: float
    floats: float
    overlap: float

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:.3f} (float {self.floats:.3f}), top {TOP} equal {self.overlap:.1%}"


def tokens_of(option: str, text: Any, source: Any, checkpoint: Checkpoint) -> torch.Tensor:
    """Tokens [rows, length] of a text by the checkpoint's tokenizer, or those that were given.

    A text that is longer than the model's context, or than 2,048 tokens, becomes several rows; what is left of it at
    the end is dropped.

    Raises:
        CaptureError: a text, and a model or a folder without a tokenizer.
        RefusedError: an empty text, fewer than two tokens, or what are no tokens of the model.
    """
    if isinstance(text, str) and not text.strip():
        raise RefusedError(f"{option}: the text is empty")
    found = _tokenised(text, source) if isinstance(text, str) else text
    tokens = torch.from_numpy(integers(option, found))
    check_tokens(option, tokens.numpy(), checkpoint.config.vocab_size)
    if tokens.shape[1] < 2:
        raise RefusedError(f"{option}: two tokens at least are wanted, as the second is told from the first")
    length = min(tokens.shape[1], checkpoint.context_length, PIECE)
    return tokens[:, : tokens.shape[1] // length * length].reshape(-1, length)


def _tokenised(text: str, source: Any) -> Any:
    if isinstance(source, torch.nn.Module):
        raise CaptureError("a model in memory has no tokenizer: give tokens in the place of a text")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            Path(source), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of what is missing, each kind of tokenizer says something else
        raise CaptureError(f"{source} has no tokenizer for the text: give tokens in its place") from error
    return [tokenizer(text).input_ids]


def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The model's own logits at every token."""
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return found.float()


def loss(generator: Any, floats: torch.Tensor, tokens: torch.Tensor) -> Loss:
    """The loss of a generator's logits on a text, against those of the model in float."""
    found = generator.logits(tokens).float()
    best = [x.topk(min(TOP, x.shape[-1])).indices for x in (found, floats)]
    same = (best[0][..., :, None] == best[1][..., None, :]).any(-1).float().mean()
    return Loss(_perplexity(found, tokens), _perplexity(floats, tokens), float(same))


def _perplexity(logits: torch.Tensor, tokens: torch.Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).exp())
