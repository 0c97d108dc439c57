"""Convolutions by oneDNN: weights packed at load, activations and residual sums inside, channels last throughout.

torch packs a convolution's weights anew at every call, and runs a 1x1 convolution as a matrix product. oneDNN's own
layout of results is channels last; what lies behind a convolution therefore has other strides than in torch, and the
pass makes the few steps that look at strides independent of them. Results get torch's strides back.

Measured on one thread (AMD EPYC with AVX512), against torch's own: 1x1 on 56x56 2.3 times as fast, 3x3 on 7x7 1.8,
depthwise 1.06 to 1.9, 3x3 on 56x56 1.06 to 1.08, none of eleven shapes slower; max_pool2d 16 times and more on channels
last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import onednn
from eager_backend.building.contracts import Compilation
from eager_backend.building.onednn import Activation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.batch_norm import is_product, product
from eager_backend.passes.fusion import Fused, fuse
from eager_backend.passes.strides import any_strides, restore_results
from eager_backend.registry import named
from ir.importer.torch_api import NN, VF
from ir.types import TensorType

_RANK: Mapping[Any, int] = {VF.conv1d: 1, VF.conv2d: 2}
_LAST = {"memory_format": torch.channels_last}
_VECTOR = 16  # float32 numbers


@dataclass(frozen=True)
class Convolution:
    """One call of oneDNN's fused convolution."""

    x: Slot
    operands: tuple[Any, ...]  # packed weight, bias, padding, stride, dilation, groups
    out: Slot
    node: Any
    other: Slot | None = None
    act: Activation | None = None

    def with_activation(self, act: Activation, out: Slot) -> Fused | None:
        taken = self.act or self.other or act.name in onednn.DROPS_NAN
        return None if taken else replace(self, act=act, out=out)

    def with_sum(self, other: Slot, out: Slot) -> Fused | None:
        if self.act is not None or self.other is not None:
            return None
        return replace(self, other=other, out=out)

    def step(self) -> Step:
        act = self.act or Activation("none")
        if self.other is None:
            args = (self.x, *self.operands, act.name, act.scalars, act.algorithm)
            return Step(onednn.CONV, args, {}, (self.out,), True, self.node)
        args = (self.x, self.other, *self.operands, "add", None, None, (), None)
        return Step(onednn.CONV_ADD, args, {}, (self.out,), True, self.node)


def pack_convolutions(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps; only the whole program's block, whose results can get their strides back."""
    if h.target.device.type != "cpu" or not onednn.available() or block is not h.block:
        return
    if not any(_operands(h, step) for step in block.steps):
        return
    block.steps = [s for step in block.steps for s in _in_two_dimensions(h, step)]
    fuse(block, lambda step: _convolution(h, step))
    last = free_of_strides(h, block, (onednn.CONV, onednn.CONV_ADD))
    block.steps = [_as_product(h, step) if step.args and step.args[0] in last else step for step in block.steps]


def _operands(h: Compilation, step: Step) -> tuple[Any, ...] | None:
    """Weight, bias, padding, stride, dilation and groups of a convolution that oneDNN can take over."""
    found = operands(h, step)
    return found if found is not None and onednn.takes(h.constants.tensor(found[0])) else None


def operands(h: Compilation, step: Step) -> tuple[Any, ...] | None:
    """Weight, bias, padding, stride, dilation and groups of a convolution over fixed weights in one or two dimensions.

    Padding is as much before as behind; None for any other step.
    """
    rank = _RANK.get(step.fn)
    if rank is None or step.kwargs or step.args[0].type.rank != rank + 2:
        return None
    defaults = (None, None, None, 1, 0, 1, 1)
    given = [*step.args, *defaults[len(step.args) :]]
    _, weight, bias, stride, padding, dilation, groups = given
    if padding == "valid":
        padding = 0
    spread = [_spread(p, rank) for p in (padding, stride, dilation)]
    frozen = (
        isinstance(weight, Slot) and h.constants.is_frozen(weight) and (bias is None or h.constants.is_frozen(bias))
    )
    if (
        None in spread or not frozen or weight.type.dtype is not step.args[0].type.dtype
    ):  # of no elements torch takes two
        return None
    return weight, bias, *spread, groups


def _spread(numbers: Any, rank: int) -> tuple[int, ...] | None:
    """One number for each axis; None for a word, or a number that is not known."""
    each = (numbers,) if isinstance(numbers, int) else numbers
    if not isinstance(each, tuple) or not all(isinstance(n, int) for n in each):
        return None
    return each * rank if len(each) == 1 else each


def _in_two_dimensions(h: Compilation, step: Step) -> list[Step]:
    """conv1d as a conv2d of height one: oneDNN has channels last for images alone."""
    operands = _operands(h, step) if step.fn is VF.conv1d else None
    if operands is None:
        return [step]
    weight, bias, padding, stride, dilation, groups = operands
    x, out = step.args[0], step.output
    image, result = (h.local(s.name, _with_height(s.type)) for s in (x, out))
    kernel = h.constants.derive(Tensor.unsqueeze, weight, 2, wish=weight.name)
    args = (image, kernel, bias, (1, *stride), (0, *padding), (1, *dilation), groups)
    return [
        Step(Tensor.unsqueeze, (x, 2), {}, (image,), True, step.node),
        Step(VF.conv2d, args, {}, (result,), True, step.node),
        Step(Tensor.squeeze, (result, 2), {}, (out,), True, step.node),
    ]


def _with_height(type: TensorType) -> TensorType:
    return TensorType(type.dtype, (*type.shape[:2], 1, type.shape[2]))


def _convolution(h: Compilation, step: Step) -> Convolution | None:
    operands = _operands(h, step) if step.fn is VF.conv2d else None
    if operands is None:
        return None
    weight, bias, padding, stride, dilation, groups = operands
    x, out = step.args[0], step.output
    sizes = [h.hint(d) for d in x.type.shape]
    example = tuple(sizes) if all(sizes) else None  # a hint alone: other sizes give the same numbers
    how = padding, stride, dilation, groups
    packed = h.constants.derive(packed_weight, weight, *how, example, wish=f"{weight.name}_packed")
    return Convolution(x, (packed, bias, *how), out, step.node)


def packed_weight(weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, sizes: Any) -> Tensor:
    """A kernel in the layout that oneDNN wants for inputs of about these sizes with channels last."""
    last = weight.detach().contiguous(memory_format=torch.channels_last)
    result: Tensor = onednn.PACK_CONV(last, padding, stride, dilation, groups, sizes)  # type: ignore[misc]
    return result


def _as_product(h: Compilation, step: Step) -> Step:
    """A batch norm that follows no convolution, over channels last: x * scale + offset, which can be done in place.

    Measured with the ReLU behind it: 0.5 to 0.7 of the time. torch takes rows of few channels one number at a time.
    """
    channels = step.args[0].type.shape[1]
    wide = isinstance(channels, int) and channels >= _VECTOR
    return product(h, step) if wide and is_product(h, step) else step


# -- strides -----------------------------------------------------------------------------------------------------------


def free_of_strides(h: Compilation, block: Block, convolutions: Collection[Any]) -> Collection[Slot]:
    """Convolutions by these functions get and give channels last; returns the tensors that have it.

    Steps behind them see other strides than in torch: views that may fail become reshapes.
    """
    other: set[Any] = set()  # what may have other strides than in torch
    last: dict[Slot, Slot] = {}
    steps: list[Step] = []
    for step in block.steps:
        if step.fn in convolutions:
            x = step.args[0]
            if x not in last:
                last[x] = h.local(f"{x.name}_last", x.type)
                steps.append(Step(Tensor.contiguous, (x,), _LAST, (last[x],), True, step.node))
            steps.append(replace(step, args=(last[x], *step.args[1:])))
            other.update(step.outputs)
            last[step.output] = step.output
            continue
        if other.intersection(step.reads()):
            *copies, step = any_strides(h, step, other)
            steps += copies
            other.update(step.outputs)
            if _keeps_layout(step, last):
                last[step.output] = step.output
        steps.append(step)
    block.steps = steps
    restore_results(h, block, other)
    return set(last.values())


# element-wise steps, pools and cat give channels last for channels last; anything else is asked for again
_KEEP = frozenset([Tensor.relu, Tensor.sigmoid]).union(
    named(VF, "add mul sub div clamp max_pool2d cat batch_norm").values(),
    named(NN, "silu hardswish hardsigmoid hardtanh relu6 gelu avg_pool2d").values(),
)


def _keeps_layout(step: Step, last: dict[Slot, Slot]) -> bool:
    tensors = [s for s in step.reads() if isinstance(s, Slot) and s.type.rank == 4]
    return step.fn in _KEEP and bool(tensors) and all(last.get(s) is s for s in tensors)
