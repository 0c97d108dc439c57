"""Convolutions by cuDNN: ReLU and residual sums inside, channels last for models in half precision.

The operators are torch's own, those that torch.jit.freeze puts into CUDA models. Depthwise and grouped convolutions
stay as they are: torch has kernels of its own for them. On one GPU it gained (benchmarks/eager_cuda.md); on others
nothing was measured, so it runs by name or where autotune finds it to pay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.convolution import free_of_strides, operands
from eager_backend.passes.fusion import readers, summands
from ir.importer.torch_api import VF

_FUSED = (torch.float16, torch.float32)  # what torch tests these operators with
_HALF = (torch.float16, torch.bfloat16)


def fuse_convolutions(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps; CUDA programs only."""
    if h.target.device.type == "cuda" and torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled:
        put_channels_last(h, block)
        fuse_relu(h, block)


def put_channels_last(h: Compilation, block: Block) -> None:
    """Half-precision convolutions in channels last, which tensor cores want, where all convolutions can be.

    Only the whole program's block, whose results get their strides back.
    """
    convolutions = [s for s in block.steps if s.fn is VF.conv2d]
    if block is not h.block or not convolutions or not all(_dtype(h, s) in _HALF for s in convolutions):
        return
    block.steps = [_with_weight_last(h, s) if s.fn is VF.conv2d else s for s in block.steps]
    free_of_strides(h, block, (VF.conv2d,))


def _dtype(h: Compilation, step: Step) -> torch.dtype | None:
    found = operands(h, step)
    return None if found is None else h.constants.tensor(found[0]).dtype


def _with_weight_last(h: Compilation, step: Step) -> Step:
    x, weight, *rest = step.args
    last = h.constants.derive(Tensor.contiguous, weight, memory_format=torch.channels_last, wish=f"{weight.name}_last")
    return replace(step, args=(x, last, *rest))


def fuse_relu(h: Compilation, block: Block) -> None:
    """relu(conv(x)) and relu(conv(x) + y) as one call, where nothing else reads what lies between."""
    counts = readers(block)
    made: dict[Slot, int] = {}
    steps: list[Step | None] = []
    for step in block.steps:
        if step.fn is Tensor.relu and len(step.args) == 1:
            taken, step = _behind(h, step, steps, made, counts)
            for place in taken:
                steps[place] = None
        made.update((o, len(steps)) for o in step.outputs if isinstance(o, Slot))
        steps.append(step)
    block.steps = [s for s in steps if s is not None]


def _behind(
    h: Compilation, relu: Step, steps: list[Step | None], made: dict[Slot, int], counts: Counter[Slot]
) -> tuple[list[int], Step]:
    """The places of the steps that a ReLU is computed with, and the call; none, and the ReLU itself."""

    def alone(slot: Any) -> tuple[int, Step] | None:
        """The step that makes what one other alone reads."""
        place = made.get(slot) if counts[slot] == 1 else None
        step = None if place is None else steps[place]
        return None if place is None or step is None else (place, step)

    found = alone(relu.args[0])
    if found is None:
        return [], relu
    place, step = found
    call = _call(h, step, None, relu)
    if call is not None:
        return [place], call
    for conv, other in summands(step):
        inner = alone(conv)
        call = None if inner is None else _call(h, inner[1], other, relu)
        if inner is not None and call is not None:
            return [inner[0], place], call
    return [], relu


def _call(h: Compilation, step: Step, other: Slot | None, relu: Step) -> Step | None:
    found = operands(h, step) if step.fn is VF.conv2d else None
    if found is None:
        return None
    weight, bias, padding, stride, dilation, groups = found
    if groups != 1 or h.constants.tensor(weight).dtype not in _FUSED:
        return None
    if bias is None:  # cuDNN takes one in any case, torch would make it at every call
        bias = h.constants.derive(no_bias, weight, wish=f"{weight.name}_no_bias")
    how = bias, stride, padding, dilation, groups
    if other is None:
        return Step(VF.cudnn_convolution_relu, (step.args[0], weight, *how), {}, relu.outputs, True, step.node)
    args = (step.args[0], weight, other, None, *how)
    return Step(VF.cudnn_convolution_add_relu, args, {}, relu.outputs, True, step.node)


def no_bias(weight: Tensor) -> Tensor:
    """Zeros, one for each output channel."""
    return weight.new_zeros(weight.shape[0])
