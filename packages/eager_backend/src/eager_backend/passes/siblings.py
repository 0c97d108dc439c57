"""Linear layers over one input become one: q, k and v of attention, whose widths may differ.

One product over the weights one below the other, then a view for each layer. The joint weight is derived from the
model's own, so it is made again when weights are replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.onednn import activation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.constants import escaping
from eager_backend.passes.linear import operands
from eager_backend.passes.strides import any_strides, restore_results
from ir.importer.torch_api import NN, VF
from ir.types import TensorType


def join_siblings(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps; only the whole program's block, whose results can get their strides back."""
    if block is not h.block:
        return
    joined = {group[0]: group for group in _groups(h, block)}
    if not joined:
        return
    gone = {step for group in joined.values() for step in group[1:]}
    pieces: set[Any] = set()  # they, and all that is made of them, may have other strides than in torch
    steps: list[Step] = []
    for step in block.steps:
        if step in joined:
            steps += _joint(h, joined[step])
            pieces.update(s.output for s in joined[step])
        elif step not in gone:
            if pieces.intersection(step.reads()):
                *copies, step = any_strides(h, step, pieces)
                steps += copies
                pieces.update(step.outputs)
            steps.append(step)
    block.steps = steps
    restore_results(h, block, pieces)


def _groups(h: Compilation, block: Block) -> list[list[Step]]:
    """Layers over one input with weights that no call changes, alike in all but their width, two or more."""
    alone = _fusing(block) | escaping(block)  # a view handed out would keep the whole joint result alive
    found: dict[Any, dict[Slot, Step]] = defaultdict(dict)  # by weight: a layer called twice is in once
    for step in block.steps:
        x, weight, bias, transposed = operands(step)
        if x is None or step.output in alone or not all(h.constants.is_frozen(t) for t in (weight, bias) if t):
            continue
        found[x, transposed, bias is None, h.constants.tensor(weight).dtype].setdefault(weight, step)
    return [list(group.values()) for group in found.values() if len(group) > 1]


def _fusing(block: Block) -> set[Any]:
    """What an activation or an addition reads: a layer by itself can take that in, a joint one cannot."""
    return {
        a for s in block.steps if activation(s) or (s.fn is VF.add and not s.kwargs) for a in s.args
        if isinstance(a, Slot)
    }  # fmt: skip


def _joint(h: Compilation, group: Sequence[Step]) -> list[Step]:
    """One layer in the place of several, and their results as views of its own."""
    first, parts = group[0].output, [operands(step) for step in group]
    x, transposed = parts[0][0], parts[0][3]
    widths = tuple(weight.type.shape[1 if transposed else 0] for _, weight, _, _ in parts)
    name = f"{parts[0][1].name}_joint"
    weight = h.constants.derive(joint_weight, transposed, *(w for _, w, _, _ in parts), wish=name)
    bias = None
    if parts[0][2] is not None:
        bias = h.constants.derive(joint_bias, *(b for _, _, b, _ in parts), wish=f"{name}_bias")
    out = h.local(f"{first.name}_joint", TensorType(first.type.dtype, (*first.type.shape[:-1], sum(widths))))
    return [
        Step(NN.linear, (x, weight, bias), {}, (out,), True, group[0].node),
        Step(Tensor.split_with_sizes, (out, widths, -1), {}, tuple(s.output for s in group), False, group[0].node),
    ]


def joint_weight(transposed: bool, *weights: Tensor) -> Tensor:
    """The layers' weights as (out, in), one below the other."""
    return torch.cat([w.t() if transposed else w for w in weights])


def joint_bias(*biases: Tensor) -> Tensor:
    """The layers' biases in one row."""
    return torch.cat(biases)
