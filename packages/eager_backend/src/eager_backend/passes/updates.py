"""An input that the model writes to at some places is written where it lies: a cache of keys, of a new token.

The graph has the new contents as a tensor of its own, and the program copies it into the input at the end. Here the
step that makes it writes into the input at once. Of the old contents nothing but the size may be read elsewhere: then
the step may be done twice, as a program is that fails and is run by torch instead (`runtime/captured.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.io_contract import base_of, write_back
from eager_backend.building.steps import Block, Slot, Step
from eager_backend.passes.strides import any_strides
from eager_backend.registry import Kernel
from ir.importer.torch_api import plain_call

# Ops that give the same when they are done twice, and the call that writes: the step of such a node has its arguments.
IN_PLACE: Mapping[str, Any] = {
    "aten::index_copy": Tensor.index_copy_,
    "aten::index_put": Kernel("aten_index_put_inplace", plain_call(torch.ops.aten.index_put_.default)),
}


def write_updates(h: Compilation, block: Block) -> None:
    """Rewrite the block's steps; only the whole program's block writes to inputs."""
    if not block.steps or block.steps[-1].fn is not write_back:
        return
    *steps, end = block.steps
    targets, updates, outputs, inputs, in_inputs = end.args
    rows = list(zip(targets, updates, inputs, end.outputs[len(outputs) :], strict=True))
    readers: dict[Any, list[Step]] = defaultdict(list)
    for step in steps:
        for slot in step.reads():
            readers[slot].append(step)
    makers = _single_steps(steps)
    apart = {base_of(h, output) for output, lies_in_input in zip(outputs, in_inputs, strict=True) if not lies_in_input}
    written: set[Step] = set()
    handed: dict[Any, Slot] = {}  # what the program returned as the new contents -> the input itself
    for target, update, is_input, result in rows:
        maker = makers.get(update) if is_input and target not in outputs and update not in apart else None
        if maker is None or not _writes(maker, target, readers[target]):
            continue
        if all(any_strides(h, s, {update}) == [s] for s in readers[update]):  # it has the input's, whatever they are
            written.add(maker)
            handed[result] = update
    if not written:
        return
    block.steps = [replace(s, fn=IN_PLACE[s.node.op]) if s in written and s.node else s for s in steps]
    block.results = [handed.get(r, r) for r in block.results]
    if left := [row for row in rows if row[3] not in handed]:
        *args, results = zip(*left, strict=True)
        given = (args[0], args[1], outputs, args[2], in_inputs)
        block.steps.append(replace(end, args=given, outputs=(*end.outputs[: len(outputs)], *results)))
    else:
        kept = dict(zip(end.outputs, outputs, strict=False))
        block.results = [kept.get(r, r) for r in block.results]


def _single_steps(steps: Sequence[Step]) -> dict[Any, Step]:
    """By its result, each step behind the last check that is all of a node: a check that fails is to change nothing."""
    counts = Counter(s.node for s in steps)
    checks = [i for i, s in enumerate(steps) if not s.outputs]
    late = steps[checks[-1] + 1 if checks else 0 :]
    return {s.outputs[0]: s for s in late if len(s.outputs) == 1 and counts[s.node] == 1}


def _writes(step: Step, target: Slot, readers: Sequence[Step]) -> bool:
    """True if the step writes to some places of the target, of which nothing but the size is read elsewhere."""
    node = step.node
    if node is None or node.op not in IN_PLACE or node.args.get("accumulate") or step.output.type != target.type:
        return False
    once = step.args[0] is target and readers.count(step) == 1
    return once and all(s is step or s.fn is Tensor.size for s in readers)
