"""What a pass does that gives tensors other strides than torch's: the steps behind it stop looking at strides.

Calls that nothing is known of get contiguous tensors, results torch's strides; views are reshapes anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType
from typing import Any

from torch import Tensor

from eager_backend.building import io_contract
from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block, Function, Number, Slot, Step
from eager_backend.passes.group_norm import centred
from eager_backend.registry import Kernel
from ir.importer.torch_api import VF
from ir.ops import is_random

_NEED_CONTIGUOUS = (Function, Number, FunctionType, Kernel)
_STRIDED = frozenset(
    # the last three fail where a view inside of them does
    [VF.as_strided, VF.view_as_real, VF.view_as_complex, VF.kron, VF.take_along_dim, VF.native_group_norm]
)


def any_strides(h: Compilation, step: Step, other: Collection[Any]) -> list[Step]:
    """The step in a form that gives the same whatever strides the tensors `other` have."""
    if step.fn is VF.group_norm:
        return centred(h, step, other)
    draws = step.node is not None and is_random(step.node)  # numbers are drawn in the order of memory
    strided = step.fn in _STRIDED or step.fn is Tensor.view or draws
    if not strided and (not isinstance(step.fn, _NEED_CONTIGUOUS) or step.fn is io_contract.write_back):
        return [step]
    changed = {s: h.local(s.name, s.type) for s in step.reads() if isinstance(s, Slot) and s in other}
    copies = [Step(Tensor.contiguous, (s,), {}, (c,), True, step.node) for s, c in changed.items()]
    return [*copies, step.substitute(changed)]


def restore_results(h: Compilation, block: Block, other: Collection[Any]) -> None:
    """Give results among `other` torch's own strides back, as far as they are known to be contiguous there."""
    block.results = [_restored(h, s, i) if s in other else s for i, s in enumerate(block.results)]


def _restored(h: Compilation, slot: Slot, index: int) -> Slot:
    if not io_contract.is_contiguous_in_torch(h.graph, index):
        return slot
    restored = h.local(slot.name, slot.type)
    h.block.steps.append(Step(Tensor.contiguous, (slot,), {}, (restored,), True))
    return restored
