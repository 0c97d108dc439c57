"""conv, then batch norm with fixed statistics -> one conv whose weights are computed when the program is loaded.

`ir.passes.fold_batch_norm` has the formula and does the same to a graph, with numpy, while a file is written. Here the
weights are tensors of a program that lives on: they are derived by torch, and derived again when weights are replaced.

Batch norms behind anything else are the convolution pass's, which knows the layout: `product` is for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.fusion import readers
from eager_backend.registry import named
from ir.importer.torch_api import VF, native_batch_norm_no_training
from ir.types import DType

CONVOLUTIONS = frozenset(named(VF, "conv1d conv2d conv3d").values())
# the second after functionalisation
_NORMS = {VF.batch_norm: (5, 7), native_batch_norm_no_training: (None, 6)}


def fold_batch_norm(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps."""
    counts = readers(block)
    made: dict[Slot, int] = {}
    steps: list[Step | None] = []
    for step in block.steps:
        place = made.get(step.args[0]) if step.fn in _NORMS else None
        conv = None if place is None else steps[place]
        if conv is not None and counts[step.args[0]] == 1 and _fixed(h, conv, step, counts):
            steps[place] = None  # type: ignore[index]
            steps.append(_folded(h, conv, step))
            continue
        if step.fn in CONVOLUTIONS:
            made[step.output] = len(steps)
        steps.append(step)
    block.steps = [s for s in steps if s is not None]


def _fixed(h: Compilation, conv: Step, norm: Step, counts: Any) -> bool:
    if conv.kwargs or any(counts[o] for o in norm.outputs[1:]):
        return False
    return _of_running_statistics(norm) and _frozen(h, [*norm.args[1:5], *conv.args[1:3]])


def _of_running_statistics(norm: Step) -> bool:
    training, _ = _NORMS[norm.fn]
    return not norm.kwargs and not (training and norm.args[training]) and norm.args[3] is not None


def _frozen(h: Compilation, operands: Sequence[Any]) -> bool:
    """True if all of these that are given are fixed weights of one element type."""
    tensors = [h.constants.tensor(o) for o in operands if isinstance(o, Slot) and h.constants.is_frozen(o)]
    known = len(tensors) == sum(o is not None for o in operands)
    return known and len({t.dtype for t in tensors}) == 1


def _folded(h: Compilation, conv: Step, norm: Step) -> Step:
    gamma, beta, mean, variance = norm.args[1:5]
    kernel, offset = (*conv.args[1:], None)[:2]
    epsilon = norm.args[_NORMS[norm.fn][1]]
    weight = h.constants.derive(scaled_kernel, kernel, gamma, variance, epsilon, wish=f"{kernel.name}_folded")
    bias = h.constants.derive(scaled_offset, offset, gamma, beta, mean, variance, epsilon, wish=f"{kernel.name}_offset")
    args = (conv.args[0], weight, bias, *conv.args[3:])
    return replace(conv, args=args, outputs=norm.outputs[:1], single=True)


def _scale(gamma: Tensor | None, variance: Tensor, epsilon: float) -> Tensor:
    """In float64: the product with the kernel is rounded once."""
    scale = (variance.double() + epsilon).rsqrt()
    return scale if gamma is None else gamma.double() * scale


def scaled_kernel(kernel: Tensor, gamma: Tensor | None, variance: Tensor, epsilon: float) -> Tensor:
    """The kernel times gamma / sqrt(variance + epsilon), by output channel."""
    scale = _scale(gamma, variance, epsilon).view(-1, *[1] * (kernel.dim() - 1))
    return (kernel.double() * scale).to(kernel.dtype)


def scaled_offset(
    offset: Tensor | None, gamma: Tensor | None, beta: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    """(offset - mean) * gamma / sqrt(variance + epsilon) + beta."""
    shifted = (0 if offset is None else offset.double()) - mean.double()
    shift = shifted * _scale(gamma, variance, epsilon)
    return (shift if beta is None else shift + beta.double()).to(mean.dtype)


# -- batch norms that follow no convolution ----------------------------------------------------------------------------


def is_product(h: Compilation, norm: Step) -> bool:
    """True for a batch norm of float32 whose statistics and weights are fixed."""
    if norm.fn not in _NORMS or len(norm.outputs) != 1 or not _of_running_statistics(norm):
        return False
    narrow = h.target.dtype not in (None, torch.float32) or norm.args[0].type.dtype is not DType.float32
    return not narrow and _frozen(h, norm.args[1:5]) and norm.args[3].type.dtype is DType.float32


def product(h: Compilation, norm: Step) -> Step:
    """offset + x * scale, in place of the batch norm."""
    x, gamma, beta, mean, variance = norm.args[:5]
    epsilon, axes = norm.args[_NORMS[norm.fn][1]], x.type.rank - 2
    scale = h.constants.derive(channel_scale, gamma, variance, epsilon, axes, wish=f"{mean.name}_scale")
    offset = h.constants.derive(channel_offset, gamma, beta, mean, variance, epsilon, axes, wish=f"{mean.name}_offset")
    return replace(norm, fn=VF.addcmul, args=(offset, x, scale))


def channel_scale(gamma: Tensor | None, variance: Tensor, epsilon: float, axes: int) -> Tensor:
    """gamma / sqrt(variance + epsilon), for tensors with this many axes behind the channels."""
    return _scale(gamma, variance, epsilon).to(variance.dtype).view(-1, *[1] * axes)


def channel_offset(
    gamma: Tensor | None, beta: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float, axes: int
) -> Tensor:
    """beta - mean * gamma / sqrt(variance + epsilon), for tensors with this many axes behind the channels."""
    return scaled_offset(None, gamma, beta, mean, variance, epsilon).view(-1, *[1] * axes)
