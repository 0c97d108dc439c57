"""A part made smaller: fixed sizes, shorter axes, plainer element types and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ir.debug.inside import settled
from ir.debug.parts import Part, PartContext
from ir.debug.values import Values
from ir.dims import Expr, evaluate
from ir.graph import Graph, Value, map_arg
from ir.importer.evaluate import tensor_of
from ir.importer.weights import TorchWeight, tensor_type
from ir.types import DType


@dataclass(frozen=True, eq=False)
class Sample:
    """A graph of fixed sizes with the tensors that it takes.

    `inputs` and `weights` are tensors, `seeded` names those that are torch.manual_seed's own.
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    seeded: frozenset[str] = frozenset()

    @property
    def tensors(self) -> dict[Value, Tensor]:
        """Inputs and weights."""
        given = dict(zip(self.graph.inputs, self.inputs, strict=True))
        return given | {v: tensor_of(w) for v, w in self.graph.weights.items()}


def fixed(part: Part, expected: Values) -> Sample:
    """The part at the sizes of its values."""
    tensors = {v: expected.of[w].detach().clone() for v, w in zip(part.graph.inputs, part.feeds, strict=True)}
    weights = {v: tensor_of(w) for v, w in part.graph.weights.items()}
    known = expected.sizes

    def number(arg: Any) -> Any:
        if isinstance(arg, Graph):
            return settled(arg, known)
        return evaluate(arg, known) if isinstance(arg, Expr) else arg

    return remade(part.graph, tensors | weights, number)


def remade(
    graph: Graph, tensors: Mapping[Value, Tensor], change: Callable[[Any], Any], seeded: frozenset[str] = frozenset()
) -> Sample:
    """The graph anew for these inputs and weights, its static arguments changed; its types are what torch makes of it.

    Raises:
        Exception: torch refuses it.
    """
    made: dict[Value, Value] = {v: Value(v.name, tensor_type(t)) for v, t in tensors.items()}
    weights = {
        made[v]: TorchWeight(w.name, tensors[v]) for v, w in graph.weights.items() if v in tensors
    }  # fmt: skip
    inputs = tuple(made[v] for v in graph.inputs if _is_read(graph, v))
    start = graph.replace(inputs=inputs, nodes=(), outputs=(), output_names=(), weights=weights, symbols={}, equal=())
    run = Values(start)
    for value, tensor in tensors.items():
        run.keep(made[value], tensor)
    nodes = []

    def changed(arg: Any) -> Any:
        return made[arg] if isinstance(arg, Value) else change(arg)

    for node in graph.nodes:
        if node.op == "ir::item":
            continue
        args = {k: map_arg(a, changed) for k, a in node.args.items()}
        trial = replace(node, args=args, origin=replace(node.origin))
        with torch.no_grad():
            results = run.results(trial)
        made |= {v: Value(v.name, tensor_type(t)) for v, t in zip(node.outputs, results, strict=True)}
        for value, tensor in zip(node.outputs, results, strict=True):
            run.keep(made[value], tensor)
        nodes.append(replace(trial, outputs=tuple(made[v] for v in node.outputs)))
    context = PartContext(getattr(graph.context, "whole", graph.context))
    context.given = tuple(tensors[v] for v in graph.inputs if _is_read(graph, v))
    structure = replace(graph.structure, inputs=graph.structure.inputs[: len(inputs)],
                        input_names=tuple(v.name for v in inputs))  # fmt: skip
    found = start.replace(
        nodes=tuple(nodes), outputs=tuple(made[v] for v in graph.outputs), output_names=graph.output_names,
        context=context, structure=structure,
    )  # fmt: skip
    return Sample(found, context.given, seeded)


def _is_read(graph: Graph, value: Value) -> bool:
    return value in graph.uses or value in graph.outputs


def smaller(sample: Sample) -> Iterator[Sample]:
    """The sample with one extent cut wherever it stands, then axis by axis; those that torch takes.

    None where branches or loops are in it, whose own types say the sizes.
    """
    if any(n.graphs for n in sample.graph.nodes):
        return
    tensors = sample.tensors
    extents = sorted({n for t in tensors.values() for n in t.shape if n > 1}, reverse=True)
    for n in extents:
        for m in dict.fromkeys((1, 2, 4, n // 4, n // 2, n - 1)):
            if 0 < m < n:
                cut = {v: _cut(t, [i for i, s in enumerate(t.shape) if s == n], m) for v, t in tensors.items()}
                yield from _if_taken(sample, cut, partial(_number, old=n, new=m))
    for value, tensor in tensors.items():
        for axis, n in enumerate(tensor.shape):
            for m in (1, 2, n // 2):
                if 0 < m < n:
                    yield from _if_taken(sample, tensors | {value: _cut(tensor, [axis], m)}, lambda a: a)


def _cut(tensor: Tensor, axes: Sequence[int], size: int) -> Tensor:
    for axis in axes:
        tensor = tensor.narrow(axis, 0, size)
    return tensor.contiguous()


def _number(arg: Any, old: int, new: int) -> Any:
    return new if isinstance(arg, int) and not isinstance(arg, bool) and arg == old else arg


def _if_taken(sample: Sample, tensors: Mapping[Value, Tensor], change: Callable[[Any], Any]) -> Iterator[Sample]:
    try:
        yield remade(sample.graph, tensors, change)
    except Exception:  # torch's own of any kind: these sizes do not go together
        return


def in_float32(sample: Sample) -> Iterator[Sample]:
    """The sample with every other floating type made float32."""
    if any(n.graphs for n in sample.graph.nodes):
        return
    tensors = sample.tensors
    if any(t.dtype.is_floating_point and t.dtype != torch.float32 for t in tensors.values()):
        plain = {v: t.float() if t.dtype.is_floating_point else t for v, t in tensors.items()}
        yield from _if_taken(sample, plain, lambda a: DType.float32 if isinstance(a, DType) and a.is_float else a)


def plainer(sample: Sample) -> Iterator[Sample]:
    """The sample with seeded random numbers for all of its tensors, then for each alone."""
    tensors = sample.tensors
    drawn = {v: t for v, old in tensors.items() if (t := seeded(old, v.name)) is not None}
    for chosen in [drawn, *({v: t} for v, t in drawn.items())]:
        if chosen and not {v.name for v in chosen} <= sample.seeded:
            names = sample.seeded | {v.name for v in chosen}
            try:
                yield remade(sample.graph, tensors | chosen, lambda a: a, names)
            except Exception:  # as indices out of range
                continue


def seeded(like: Tensor, name: str) -> Tensor | None:
    """Random numbers of a tensor's shape and type, as `seeded_text` writes them; None where there are none."""
    how = _draw(like)
    if how is None:
        return None
    fn, args, dtype = how
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(name))
        made: Tensor = getattr(torch, fn)(*args, **dtype)
        return made > 0.5 if fn == "rand" else made


def seeded_text(like: Tensor) -> str:
    """The call that makes them."""
    how = _draw(like)
    assert how is not None
    fn, args, dtype = how
    given = ", ".join([*map(repr, args), *(f"{k}={v}" for k, v in dtype.items())])
    return f"torch.{fn}({given})" + (" > 0.5" if fn == "rand" else "")


def _draw(like: Tensor) -> tuple[str, list[Any], dict[str, Any]] | None:
    """torch's function, and its arguments; of integers up to the largest that stands there."""
    if like.layout is not torch.strided or like.numel() == 0:
        return None
    shape = list(like.shape)
    if like.dtype == torch.bool:
        return "rand", [shape], {}
    if like.dtype.is_floating_point or like.dtype.is_complex:
        return "randn", [shape], {} if like.dtype == torch.float32 else {"dtype": like.dtype}
    low, high = min(0, int(like.min())), int(like.max()) + 1
    return "randint", [low, high, shape], {} if like.dtype == torch.int64 else {"dtype": like.dtype}


def seed_of(name: str) -> int:
    """A tensor's seed: of its own, so that it is drawn alike whatever is drawn before it."""
    return sum(name.encode()) % 1000
