"""Element-wise results take the place of an operand that nothing reads afterwards: no allocation, memory in cache.

The importer makes in-place ops functional; this gives them back, and finds those that the model did not write. An
operand may be written over if this block made it, as memory of its own, and every other reader of it made memory of
its own too, so that no view of it can be alive.

torch gives a result the strides of the first operand, and views behind it may need those: the second is written over
only where it lies in the same way, or the first is broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from eager_backend.building import onednn
from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.registry import named
from ir.importer.torch_api import NN, VF
from ir.types import DType


def _twins(names: str, namespace: Any, twin: Any = Tensor) -> dict[Any, Any]:
    """Each function with its in-place form."""
    return {fn: getattr(twin, f"{name}_") for name, fn in named(namespace, names).items()}


IN_PLACE: Mapping[Any, Any] = {
    **_twins(
        "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma "
        "log log10 log1p log2 neg reciprocal relu rsqrt sigmoid sign sin sinc sinh sqrt square tan tanh trunc",
        Tensor,
    ),
    **_twins("add sub mul div clamp clamp_min clamp_max pow", VF),
    **_twins("elu hardsigmoid hardswish hardtanh leaky_relu silu", NN, NN),
    onednn.CONV_ADD: onednn.CONV_ADD_,
}
COMMUTATIVE = (VF.add, VF.mul)
_SECOND = (onednn.CONV_ADD,)  # calls that write over their second operand
_OUT = (VF.addcmul,)  # calls that are told by name to write over their second operand

# Calls whose results are memory of their own, whatever they are given.
FRESH: frozenset[Any] = frozenset((*IN_PLACE, *_OUT)).union(
    named(
        VF,
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d matmul mm bmm addmm baddbmm batch_norm layer_norm "
        "group_norm rms_norm softmax log_softmax mean sum amax amin argmax argmin var std cat stack embedding "
        "max_pool1d max_pool2d avg_pool1d where masked_fill maximum minimum eq ne lt le gt ge rsub cumsum "
        "index_select gather arange zeros ones full zeros_like ones_like full_like",
    ).values(),
    named(
        NN,
        "linear gelu glu softplus mish relu6 avg_pool2d adaptive_avg_pool2d scaled_dot_product_attention log_sigmoid "
        "upsample_bilinear2d upsample_nearest2d",
    ).values(),
    onednn.KERNELS,
    [Tensor.size],
)

# Calls whose results lie in rows, or with the channels last, whatever they are given.
_ROWS = named(VF, "mm bmm addmm baddbmm layer_norm embedding arange zeros ones full")
_LAYOUTS: Mapping[Any, str] = {
    **dict.fromkeys((*_ROWS.values(), NN.linear, onednn.LINEAR, onednn.LINEAR_ADD), "rows"),
    **dict.fromkeys((onednn.CONV, onednn.CONV_ADD), "last"),
}
_VIEWS_OF_ROWS = (Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.unsqueeze)


def write_in_place(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps."""
    last: dict[Slot, int] = {}
    aliased: set[Slot] = set(block.results)
    owned: set[Slot] = set()
    for i, step in enumerate(block.steps):
        fresh = step.fn in FRESH
        for v in step.reads():
            if isinstance(v, Slot):
                last[v] = i
                if not fresh:
                    aliased.add(v)
        if fresh:
            owned.update(o for o in step.outputs if isinstance(o, Slot))
    own = owned - aliased
    steps: list[Step] = []
    layouts: dict[Slot, str] = {}
    for i, step in enumerate(block.steps):
        free = {s for s in step.reads() if isinstance(s, Slot) and last[s] == i and s in own}
        steps.append(_written(step, free, layouts) if free and (step.fn in IN_PLACE or step.fn in _OUT) else step)
        _note_layout(step, layouts)
    block.steps = steps


def _note_layout(step: Step, layouts: dict[Slot, str]) -> None:
    """How the step's result lies, where that is known."""
    read = [s for s in step.reads() if isinstance(s, Slot)]
    found = _LAYOUTS.get(step.fn)
    if found is None and step.fn in _VIEWS_OF_ROWS and read and layouts.get(read[0]) == "rows":
        found = "rows"
    elif found is None and (step.fn in IN_PLACE or step.fn is NN.gelu):
        tags = {layouts.get(s) for s in read if s.type.shape == step.output.type.shape}
        found = tags.pop() if len(tags) == 1 else None
    if found is not None:
        layouts[step.output] = found


def _lie_alike(step: Step, layouts: Mapping[Slot, str]) -> bool:
    """True if the second operand has the strides that torch gives the result."""
    first, second = step.args[:2]
    if not isinstance(first, Slot) or first.type.shape != second.type.shape or second.type.rank < 2:
        return True
    return first in layouts and layouts[first] == layouts.get(second)


def _written(step: Step, free: set[Slot], layouts: Mapping[Slot, str]) -> Step:
    result = step.outputs[0]
    for order in _orders(step, layouts):
        target = order[0]
        if not isinstance(target, Slot) or target not in free or not isinstance(result, Slot):
            continue
        once = sum(v is target for v in step.reads()) == 1
        if (
            once
            and target.type == result.type
            and not target.type.is_sparse
            and target.type.dtype in (DType.float32, DType.float64)
        ):
            if step.fn in _OUT:
                return replace(step, kwargs={**step.kwargs, "out": target})
            return replace(step, fn=IN_PLACE[step.fn], args=order)
    return step


def _orders(step: Step, layouts: Mapping[Slot, str]) -> list[tuple[Any, ...]]:
    """The arguments with the operand that may be written over in front."""
    if len(step.args) < 2:
        return [step.args]
    swapped = (step.args[1], step.args[0], *step.args[2:])
    if step.fn in _SECOND:
        return [swapped]
    alike = isinstance(step.args[1], Slot) and _lie_alike(step, layouts)
    if step.fn in _OUT:
        return [swapped] if alike else []
    plain = step.fn in COMMUTATIVE and len(step.args) == 2 and not step.kwargs
    return [step.args, swapped] if plain and alike else [step.args]
