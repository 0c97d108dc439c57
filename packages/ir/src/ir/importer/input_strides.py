"""Inputs whose strides decide what a program computes: observed, by running it again with each in another layout.

torch.export notes no condition on strides. A graph reads an input's elements in order, wherever they lie, but for two
things, which are as they were in the example: what `as_strided` reads, and whether a write through `reshape`,
`contiguous` or another op that returns a view or a copy reaches its operand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node as FxNode

from ir.errors import RefusedError
from ir.graph import Value
from ir.importer.aliases import Outcome, Seen, observe, seen_in
from ir.importer.fx_ops import is_writer
from ir.importer.memory_uses import Uses, memories_in
from ir.importer.origins import origin_of
from ir.importer.schema import op_schema
from ir.importer.tensor_meta import Tensors, graphs_of
from ir.importer.torch_api import OpOverload, has_kernel
from ir.ops import may_be_view


@dataclass(frozen=True)
class Strides:
    """How an input lies in memory in the example, and what depends on it.

    Attributes:
        example: the numbers of elements from one to the next along each axis.
        order: the axes, the outermost in memory first; None where there are gaps or repetitions.
        offset: where it begins in its storage, if the op counts from there.
        op: what depends on it, "aten::as_strided".
        origin: the model's line that calls the op.
        writes: whether it decides what a write reaches; else what is read.
    """

    example: tuple[int, ...]
    order: tuple[int, ...] | None
    offset: int | None
    op: str
    origin: str
    writes: bool

    def held_by(self, x: torch.Tensor) -> bool:
        """True if the tensor lies in memory as the example does."""
        if self.offset not in (None, x.storage_offset()):
            return False
        return x.stride() == self.example if self.order is None else x.permute(self.order).is_contiguous()


def check_strides(
    known: Mapping[str, Strides], values: Sequence[Value], tensors: Sequence[torch.Tensor], reads: bool
) -> None:
    """Refuse an input that lies in memory otherwise than the program was made for.

    Args:
        known: by the names of inputs, those whose strides matter.
        values: the graph's inputs.
        tensors: what is given for them.
        reads: False of a runtime with strides, where `as_strided` reads the input as it lies there.

    Raises:
        RefusedError: one does; it is named, and what depends on its strides.
    """
    for value, x in zip(values, tensors, strict=True):
        made = known.get(value.name)
        if made is None or not (reads or made.writes) or x.layout is not torch.strided or made.held_by(x):
            continue
        plain = made.order == tuple(range(x.dim()))
        like = "a contiguous tensor" if plain else f"one that lies in memory as one of strides {made.example}"
        way = f"give {value.name}.contiguous()" if plain else "lay it out as in the example"
        place = f" and begins at place {x.storage_offset()}" if made.offset is not None else ""
        raise RefusedError(
            f"the input {value.name} has strides {x.stride()}{place}, and {made.op} depends on them: the program was "
            f"made for {like}; {way}, or capture the model with an example like this\n  at {made.origin}"
        )


def reads_strides(module: torch.nn.Module) -> bool:
    """True if an op of the module's graph, or of one that it calls, reads memory by strides."""
    return any(_reads_strides(n) for graph in graphs_of(module) for n in graph.nodes)


def observed(
    module: torch.nn.Module,
    weights: Mapping[FxNode, torch.Tensor],
    inputs: Collection[FxNode],
    seen: Mapping[FxNode, Outcome],
) -> Mapping[FxNode, Strides]:
    """The inputs among these placeholders whose strides matter.

    Args:
        module: a program, in torch's own form.
        weights: the model's tensors behind its other placeholders.
        inputs: placeholders of tensors that a call is given.
        seen: what its nodes do, of a program that writes; else empty.
    """
    graph: Any = module.graph
    nodes = [n for g in graphs_of(module) for n in g.nodes]
    suspects = [n for n in nodes if _reads_strides(n) or (seen and _may_copy(n))]
    if not suspects:
        return {}
    run = _Run(seen or observe(graph, module, weights))
    suspects = [n for n in suspects if n in run.done and (_reads_strides(n) or run.is_written_behind(n))]
    found = {}
    for given in inputs if suspects else ():
        for lay in (_spread, _in_rows) if given.meta["val"].dim() else ():
            other = _Run(observe(graph, module, weights, (given, lay)))
            reader = next((n for n in suspects if run.differs(n, other)), None)
            if reader is not None:
                found[given] = _strides(given, reader, not _reads_strides(reader) or run.is_written(reader))
                break
    return found


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """Column after column with gaps, so that no two axes are one."""
    strides, step = [], 2
    for size in tensor.shape:
        strides.append(step)
        step = step * (size + 1)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _strides(given: FxNode, reader: FxNode, writes: bool) -> Strides:
    fake, schema = given.meta["val"], op_schema(reader.target)
    example = tuple(map(_number, fake.stride()))
    like = torch.empty_strided(tuple(map(_number, fake.shape)), example, device="meta")
    order = tuple(sorted(range(like.dim()), key=lambda axis: -example[axis]))
    dense = like.permute(order).is_contiguous()
    placed = schema.bind(reader.args, dict(reader.kwargs)).get("storage_offset") is not None
    offset = _number(fake.storage_offset()) if placed else None
    return Strides(example, order if dense else None, offset, schema.op, str(origin_of(reader)), writes)


def _number(size: int | torch.SymInt) -> int:
    """A size in the example, or any where data decides it."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 7


def _reads_strides(node: FxNode) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    schema = op_schema(node.target)
    return "storage_offset" in schema.names or schema.op in ("aten::sym_stride", "aten::sym_storage_offset")


def _may_copy(node: FxNode) -> bool:
    """True of an op that returns a view of its operand or a copy: it is composed of others, by what it is given."""
    if not isinstance(node.target, OpOverload) or is_writer(node) or not may_be_view(op_schema(node.target)):
        return False
    return has_kernel(node.target.name(), "CompositeImplicitAutograd") and isinstance(node.meta.get("val"), Tensors)


class _Run:
    """What the nodes of a program did, those of wrapped sub-graphs included."""

    def __init__(self, outcomes: Mapping[FxNode, Outcome]) -> None:
        self.done = dict(_flat(outcomes))
        self.uses = Uses(outcomes)

    def is_written(self, node: FxNode) -> bool:
        """True if the memory of the node's result is written to."""
        return any(s.memory in self.uses.written for s in seen_in(self.done[node].result))

    def is_written_behind(self, node: FxNode) -> bool:
        """True if the node's result, or an operand, is written to afterwards."""
        return self.uses.written_after(node, memories_in([self._made(node), *self._given(node)]))

    def differs(self, node: FxNode, other: _Run) -> bool:
        """True if the other run tells this node's operand or result from this run's."""
        if other.done[node].failed:
            return False
        if _reads_strides(node):
            mine, others = ([(*map(str, s.strides), str(s.offset)) for s in r._given(node)[:1]] for r in (self, other))
            return mine != others
        copies = [run for run in (self, other) if not run._is_view(node)]
        return len(copies) == 1 and copies[0]._shows(node)

    def _made(self, node: FxNode) -> Seen | None:
        return next(iter(seen_in(self.done[node].result)), None)

    def _given(self, node: FxNode) -> list[Seen]:
        return [s for n in node.all_input_nodes if n in self.done for s in seen_in(self.done[n].result)]

    def _is_view(self, node: FxNode) -> bool:
        made = self._made(node)
        return made is not None and made.memory in memories_in(self._given(node))

    def _shows(self, node: FxNode) -> bool:
        made = self._made(node)
        return made is not None and any(
            self.uses.seen_after_write(node, made.memory, given.memory) for given in self._given(node)
        )


def _flat(outcomes: Mapping[FxNode, Outcome]) -> Iterator[tuple[FxNode, Outcome]]:
    for node, outcome in outcomes.items():
        yield node, outcome
        yield from _flat(outcome.inner or {})
