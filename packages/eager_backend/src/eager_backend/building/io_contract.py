"""Where a program meets its caller: inputs moved in, results handed out, mutations written back."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Entry, Slot, Step
from ir.conditions import misfit
from ir.dims import Expr
from ir.graph import Graph, SymbolSource, Value
from ir.importer.calling_convention import Fixed
from ir.importer.pt2.values import lies_contiguous
from ir.importer.schema import TORCH_DTYPES, op_schema
from ir.importer.tensor_meta import Described
from ir.importer.torch_api import OpOverload, is_contiguous_or_false, storage_key
from ir.importer.weights import TorchWeight
from ir.ops import may_alias, may_be_view, overloads_of
from ir.types import DType


def entries(h: Compilation, slots: Sequence[Slot]) -> list[Entry]:
    """What each input must be for the program to stand for the model: steps were chosen and dropped on that ground.

    torch's own module checks sizes at every call as well, but not element types.
    """
    local = {v: h.names.take(f"{v.name}_sizes") for v in h.graph.inputs}
    carried = {n: s for n, s in h.graph.sources.items() if s.value in local and s.axis is not None}
    sizes = {n: (local[s.value], s) for n, s in carried.items()}
    return [_entry(h, v, s, local[v], sizes) for v, s in zip(h.graph.inputs, slots, strict=True)]


def _entry(
    h: Compilation, value: Value, slot: Slot, local: str, sizes: Mapping[str, tuple[str, SymbolSource]]
) -> Entry:
    dtypes = [TORCH_DTYPES[value.type.dtype]]
    if value.type.dtype is DType.float32 and h.target.dtype not in (None, torch.float32):
        dtypes.append(h.target.dtype)
    limits = {}
    for axis, dim in enumerate(value.type.shape):
        known = h.graph.symbols.get(dim.as_symbol or "") if isinstance(dim, Expr) else None
        if known is not None and (known.min or known.max is not None):
            limits[axis] = known.min or 0, known.max

    ranges = h.graph.symbols  # the helper holds on to weights, which a program may let go
    values = {name: source.value for name, source in sizes.values()}

    def refuse(given: Any, *shapes: Any) -> None:
        known = {values[name]: tuple(shape) for name, shape in zip(entry.others, shapes, strict=True)}
        raise misfit(value, ranges, given, {n: s for n, (_, s) in sizes.items()}, known)

    entry = Entry(slot, local, tuple(dtypes), value.type.shape, sizes, limits, refuse)
    return entry


def accept(h: Compilation, value: Value, slot: Slot) -> Slot:
    """An input on the program's device and in its element type; the input itself where nothing is to be done."""
    changes: dict[str, Any] = {}
    users = h.graph.uses.get(value, ())
    if users and all(n.op == "ir::item" for n in users):  # a Python number of the model: it is read where it lies
        return slot
    if h.target.device.type != "cpu":
        changes["device"] = h.target.device
    if h.target.dtype is not None and slot.type.dtype is DType.float32:
        changes["dtype"] = h.target.dtype
    if not changes:
        return slot
    moved = Slot(h.names.take(f"{slot.name}_moved"), slot.type, slot.home)
    h.block.steps.append(Step(Tensor.to, (slot,), changes, (moved,), True))
    return moved


def results(h: Compilation, named: dict[str, Slot]) -> list[Slot]:
    """The slots that the program returns, behind the steps that keep them apart from inputs, weights and each other."""
    slots = list(named.values())
    count = len(h.graph.outputs)
    outputs = [_fresh(h, slots, i) for i in range(count)]
    updates = slots[count:]
    if not updates:
        return outputs
    written = _written(h)
    safe = tuple(Slot(h.names.take(s.name), s.type, h.block) for s in (*outputs, *updates))
    inputs = tuple(s in h.block.inputs for s in written)
    in_inputs = tuple(_lies_in_an_input(h.graph, i) for i in range(count))
    arguments = (tuple(written), tuple(updates), tuple(outputs), inputs, in_inputs)
    h.block.steps.append(Step(write_back, arguments, {}, safe, False))
    return list(safe)


def _fresh(h: Compilation, slots: Sequence[Slot], index: int) -> Slot:
    """A result, copied where it lies in a weight; one that lies in an input or in another result does so in torch."""
    slot = slots[index]
    return _copy(h, slot) if base_of(h, slot).home is None else slot


def own(h: Compilation, slots: Sequence[Slot], index: int) -> Slot:
    """A result of a sub-graph, copied where it may lie in the memory of an input, a constant or an earlier result."""
    slot = slots[index]
    base = base_of(h, slot)
    shared = base.home is None or base in h.block.inputs or base in [base_of(h, s) for s in slots[:index]]
    return _copy(h, slot) if shared else slot


def _copy(h: Compilation, slot: Slot) -> Slot:
    copy = Slot(h.names.take(f"{slot.name}_copy"), slot.type, h.block)
    h.block.steps.append(Step(Tensor.clone, (slot,), {}, (copy,), True))
    return copy


def base_of(h: Compilation, slot: Slot) -> Slot:
    """The value that this one is a view of, as far as views go by their first argument."""
    for step in reversed(h.block.steps):
        if slot in step.outputs and step.args and isinstance(step.args[0], Slot) and _may_be_view(step.fn):
            slot = step.args[0]
    return slot


def _may_be_view(fn: Any) -> bool:
    """True for a binding of torch whose result may lie in the memory of its first argument."""
    name = getattr(fn, "__name__", "")
    return fn is Tensor.__getitem__ or any(may_be_view(op_schema(o)) for o in overloads_of(f"aten::{name}"))


def is_contiguous_in_torch(graph: Graph, index: int) -> bool:
    """True if this result of torch's own program is contiguous, as far as is known."""
    program = getattr(graph.context, "program", None)
    if program is None or index >= len(graph.outputs):
        return True
    value = _users(graph, program)[index].meta.get("val")
    if isinstance(value, Described):
        return lies_contiguous(value)
    return not isinstance(value, Tensor) or is_contiguous_or_false(value)


def _lies_in_an_input(graph: Graph, index: int) -> bool:
    """False if this result of torch's own program is made by an operator, and no view of an input or of a sub-graph."""
    program = getattr(graph.context, "program", None)
    if program is None or index >= len(graph.outputs):
        return True
    node = _users(graph, program)[index]
    while node.op == "call_function":
        if isinstance(node.target, OpOverload) and not may_alias(node.target):
            return False
        if not isinstance(node.target, OpOverload) and node.target is not operator.getitem:
            return True  # a sub-graph, of which nothing is known
        first = node.args[0] if node.args else None
        if not isinstance(first, torch.fx.Node):  # a list of them
            return True
        node = first
    return True


def _users(graph: Graph, program: Any) -> list[Any]:
    """torch's own nodes of `graph.outputs`."""
    kinds = program.graph_signature.output_specs
    returned = program.graph.output_node().args[0]
    users = [r for r, k in zip(returned, kinds, strict=True) if k.kind.name == "USER_OUTPUT"]
    if graph.structure is not None:
        users = [r for r, o in zip(users, graph.structure.outputs, strict=True) if not isinstance(o, Fixed)]
    return users


def _written(h: Compilation) -> list[Slot]:
    """The buffers and inputs that the model mutates, in the order of `graph.updates`."""
    inputs = {v.name: s for v, s in zip(h.graph.inputs, h.block.inputs, strict=True)}
    buffers = {w.name: h.weight(v, w) for v, w in h.graph.weights.items() if w.name in h.graph.updates}
    for name in h.graph.updates:
        if name not in buffers and name not in inputs:  # written as a whole, and read by nobody before
            captured = h.graph.context.program
            tensor = captured.state_dict[name] if name in captured.state_dict else captured.constants[name]
            weight = TorchWeight(name, tensor)
            buffers[name] = h.weight(Value(name, weight.type), weight)
    return [buffers[name] if name in buffers else inputs[name] for name in h.graph.updates]


def write_back(
    targets: Sequence[Tensor], values: Sequence[Tensor], outputs: Sequence[Tensor], inputs: Sequence[bool],
    in_inputs: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Give mutated buffers and inputs their new contents; returns outputs and values.

    An output that lies in the new contents of an input lies in that input where torch's does (`in_inputs`); of a
    buffer it is a copy, which the next call does not change.
    """
    memory = {m for t in targets for m in _memory(t)}
    safe = [r.clone() if not memory.isdisjoint(_memory(r)) else r for r in (*outputs, *values)]
    values = safe[len(outputs) :]
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
    for target, value, is_input in zip(targets, values, inputs, strict=True):
        for i, output in enumerate(safe[: len(outputs)]) if is_input else ():
            if in_inputs[i] and _memory(output) == _memory(value) and output.dtype is target.dtype:
                view = _same_view(output, value, target) if value.device == target.device else None
                safe[i] = output if view is None else view
    return tuple(safe)


def _same_view(view: Tensor, value: Tensor, target: Tensor) -> Tensor | None:
    """The view of the target that has the places of `view` in `value`; None if its layout has none."""
    left, offset = int(view.storage_offset() - value.storage_offset()), int(target.storage_offset())
    starts: dict[int, int] = {}
    if all(s == 1 or a == b for s, a, b in zip(value.shape, value.stride(), target.stride(), strict=True)):
        return target.as_strided(view.size(), view.stride(), offset + left)
    axes = sorted((i for i, s in enumerate(value.shape) if s > 1 and value.stride(i)), key=value.stride, reverse=True)
    for i in axes:
        starts[i], left = divmod(left, value.stride(i))
        offset += starts[i] * target.stride(i)
    strides = []
    for size, stride in zip(view.shape, view.stride(), strict=True):
        steps = ((i, stride // value.stride(i)) for i in axes if stride % value.stride(i) == 0)
        found = next((i for i, n in steps if starts[i] + n * (size - 1) < value.shape[i]), None) if size > 1 else -1
        if found is None:
            return None
        strides.append(1 if found < 0 else stride // value.stride(found) * target.stride(found))
    made = target.as_strided(view.size(), strides, offset)
    return made if torch.equal(made, view) else None


def _memory(tensor: Tensor) -> tuple[int, ...]:
    """The storages that a tensor lies in; its own object where torch shows none (sparse layouts)."""
    return (storage_key(tensor),) if tensor.layout is torch.strided else (id(tensor),)
