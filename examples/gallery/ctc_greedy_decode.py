"""CTC greedy decoding: the best label of each step, repeats merged, blanks dropped.

Source: A. Graves et al., "Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent
Neural Networks", 2006, section 3.2, "best path decoding". How many labels come out depends on the scores; they are
padded to the number of steps, so that no size does.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::ctc_greedy_decode")
def ctc_greedy_decode(scores: Tensor, lengths: Tensor, blank: int = 0) -> tuple[Tensor, Tensor]:
    """The labels of a batch of sequences.

    Args:
        scores: of the labels, float32 [batch, steps, labels].
        lengths: how many of the steps count, int64 [batch].
        blank: the label that means none.

    Returns:
        The labels found, padded with -1, int64 [batch, steps], and how many they are, int64 [batch].
    """
    batch, steps, _ = scores.shape
    best = scores.argmax(-1)
    before = torch.cat([best.new_full((batch, 1), -1), best[:, :-1]], 1)
    counts = torch.arange(steps, device=scores.device) < lengths[:, None]
    kept = (best != before) & (best != blank) & counts
    place = torch.where(kept, kept.to(torch.int64).cumsum(1) - 1, steps)  # what is dropped goes past the end
    labels = best.new_full((batch, steps + 1), -1).scatter(1, place, best)
    return labels[:, :steps].clone(), kept.to(torch.int64).sum(1)
