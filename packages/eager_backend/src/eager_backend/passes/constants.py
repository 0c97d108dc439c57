"""What reads nothing but weights is computed when the program is loaded: masks, positions, casts, transposes.

The results are constants like the weights themselves: they are never handed out, so no caller can write into one,
and they are computed again when weights are replaced.
"""

from __future__ import annotations

from typing import Any

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Function, Number, Slot, Step
from eager_backend.passes.inplace import FRESH
from ir.importer.checked import UncheckedError, checking
from ir.ops import is_pure

_LARGEST = 2**22  # elements that a result may have beyond those of what it is made of


def fold_constants(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps."""
    handed_out = escaping(block)
    known: dict[Slot, Slot] = {}
    steps: list[Step] = []
    for step in block.steps:
        if known:
            step = step.substitute(known)
        if not _is_constant(h, step) or handed_out.intersection(step.outputs):
            steps.append(step)
            continue
        wishes = [o.name for o in step.outputs]
        try:
            results = h.constants.derive_all(_safe(h, step), step.args, step.kwargs, wishes, step.single)
        except (RuntimeError, UncheckedError):  # the kernel takes no such weights: in torch, too, that shows at a run
            steps.append(step)
            continue
        known.update(zip(step.outputs, results, strict=True))  # type: ignore[arg-type]
    block.steps = steps


def _safe(h: Compilation, step: Step) -> Any:
    """The step's function, of a file's numbers or a division without the kernels that do not look at them."""
    context = h.graph.context
    guarded = context is not None and step.node is not None and (context.of_file or context.is_doubtful(step.node))
    return checking(step.fn) if guarded else step.fn


def escaping(block: Block) -> set[Any]:
    """The results, and all that they may be views of."""
    found: set[Any] = set(block.results)
    for step in reversed(block.steps):
        if found.intersection(step.outputs) and step.fn not in FRESH:
            found.update(step.reads())
    return found


def _is_constant(h: Compilation, step: Step) -> bool:
    node = step.node
    if node is None or not node.op.startswith("aten::") or not step.outputs:
        return False
    if not all(isinstance(o, Slot) for o in step.outputs):
        return False
    if any(isinstance(a, (Function, Number)) for a in step.reads()) or isinstance(step.fn, (Function, Number)):
        return False
    if not all(h.constants.is_frozen(s) for s in step.reads() if isinstance(s, Slot)) or not is_pure(node):
        return False
    return all(_size(o.type.shape) <= _room(step) for o in step.outputs if isinstance(o, Slot))


def _room(step: Step) -> float:
    return _LARGEST + sum(_size(s.type.shape) for s in step.reads() if isinstance(s, Slot))


def _size(shape: Any) -> float:
    """The number of elements; infinite where a dimension is not known."""
    total = 1.0
    for dim in shape:
        total *= dim if isinstance(dim, int) else float("inf")
    return total
