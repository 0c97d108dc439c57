"""Greedy text from one step of a decoder, in whatever runtime: the loop that asks for nothing but a step.

generator = Generator(manifest, run)  # run: arrays by input name -> arrays by output name
tokens = generator.generate(input_ids, attention_mask=mask, max_new_tokens=32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from language_models.folder import Manifest
from language_models.generation_settings import Settings, likeliest
from language_models.prompts import prompts

Arrays = Mapping[str, Any]


class Generator:
    """A step and what it remembers, greedily.

    A step that takes one token at a time is fed the prompt in that way. What it remembers of padding is forgotten.
    """

    def __init__(self, manifest: Manifest, run: Callable[[Arrays], Arrays]) -> None:
        self.manifest = manifest
        self._run = run
        self.settings = Settings(manifest.rules, manifest.eos, manifest.vocabulary)

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, max_new_tokens: int = 32
    ) -> torch.Tensor:
        """The tokens given and those that follow, each the likeliest; a text that has ended is padded.

        Args:
            input_ids: int64 [batch, length].
            attention_mask: 1 for tokens, 0 for padding, which may be on either side; of the same shape.
            max_new_tokens: fewer are generated where all texts end before.

        Raises:
            RefusedError: tokens, a mask or a length that the model does not take.
        """
        limits = self.manifest.vocabulary, self.manifest.context_length
        given, tokens, mask = prompts(*limits, input_ids, attention_mask, max_new_tokens)
        made = [given, self._continued(tokens, mask, max_new_tokens)] if max_new_tokens else [given]
        return torch.from_numpy(np.concatenate(made, 1))

    def _continued(self, tokens: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
        """New tokens [batch, count or fewer] behind texts that are padded on their left."""
        if not self.manifest.contract.batch and (len(tokens) > 1 or not mask.all()):
            return self._each(tokens, mask, count)
        ended, new = np.zeros(len(tokens), bool), tokens[:, :0]
        processors = self.settings.processors(torch.from_numpy(tokens), count, torch.from_numpy(mask))
        logits, held = self._prompt(tokens, mask)
        for left in reversed(range(count)):
            found = _likeliest(logits[:, -1], np.concatenate([tokens, new], 1), processors)
            token = np.where(ended, self.manifest.pad, found)
            ended |= np.isin(token, self.manifest.eos)
            new = np.concatenate([new, token[:, None]], 1)
            mask = np.concatenate([mask, np.ones_like(mask[:, :1])], 1)
            if ended.all() or not left:
                break
            if self._anew(mask.shape[1]):
                logits, held = self._prompt(np.concatenate([tokens, new], 1), mask)
            else:
                logits, held = self.step(new[:, -1:], mask, held)
        return new

    def _anew(self, length: int) -> bool:
        """True where a text has become so long that the model reads all of it again."""
        return 0 < self.manifest.computed_anew == length - 1

    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The logits after each token of a text, fed one by one where the file has those of the last alone."""
        tokens = np.asarray(input_ids)
        held, found = self.start(len(tokens)), []
        for i in range(tokens.shape[1]):
            logits, held = self.step(tokens[:, i : i + 1], np.ones_like(tokens[:, : i + 1]), held)
            found.append(logits[:, -1:])
        logits = np.concatenate(found, 1)
        return torch.from_numpy(logits.astype("f4") if logits.dtype.name == "bfloat16" else logits)

    def start(self, batch: int) -> dict[str, np.ndarray]:
        """What is remembered before the first token: keys of no length, states of zeros."""
        sizes = {self.manifest.contract.batch or "1": batch, self.manifest.contract.past: 0}
        return {
            s.given: np.zeros([sizes[d] if isinstance(d, str) else d for d in s.shape], s.dtype)
            for s in self.manifest.states
        }

    def step(self, tokens: np.ndarray, mask: np.ndarray, held: Arrays) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits after more tokens, and what is remembered then; `mask` is that of the whole text."""
        names, feeds = self.manifest.contract, {self.manifest.contract.tokens: tokens, **held}
        if self.manifest.mask:
            feeds[names.mask] = mask
        if self.manifest.positions:
            feeds[names.positions] = (mask.cumsum(1) - 1).clip(0)[:, -tokens.shape[1] :]
        results = self._run(feeds)
        return results[names.logits], {s.given: results[s.result] for s in self.manifest.states}

    def _prompt(self, tokens: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        held = self.start(len(tokens))
        if self.manifest.padding_side == "right":
            tokens, mask = (padded_right(rows, mask) for rows in (tokens, mask))
        if not self.manifest.one_by_one:
            logits, held = self.step(tokens, mask, held)
            return self._last(logits, mask), held
        for i in range(tokens.shape[1]):
            logits, held = self.step(tokens[:, i : i + 1], mask[:, : i + 1], held)
            held = self._without_padding(held, mask[:, i])
        return logits, held

    def _last(self, logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Logits of the last token of each prompt, behind which padding may stand."""
        if self.manifest.padding_side == "left" or logits.shape[1] == 1:
            return logits[:, -1:]
        return np.take_along_axis(logits, mask.sum(1)[:, None, None] - 1, 1)

    def _without_padding(self, held: dict[str, np.ndarray], begun: np.ndarray) -> dict[str, np.ndarray]:
        """States of texts that have not begun are zero again; keys of padding are masked anyway."""
        fixed = {s.given for s in self.manifest.states if self.manifest.contract.past not in s.shape}
        return {n: a * begun.reshape(-1, *[1] * (a.ndim - 1)).astype(a.dtype) if n in fixed else a
                for n, a in held.items()}  # fmt: skip

    def _each(self, tokens: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
        """One text after the other, where the step has no batch."""
        texts = [row[m > 0][None] for row, m in zip(tokens, mask, strict=True)]
        new = [self._continued(text, np.ones_like(text), count)[0] for text in texts]
        longest = max(map(len, new))
        return np.stack([np.pad(n, (0, longest - len(n)), constant_values=self.manifest.pad) for n in new])


def _likeliest(logits: np.ndarray, tokens: np.ndarray, processors: Sequence[Any]) -> np.ndarray:
    if not processors:
        return np.asarray(logits.argmax(-1))
    return np.asarray(likeliest(torch.from_numpy(logits.astype("f4")), torch.from_numpy(tokens), processors))


def padded_right(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Rows that are padded on their left, padded on their right."""
    return np.stack([np.roll(row, -int((m < 1).sum())) for row, m in zip(rows, mask, strict=True)])
