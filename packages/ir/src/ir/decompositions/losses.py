"""Losses that are more than a reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import LeftToTorch, decomposition
from ir.importer.torch_api import scan_op


@decomposition("ctc_loss")
def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The forward variables of all paths through the labels with a blank before and after each (Graves, 2006)."""
    batched = log_probs.dim() == 3
    frames = log_probs if batched else log_probs.unsqueeze(1)
    given, wanted = (torch.as_tensor(n).reshape(-1).to(torch.int64) for n in (input_lengths, target_lengths))
    spare = targets.new_full([*targets.shape[:-1], 1], blank, dtype=torch.int64)  # so that no list of labels is empty
    targets = torch.cat([targets.to(torch.int64), spare], -1)
    longest = max(target_lengths, default=0) + 1 if isinstance(target_lengths, Sequence) else targets.shape[-1]
    path = _path(targets, wanted, longest, blank)
    states = torch.arange(path.shape[1])
    start = torch.where(states == 0, 0.0, -math.inf).to(frames.dtype).expand(path.shape).contiguous()
    skips = (states[2:] % 2 == 1) & (path[:, 2:] != path[:, :-2])

    def step(before: Tensor, frame: Tensor, time: Tensor, path: Tensor, skips: Tensor, given: Tensor) -> list[Tensor]:
        """One frame on: each state from itself, from the one before it, and past a blank between unequal labels."""
        none = torch.full_like(before[:, :2], -math.inf)
        last = torch.cat([none[:, :1], before[:, :-1]], 1)
        earlier = torch.cat([none, torch.where(skips, before[:, :-2], -math.inf)], 1)
        now = _added(before, last, earlier) + frame.gather(1, path)
        return [torch.where((time < given).unsqueeze(1), now, before)]

    times = torch.arange(frames.shape[0])
    (final,) = scan_op(step, [start], [frames, times], (path, skips, given))
    ends = [final.gather(1, (2 * wanted - i).clamp(min=0).unsqueeze(1)).squeeze(1) for i in (0, 1)]
    ends[1] = torch.where(wanted > 0, ends[1], -math.inf)
    loss = -_added(*ends)
    if zero_infinity:
        loss = torch.where(loss == math.inf, 0.0, loss)
    if reduction == 1:
        return (loss / wanted.clamp(min=1).to(loss.dtype)).mean()
    return loss.sum() if reduction == 2 else loss if batched else loss.squeeze(0)


def _path(targets: Tensor, wanted: Tensor, longest: Any, blank: int) -> Tensor:
    """[N, 2 * longest + 1]: the labels of each target between blanks, and blanks behind them."""
    place = torch.arange(longest)
    if targets.dim() == 1:  # one behind the other
        first = wanted.cumsum(0) - wanted
        targets = targets[(first.unsqueeze(1) + place).clamp(max=targets.shape[0] - 1)]
    labels = torch.where(place < wanted.unsqueeze(1), targets[:, :longest], blank)
    blanks = torch.full_like(labels, blank)
    return torch.cat([torch.stack([blanks, labels], 2).flatten(1), blanks[:, :1]], 1)


def _added(*logs: Tensor) -> Tensor:
    """The logarithm of a sum of exponentials, of nothing as well."""
    top = logs[0]
    for x in logs[1:]:
        top = torch.maximum(top, x)
    top = torch.where(top == -math.inf, 0.0, top)
    total: Any = 0
    for x in logs:
        total = total + torch.exp(x - top)
    return torch.log(total) + top


# torch's own decompositions of the two give another shape for one sample, nan where its kernels give 0, and the first
# counts targets behind a -1


@decomposition("multilabel_margin_loss")
def _multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    loss, _ = _multilabel_margin_loss_forward(self, target, reduction)
    return loss


@decomposition("multilabel_margin_loss_forward")
def _multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Each label up to the first -1 against each class that is no label, as a table [samples, labels, classes]."""
    x, labels = torch.atleast_2d(self), torch.atleast_2d(target)
    counts = (labels < 0).to(torch.int64).cumsum(1) == 0
    classes = torch.arange(x.shape[1], device=x.device)
    is_label = ((labels.unsqueeze(2) == classes) & counts.unsqueeze(2)).any(1)
    of_label = x.gather(1, torch.where(counts, labels, 0)).unsqueeze(2)
    missed = 1 - of_label + x.unsqueeze(1)
    missed = torch.where(counts.unsqueeze(2) & ~is_label.unsqueeze(1) & (missed > 0), missed, 0)
    loss = _reduced(missed.sum((1, 2)) / x.shape[1], reduction, target.dim() > 1)
    return loss, is_label.to(self.dtype).reshape(target.shape)


@decomposition("multi_margin_loss")
def _multi_margin_loss(
    self: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    x, label = torch.atleast_2d(self), target.reshape(-1, 1)
    missed = margin - x.gather(1, label) + x
    others = torch.arange(x.shape[1], device=x.device) != label
    missed = torch.where(others & (missed > 0), missed, 0)
    missed = missed if p == 1 else missed * missed
    missed = missed if weight is None else missed * weight[label]
    return _reduced(missed.sum(1) / x.shape[1], reduction, target.dim() > 0)


@decomposition("cross_entropy_loss")
def _cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """By probabilities: of no classes the mean is nan, which the sizes in torch's own decomposition do not tell."""
    axis = 0 if self.dim() == 1 else 1
    classes = self.shape[axis]
    if reduction != 1 or isinstance(classes, int) or not target.dtype.is_floating_point:
        raise LeftToTorch("no mean by probabilities of a dynamic number of classes")
    wide = torch.promote_types(self.dtype, torch.float32)
    elements, classes = (torch.scalar_tensor(n, dtype=wide) for n in (self.numel(), classes))
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = torch.log_softmax(self, axis) * target
    if weight is not None:
        terms = terms * weight.reshape([-1 if a == axis else 1 for a in range(self.dim())])
    return (-terms.sum() / (elements / classes)).to(self.dtype)


def _reduced(losses: Tensor, reduction: int, batched: bool) -> Tensor:
    """The losses of the samples by torch's number of a reduction: none, mean or sum."""
    if reduction == 1:
        return losses.mean()
    return losses.sum() if reduction == 2 else losses if batched else losses.squeeze(0)
