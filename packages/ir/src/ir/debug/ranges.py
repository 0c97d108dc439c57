"""Ranges of every node beside those of narrower types: what overflows first, and what is to stay in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ir.debug.errors import check_limit, distance
from ir.debug.running import running, watched_values
from ir.debug.subject import Subject, check_inputs
from ir.debug.table import columns
from ir.debug.values import Values
from ir.errors import ExportError
from ir.graph import Graph, Node
from ir.importer.capture import arguments
from ir.importer.schema import TORCH_DTYPES
from ir.lower import lower
from ir.passes.lower_precision import is_kept, lower_precision
from ir.registry import Registry
from ir.target import Target
from ir.types import DType
from ir.verify import TOLERANCES
from ir.words import counted, meant

_SHOWN = 20
NARROW = {"float16": DType.float16, "bfloat16": DType.bfloat16}


@dataclass(frozen=True)
class Range:
    """What a node's results reach over all batches.

    Attributes:
        name, op, module, source: which node.
        largest: the largest finite magnitude.
        smallest: the smallest magnitude beside zero.
        int8_scale: the step of symmetric 8-bit integers that hold it.
        float16, bfloat16: the error, of scale, of the node alone in this type by torch; infinite where it overflows.
    """

    name: str
    op: str
    module: str
    source: str
    largest: float
    smallest: float
    int8_scale: float
    float16: float
    bfloat16: float


@dataclass(frozen=True)
class Ranges:
    """The ranges of all nodes that give floats, in the order of the program."""

    rows: tuple[Range, ...]
    batches: int

    def overflows(self, dtype: str) -> tuple[Range, ...]:
        """The nodes whose results pass the type's largest number, or that overflow within, in order.

        Raises:
            ValueError: the type is neither "float16" nor "bfloat16".
        """
        if dtype not in NARROW:
            raise ValueError(f"dtype={dtype!r:.60} is none of {', '.join(NARROW)}")
        limit = torch.finfo(TORCH_DTYPES[NARROW[dtype]]).max
        return tuple(r for r in self.rows if r.largest > limit or math.isinf(getattr(r, dtype)))

    def data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def json(self) -> str:
        """`data` as JSON; infinity is a text."""
        return json.dumps({"batches": self.batches, "rows": [
            {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(r).items()}
            for r in self.rows
        ]}, indent=1)  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{counted(len(self.rows), 'node')} over {self.batches} {'batch' if self.batches == 1 else 'batches'}"]
        for name in NARROW:
            over = self.overflows(name)
            first = f", the first %{over[0].name} = {over[0].op} {over[0].module}".rstrip() if over else ""
            lines.append(f"{name}: {len(over)} overflow{'s' if len(over) == 1 else ''}{first}")
        head = ("node", "largest", "smallest", "int8 step", "float16", "bfloat16", "op", "module", "source")
        most = sorted(self.rows, key=lambda r: (-r.float16, -r.largest))[:_SHOWN]
        cells = [
            (r.name, f"{r.largest:.3g}", f"{r.smallest:.3g}", f"{r.int8_scale:.3g}", f"{r.float16:.2g}",
             f"{r.bfloat16:.2g}", r.op.removeprefix("aten::"), r.module, r.source)
            for r in most
        ]  # fmt: skip
        return "\n".join([*lines, "", *columns([head, *cells])])


def ranges(
    program: Any, batches: Sequence[Any] | None = None, *, dynamic_shapes: Any = None, target: Any = None
) -> Ranges:
    """What each node reaches, over several batches, beside what float16, bfloat16 and int8 hold.

    Args:
        program: as for `ir.debug.nodes`.
        batches: tuples of arguments, or a tensor each; by default the one that the model was captured with.
        dynamic_shapes: as for `ir.debug.nodes`.
        target: not needed; a program's own is not run, torch is.

    >>> print(ir.debug.ranges(program, batches))  # doctest: +SKIP
    """
    if batches is not None and not (isinstance(batches, (list, tuple)) and batches and all(map(_is_batch, batches))):
        raise ExportError("batches: a list of what the model is called with, each a tuple of arguments or one tensor")
    first = Subject.of(program, batches[0] if batches else None, None, target, None, dynamic_shapes)
    given = [first.graph.structure.flatten(*arguments(b, None)) for b in batches or ()]
    for inputs in given:
        check_inputs(first.graph, inputs)
    return ranges_of(first.graph, given or [first.inputs])


def _is_batch(batch: Any) -> bool:
    return isinstance(batch, (torch.Tensor, tuple, list))


def ranges_of(graph: Graph, batches: Sequence[Sequence[Any]]) -> Ranges:
    """The ranges of a graph on flat inputs."""
    found: dict[Node, Range] = {}
    for inputs in batches:
        torch.manual_seed(0)
        values = Values(graph).run(inputs)
        for node in graph.nodes:
            for row in _range(graph, node, values):
                found[node] = _joined(found[node], row) if node in found else row
    return Ranges(tuple(found.values()), len(batches))


def _range(graph: Graph, node: Node, values: Values) -> Iterator[Range]:
    made = [values.of[v] for v in watched_values(graph, [node]) if values.of[v].dtype.is_floating_point]
    if not made:
        return
    sizes = [t[t.isfinite()].abs().double() for t in made if t.numel()]
    largest = max((float(s.max()) for s in sizes if s.numel()), default=0.0)
    smallest = min((float(s[s > 0].min()) for s in sizes if bool((s > 0).any())), default=0.0)
    narrow = {name: _narrow_error(node, values, dtype) for name, dtype in NARROW.items()}
    yield Range(
        node.name, node.overload, node.origin.module, node.origin.place, largest, smallest, largest / 127, **narrow
    )


def _narrow_error(node: Node, values: Values, dtype: DType) -> float:
    """The error of the node with its floats in a narrower type, of scale, as torch computes it."""
    kind = TORCH_DTYPES[dtype]
    run = Values(values.graph, sizes=dict(values.sizes))
    for v in node.inputs:
        tensor = values.of[v]
        run.keep(v, tensor.to(kind) if tensor.dtype == torch.float32 else tensor)
    try:
        with torch.no_grad():
            made = run.results(node)
    except Exception:  # torch has no such kernel: nothing runs it in this type
        return 0.0
    errors = [distance(m.double(), values.of[v], checked=False).relative
              for m, v in zip(made, node.outputs, strict=False) if m.dtype.is_floating_point]  # fmt: skip
    return max(errors, default=0.0)


def _joined(a: Range, b: Range) -> Range:
    smallest = min((x for x in (a.smallest, b.smallest) if x), default=0.0)
    largest = max(a.largest, b.largest)
    return Range(
        a.name, a.op, a.module, a.source, largest, smallest, largest / 127, max(a.float16, b.float16),
        max(a.bfloat16, b.bfloat16),
    )  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """What a search found: the names of the nodes that stay in float32, and the error of scale that is left."""

    names: tuple[str, ...]
    error: float


def needed_in_float32(
    graph: Graph,
    target: Target,
    registry: Registry,
    inputs: Sequence[Any],
    dtype: str,
    max_error: float,
    keep: Collection[str] = (),
) -> Kept:
    """The nodes to keep for the program in `dtype` to stay within an error of scale, on the target itself.

    What overflows is kept at once, with whatever reads it; then the nodes with the largest error of their own, twice
    as many each time, and in the end no more of them than are needed.

    Raises:
        ExportError: the bound is not met with every node in float32.
    """
    torch.manual_seed(0)
    expected = Values(graph).run(inputs)
    wanted = [expected.of[v] for v in graph.results.values()]
    rows = {r.name: r for r in ranges_of(graph, [inputs]).rows}
    must = _overflowing(graph, {r.name for r in Ranges(tuple(rows.values()), 1).overflows(dtype)})
    others = sorted((n for n in rows if n not in must), key=lambda n: -getattr(rows[n], dtype))

    def error(count: int) -> float:
        narrow = lower_precision(graph, NARROW[dtype], [*keep, *must, *others[:count]])
        with running(target, lower(narrow, target, registry), narrow) as runner:
            made = runner(*[t.clone() for t in inputs])
        return max((distance(m, w, checked=False).relative for m, w in zip(made, wanted, strict=True)), default=0.0)

    count, step = 0, 1
    found = error(0)
    while not found <= max_error and count < len(others):
        count, step = min(count + step, len(others)), 2 * step
        found = error(count)
    if not found <= max_error:
        raise ExportError(f"max_error={max_error}: with every node in float32 the error is still {found:.2g} of scale")
    low = count - step // 2
    while count - low > 1 and low >= 0:
        middle = (low + count) // 2
        if (there := error(middle)) <= max_error:
            count, found = middle, there
        else:
            low = middle
    return Kept((*must, *others[:count]), found)


def _overflowing(graph: Graph, names: Collection[str]) -> list[str]:
    """These nodes and the readers of their results: a cast of what is too large would be infinite."""
    found = dict.fromkeys(n.name for n in graph.nodes if n.name in names)
    for node in graph.nodes:
        if any(p.name in names for v in node.inputs if (p := graph.producer.get(v)) is not None):
            found.setdefault(node.name)
    return list(found)


def check_narrowing(dtype: Any, keep: Any, max_error: Any) -> None:
    """What `ir.export` is told of narrower types, before the work begins.

    Raises:
        ValueError: `keep` is no list of names, `max_error` no bound, or there is no type that float32 becomes.
    """
    check_limit(max_error)
    if isinstance(keep, str) or not all(isinstance(n, str) for n in keep):
        raise ValueError(f"keep_float32={keep!r:.60}: give a list of names of nodes, modules or ops")
    if dtype is None and (keep or max_error is not None):
        given = "keep_float32" if keep else "max_error"
        types = " or ".join(map(repr, NARROW))
        raise ValueError(f"{given} says what stays in float32 of a narrower program: give dtype={types}, too")


def narrowed(
    graph: Graph,
    target: Target,
    registry: Registry,
    call: Any,
    dtype: Any,
    keep: Collection[str],
    max_error: float | None,
) -> tuple[Graph, tuple[str, ...], float]:
    """The graph in a narrower type, the nodes that stayed in float32, and the error of scale that it is held to.

    Raises:
        ValueError: it is no type that float32 can become, or a name to keep is none of the program's.
        ExportError: see `needed_in_float32`.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in NARROW:
        raise ValueError(f"dtype={dtype!r:.40}: float32 becomes {' or '.join(NARROW)}")
    for wanted in keep:
        if not any(is_kept(n, [wanted]) for n in graph.nodes):
            known = [x for n in graph.nodes for x in (n.name, n.origin.module, n.overload.removeprefix("aten::")) if x]
            raise ValueError(
                f"keep_float32: {wanted!r:.60} is no node, module or op of the program{meant(wanted, known)}"
            )
    found: tuple[str, ...] = ()
    if max_error is not None:
        args, kwargs = call if call is not None else graph.context.example()
        inputs = graph.structure.flatten(args, kwargs)
        found = needed_in_float32(graph, target, registry, inputs, name, max_error, keep).names
    stays = [*keep, *found]
    kept = tuple(n.name for n in graph.nodes if n.outputs and is_kept(n, stays))
    return lower_precision(graph, NARROW[name], stays), kept, TOLERANCES[name][0] if max_error is None else max_error
