"""Where a program meets its caller: inputs moved in, results handed out, mutations written back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eager_backend.registry import named
from eager_backend.steps import Slot, Step
from ir.graph import Graph
from ir.importer.structure import Fixed
from ir.types import DType

if TYPE_CHECKING:
    from eager_backend.helper import EagerHelper


_VIEWS = frozenset(
    named(
        Tensor,
        "detach view reshape permute transpose t expand squeeze unsqueeze select flatten diagonal contiguous to unbind "
        "__getitem__",
    ).values()
)


def accept(h: EagerHelper, slot: Slot) -> Slot:
    """An input on the program's device and in its element type; the input itself where nothing is to be done."""
    changes: dict[str, Any] = {}
    if h.target.device.type != "cpu":
        changes["device"] = h.target.device
    if h.target.dtype is not None and slot.type.dtype is DType.float32:
        changes["dtype"] = h.target.dtype
    if not changes:
        return slot
    moved = Slot(h.names.take(f"{slot.name}_moved"), slot.type, slot.home)
    h.block.steps.append(Step(Tensor.to, (slot,), changes, (moved,), True))
    return moved


def results(h: EagerHelper, named: dict[str, Slot]) -> list[Slot]:
    """The slots that the program returns, behind the steps that keep them apart from inputs, weights and each other."""
    slots = list(named.values())
    count = len(h.graph.outputs)
    outputs = [_fresh(h, slots, i) for i in range(count)]
    updates = slots[count:]
    if not updates:
        return outputs
    written = _written(h)
    safe = tuple(Slot(h.names.take(s.name), s.type, h.block) for s in (*outputs, *updates))
    arguments = (tuple(written), tuple(updates), tuple(outputs))
    h.block.steps.append(Step(write_back, arguments, {}, safe, False))
    return list(safe)


def _fresh(h: EagerHelper, slots: Sequence[Slot], index: int) -> Slot:
    """A result, copied where torch returns a tensor of its own and the graph, which drops copies, has none."""
    slot = slots[index]
    constant = _base(h, slot).home is None
    shared = slot in h.block.inputs or slot in slots[:index]
    if not constant and (not shared or _same_in_torch(h.graph, index)):
        return slot
    copy = Slot(h.names.take(f"{slot.name}_copy"), slot.type, h.block)
    h.block.steps.append(Step(Tensor.clone, (slot,), {}, (copy,), True))
    return copy


def _base(h: EagerHelper, slot: Slot) -> Slot:
    """The value that this one is a view of, as far as views go by their first argument."""
    for step in reversed(h.block.steps):
        if slot in step.outputs and step.fn in _VIEWS and isinstance(step.args[0], Slot):
            slot = step.args[0]
    return slot


def _same_in_torch(graph: Graph, index: int) -> bool:
    """True if torch's own program returns an input or an earlier result as it is."""
    program = getattr(graph.context, "program", None)
    if program is None:
        return True
    users = _users(graph, program)
    node = users[index]
    return bool(node.op == "placeholder" or node in users[:index])


def is_contiguous_in_torch(graph: Graph, index: int) -> bool:
    """True if this result of torch's own program is contiguous, as far as is known."""
    program = getattr(graph.context, "program", None)
    if program is None or index >= len(graph.outputs):
        return True
    value = _users(graph, program)[index].meta.get("val")
    return not isinstance(value, Tensor) or bool(value.is_contiguous())


def _users(graph: Graph, program: Any) -> list[Any]:
    """torch's own nodes of `graph.outputs`."""
    kinds = program.graph_signature.output_specs
    returned = program.graph.output_node().args[0]
    users = [r for r, k in zip(returned, kinds, strict=True) if k.kind.name == "USER_OUTPUT"]
    if graph.structure is not None:
        users = [r for r, o in zip(users, graph.structure.outputs, strict=True) if not isinstance(o, Fixed)]
    return users


def _written(h: EagerHelper) -> list[Slot]:
    """The buffers and inputs that the model mutates, in the order of `graph.updates`."""
    inputs = {v.name: s for v, s in zip(h.graph.inputs, h.block.inputs, strict=True)}
    buffers = {w.name: h.weight(v, w) for v, w in h.graph.weights.items() if w.name in h.graph.updates}
    return [buffers[name] if name in buffers else inputs[name] for name in h.graph.updates]


def write_back(targets: Sequence[Tensor], values: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Give mutated buffers and inputs their new contents; returns outputs and values, none in a target's memory."""
    memory = {m for t in targets for m in _memory(t)}
    safe = tuple(r.clone() if not memory.isdisjoint(_memory(r)) else r for r in (*outputs, *values))
    for target, value in zip(targets, safe[len(outputs) :], strict=True):
        target.copy_(value)
    return safe


def _memory(tensor: Tensor) -> tuple[int, ...]:
    """The storages that a tensor lies in; its own object where torch shows none (sparse layouts)."""
    return (tensor.untyped_storage()._cdata,) if tensor.layout is torch.strided else (id(tensor),)
