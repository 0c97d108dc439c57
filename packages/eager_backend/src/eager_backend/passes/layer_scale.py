"""A linear layer or a convolution, then a product with one fixed number a channel (LayerScale): one layer.

Its weights are computed when the program is loaded, and again when weights are replaced. In ConvNeXt a permutation
stands in between, which the numbers of a channel do not mind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.batch_norm import CONVOLUTIONS
from eager_backend.passes.fusion import readers
from ir.importer.torch_api import NN, VF


@dataclass(frozen=True)
class Scaled:
    """The steps of one such product, by their places: the layer, and what permutes its result."""

    layer: int
    permutation: int | None
    scale: Slot


def fold_layer_scale(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps."""
    counts = readers(block)
    made: dict[Any, int] = {}  # tensors that one step alone reads -> the step that makes them
    steps: list[Step] = []
    for step in block.steps:
        found = _scaled(h, step, steps, made)
        if found is not None:
            _fold(h, steps, found, step.output)
            place = found.layer if found.permutation is None else found.permutation
        else:
            place = len(steps)
            steps.append(step)
        if len(step.outputs) == 1 and counts[step.outputs[0]] == 1:  # type: ignore[index]
            made[step.outputs[0]] = place
    block.steps = steps


def _scaled(h: Compilation, step: Step, steps: list[Step], made: dict[Any, int]) -> Scaled | None:
    if step.fn is not VF.mul or step.kwargs or not all(isinstance(a, Slot) for a in step.args):
        return None
    for scale, x in (step.args, step.args[::-1]):
        place, permutation = made.get(x), None
        if place is None or x.type != step.output.type or not h.constants.is_frozen(scale):
            continue
        axes = tuple(range(x.type.rank))
        if steps[place].fn is Tensor.permute:
            permutation, axes = place, tuple(a % x.type.rank for a in steps[place].args[1:])
            place = made.get(steps[place].args[0])
        if place is None or not _takes(h, steps[place], scale):
            continue
        channel = axes.index(1 if steps[place].fn in CONVOLUTIONS else len(axes) - 1)
        wanted = [1] * len(axes)
        wanted[channel] = steps[place].args[1].type.shape[0]
        if [*[1] * (len(axes) - scale.type.rank), *scale.type.shape] == wanted:
            return Scaled(place, permutation, scale)
    return None


def _takes(h: Compilation, layer: Step, scale: Slot) -> bool:
    """True for a layer of batches over weights that no call changes, all of one element type."""
    batches = layer.fn in CONVOLUTIONS and layer.output.type.rank == layer.args[1].type.rank
    if layer.kwargs or (layer.fn is not NN.linear and not batches):
        return False
    weights = [w for w in layer.args[1:3] if isinstance(w, Slot)]
    return all(h.constants.is_frozen(w) and w.type.dtype is scale.type.dtype for w in weights)


def _fold(h: Compilation, steps: list[Step], found: Scaled, out: Slot) -> None:
    """Make the layer give what the product gave."""
    layer = steps[found.layer]
    weight, bias = (*layer.args[1:3], None)[:2]
    scaled = h.constants.derive(scaled_rows, weight, found.scale, wish=f"{weight.name}_scaled")
    if bias is not None:
        bias = h.constants.derive(scaled_rows, bias, found.scale, wish=f"{bias.name}_scaled")
    result = out if found.permutation is None else h.local(f"{layer.output.name}_scaled", layer.output.type)
    steps[found.layer] = replace(layer, args=(layer.args[0], scaled, bias, *layer.args[3:]), outputs=(result,))
    if found.permutation is not None:
        permutation = steps[found.permutation]
        steps[found.permutation] = replace(permutation, args=(result, *permutation.args[1:]), outputs=(out,))


def scaled_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """A layer's weight, or its bias, with one number for each of its rows multiplied in."""
    return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
