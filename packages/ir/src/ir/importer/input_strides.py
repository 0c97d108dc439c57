"""Inputs whose strides decide what a program computes, and whether torch's kernels decide as its fake tensors do.

torch.export notes no condition on strides. A graph reads an input's elements in order, wherever they lie, but for two
things, which are as they were in the example: what `as_strided` reads, and whether a write through `reshape`,
`contiguous` or another op that returns a view or a copy reaches its operand. They depend on every input that the
operand is computed of: fake tensors do not tell all of a kernel's strides.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node as FxNode

from ir.errors import RefusedError
from ir.graph import Value
from ir.importer.aliases import Outcome, observe, running
from ir.importer.fx_ops import is_writer
from ir.importer.memory_uses import Uses, memories_in
from ir.importer.origins import origin_of
from ir.importer.schema import op_schema
from ir.importer.tensor_meta import Tensors, graphs_of
from ir.importer.torch_api import FakeTensor, OpOverload, has_kernel, storage_key
from ir.ops import may_be_view

_ORDERS = 24  # of axes: all of four


@dataclass(frozen=True)
class Strides:
    """How an input lies in memory in the example, and what depends on it.

    Attributes:
        example: the numbers of elements from one to the next along each axis.
        order: the axes, the outermost in memory first; None where there are gaps or repetitions.
        exact: whether an op reads the input itself, or a view of it. What kernels make of it, or of a slice of it, has
            the order of its axes and no gaps.
        offset: where it begins in its storage, if the op counts from there.
        op: what depends on it, "aten::as_strided".
        origin: the model's line that calls the op.
        writes: whether it decides what a write reaches; else what is read.
    """

    example: tuple[int, ...]
    order: tuple[int, ...] | None
    exact: bool
    offset: int | None
    op: str
    origin: str
    writes: bool

    def held_by(self, x: torch.Tensor) -> bool:
        """True if the tensor lies in memory as the example does."""
        if self.offset not in (None, x.storage_offset()):
            return False
        if self.order is None:
            return x.stride() == self.example
        if self.exact:
            return x.permute(self.order).is_contiguous()
        steps = [x.stride(axis) for axis in self.order if x.shape[axis] > 1]
        return 0 not in steps and all(outer > inner for outer, inner in itertools.pairwise(steps))

    def joined(self, other: Strides) -> Strides:
        """What holds for both readers."""
        offset = self.offset if self.offset is not None else other.offset
        return replace(self, exact=self.exact or other.exact, offset=offset, writes=self.writes or other.writes)


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


@dataclass(frozen=True)
class Layouts:
    """What decides a program's results besides its numbers.

    Attributes:
        inputs: placeholders of inputs whose strides matter.
        views: nodes that give a view (True) or a copy of what the program computes, where that matters: torch's kernels
            decide by strides of their own.
        written: placeholders that are written to.
    """

    inputs: Mapping[FxNode, Strides] = field(default_factory=dict)
    views: Mapping[FxNode, bool] = field(default_factory=dict)
    written: Collection[FxNode] = ()


def reads_strides(module: torch.nn.Module) -> bool:
    """True if an op of the module's graph, or of one that it calls, reads memory by strides."""
    return any(map(_reads_strides, _nodes(module)))


def observed(
    module: torch.nn.Module,
    weights: Mapping[FxNode, torch.Tensor],
    inputs: Collection[FxNode],
    seen: Mapping[FxNode, Outcome],
) -> Layouts:
    """What strides decide in a program.

    Args:
        module: a program, in torch's own form.
        weights: the model's tensors behind its other placeholders.
        inputs: placeholders of tensors that a call is given.
        seen: what its nodes do, of a program that writes; else empty.
    """
    if not any(_reads_strides(n) or (seen and _may_copy(n)) for n in _nodes(module)):
        return Layouts()
    graph: Any = module.graph
    uses = Uses(seen or observe(graph, module, weights))
    handed_in = {m: n for n in graph.nodes if n.op == "placeholder" for m in memories_in(uses.done[n].result)}
    found: dict[FxNode, Strides] = {}
    by_kernels: dict[FxNode, bool] = {}
    for node in uses.done:
        exact = any(s.memory in handed_in for s in uses.given(node)[:1])  # as it is handed in, or a view of that
        if _reads_strides(node):
            written = not uses.written.isdisjoint(memories_in(uses.done[node].result))
            if not written and not exact and _is_view_by_place(node):
                continue  # torch's kernel has the strides, and other runtimes refuse what is computed
            writes = written or not _is_view_by_place(node)
        elif _may_copy(node) and uses.tells_copies(node) and _goes_by_strides(node):
            writes = True
            if not exact:
                by_kernels[node] = uses.is_view(node)
        else:
            continue
        for given in uses.sources(node).intersection(inputs):
            if given.meta["val"].shape:
                made = _strides(given, node, writes, exact)
                found[given] = made if given not in found else found[given].joined(made)
    return Layouts(found, by_kernels, [n for m, n in handed_in.items() if m in uses.written])


def _nodes(module: torch.nn.Module) -> Iterator[FxNode]:
    for graph in graphs_of(module):
        yield from graph.nodes


def _strides(given: FxNode, reader: FxNode, writes: bool, exact: bool) -> Strides:
    fake, schema = given.meta["val"], op_schema(reader.target)
    example = tuple(map(_number, fake.stride()))
    like = torch.empty_strided(tuple(map(_number, fake.shape)), example, device="meta")
    order = tuple(sorted(range(like.dim()), key=lambda axis: -example[axis]))
    dense = like.permute(order).is_contiguous()
    placed = schema.bind(reader.args, dict(reader.kwargs)).get("storage_offset") is not None
    offset = _number(fake.storage_offset()) if placed else None
    return Strides(example, order if dense else None, exact, offset, schema.op, str(origin_of(reader)), writes)


def _number(size: int | torch.SymInt) -> int:
    """A size in the example, or any where data decides it."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 7


def _is_view_by_place(node: FxNode) -> bool:
    return isinstance(node.target, OpOverload) and "storage_offset" in op_schema(node.target).names


def _reads_strides(node: FxNode) -> bool:
    asks = isinstance(node.target, OpOverload) and op_schema(node.target).op
    return _is_view_by_place(node) or asks in ("aten::sym_stride", "aten::sym_storage_offset")


def _may_copy(node: FxNode) -> bool:
    """True of an op that returns a view of its operand or a copy: it is composed of others, by what it is given."""
    if not isinstance(node.target, OpOverload) or is_writer(node) or not may_be_view(op_schema(node.target)):
        return False
    return has_kernel(node.target.name(), "CompositeImplicitAutograd") and isinstance(node.meta.get("val"), Tensors)


def _goes_by_strides(node: FxNode) -> bool:
    """True if the op gives a view of its first operand in one layout, and a copy in another."""
    target: Any = node.target
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    if not args or not isinstance(args[0], FakeTensor):
        return True
    met = set()
    with running(args[0].fake_mode):
        for laid in _layouts(args[0]):
            with contextlib.suppress(Exception):  # strides that a view forbids
                made = target(laid, *args[1:], **kwargs)
                met.add(storage_key(made) == storage_key(laid))
    return len(met) > 1


def _layouts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor in any order of axes (of the first of many), and with gaps, so that no two axes are one."""
    for order in itertools.islice(itertools.permutations(range(tensor.dim())), _ORDERS):
        for gap in (0, 1):
            strides: dict[int, Any] = {}
            step: Any = 1 + gap
            for axis in reversed(order):
                strides[axis] = step
                step = step * (tensor.shape[axis] + gap)
            yield torch.empty_strided(tensor.shape, [strides[a] for a in range(tensor.dim())], dtype=tensor.dtype)
