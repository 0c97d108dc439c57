"""A permuted linear layer plus a tensor that lies in the same way: the sum first, of what is not permuted.

ConvNeXt computes its layers with the channels last and adds their results as images. The strides stay torch's: both
summands are such views, and so is the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from eager_backend.building import onednn
from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.fusion import readers, summands
from ir.importer.torch_api import NN, VF
from ir.types import TensorType

_CONTIGUOUS: Collection[Any] = (NN.linear, VF.layer_norm)  # of any strides of their inputs
_IMAGES = (0, 3, 1, 2)  # from channels last


def sum_before_permutations(h: Compilation, block: Block, takes_sums: Callable[[Step], bool]) -> None:
    """Rewrite the block's steps, where the layer is one that `takes_sums`."""
    counts = readers(block)
    permuted: dict[Any, tuple[int, ...]] = {}  # views of contiguous tensors -> how they are permuted
    made: dict[Any, Step] = {}
    steps: dict[Step, None] = {}
    for step in block.steps:
        found = None
        for a, b in summands(step):
            view = made.get(a)
            layer = made.get(view.args[0]) if view is not None and view.fn is Tensor.permute else None
            if view is None or layer is None or permuted.get(a, ()) != permuted.get(b):
                continue
            if counts[a] == counts[layer.output] == 1 and takes_sums(layer):
                found = view, layer, b
        if found is None:
            steps[step] = None
            permuted.update(_permuted(step, made))
        else:
            view, layer, other = found
            axes = permuted[step.output] = permuted[other]
            del steps[view]
            steps.update(dict.fromkeys(_sum(h, step, layer.output, other, axes)))
        made.update((o, step) for o in step.outputs if len(step.outputs) == 1)
    block.steps = list(steps)


def _permuted(step: Step, made: Mapping[Any, Step]) -> dict[Any, tuple[int, ...]]:
    """The step's result and its permutation, if it is such a view, or lies in the same way."""
    if step.fn is Tensor.permute and step.args[0] in made and made[step.args[0]].fn in _CONTIGUOUS:
        return {step.output: tuple(a % step.output.type.rank for a in step.args[1:])}
    images = step.fn in (onednn.CONV, onednn.CONV_ADD) and step.output.type.rank == len(_IMAGES)
    return {step.output: _IMAGES} if images else {}


def _sum(h: Compilation, step: Step, layer: Slot, other: Slot, axes: tuple[int, ...]) -> list[Step]:
    back = tuple(axes.index(i) for i in range(len(axes)))
    type = TensorType(layer.type.dtype, layer.type.shape)
    given, total = h.local(f"{other.name}_back", type), h.local(f"{step.output.name}_back", type)
    return [
        Step(Tensor.permute, (other, *back), {}, (given,), True, step.node),
        replace(step, args=(layer, given), outputs=(total,)),
        Step(Tensor.permute, (total, *axes), {}, (step.output,), True, step.node),
    ]
