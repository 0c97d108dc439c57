"""Every node of a program on a target, by itself and in the whole, beside torch's own values."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ir.debug.errors import Error, check_limit, distance, is_beyond_rounding, kinds_in
from ir.debug.inside import programs_inside
from ir.debug.literals import literals
from ir.debug.running import MEMORY, Runs, watched_values
from ir.debug.side_by_side import side_by_side
from ir.debug.subject import Subject
from ir.debug.table import Row, Table
from ir.debug.unwritten import without_unwritten
from ir.debug.values import Values
from ir.errors import ExportError
from ir.graph import Graph, Node, Value, leaves
from ir.importer.autocasts import uncast
from ir.registry import Registry
from ir.target import Target
from ir.trial import undetermined

_COPIES = 16  # of a result's bytes: what a row needs for a moment, most of it in float64
_LARGE = 32 << 20  # bytes of a result from which torch's threads gain more than they wait for each other


@uncast
def nodes(
    program: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
    memory: int = MEMORY,
    wide: bool = True,
    whole: bool = True,
    max_error: float | None = None,
    **options: Any,
) -> Table:
    """The table of nodes: for each its own error in the target's runtime, and the error that it has in the program.

    Nodes run alone, fed torch's own operands, many in one program of the target; then the whole program runs with every
    value as an output.

    Args:
        program: what `ir.export` returned, an ir.Graph, or anything that `ir.capture` takes.
        args: arguments as for `ir.export`; by default those that the model was captured with.
        kwargs: arguments by name.
        target: "onnx", "nnef", "khronos", "eager" or a Target; by default the program's own, else "onnx".
        handlers: as for `ir.export`; by default those that the program was made with.
        dynamic_shapes: as for `ir.export`, where `program` is a model.
        sizes: other sizes for dynamic dimensions, by name: the arguments are cut or stretched to them.
        memory: the bytes of values that one program of the target may take and give; more programs are made of less.
        wide: also run torch in float64, to tell rounding from faults.
        whole: also run the whole program with every value as an output.
        max_error: the error that still passes, in units of each result's largest magnitude; verify's tolerances unless
            it is given.
        **options: the target's options, where it is named.

    Returns:
        A `Table`: `str()` of it is text, `.json()` and `.data()` are for programs, notebooks show it as HTML.

    Raises:
        ExportError: there are no arguments, they are none of this program, or torch itself fails on them.
        ValueError: `max_error` is no number from 0 on.

    >>> table = ir.debug.nodes(program)  # doctest: +SKIP
    >>> print(table.ranked[0])  # doctest: +SKIP
    """
    check_limit(max_error)
    about = Subject.of(program, args, kwargs, target, handlers, dynamic_shapes, options)
    about = about.at(sizes) if sizes else about
    return table_of(
        about.graph, about.target, about.registry, about.inputs, memory=memory, wide=wide, whole=whole,
        max_error=max_error,
    )  # fmt: skip


def table_of(
    graph: Graph,
    target: Target,
    registry: Registry,
    inputs: Sequence[Tensor],
    *,
    memory: int = MEMORY,
    wide: bool = True,
    whole: bool = True,
    max_error: float | None = None,
    whole_error: float | None = None,
    traced: Callable[[Sequence[Tensor]], Mapping[str, Tensor]] | None = None,
    inner: bool = True,
) -> Table:
    """The table of a graph; see `nodes`. `inner` looks into branches and loops that differ.

    `traced` gives the values of a program that exists, by name: the errors in the whole are those of it. They may be up
    to `whole_error`, `max_error` unless it is given.
    """
    start = time.perf_counter()
    computed = [n for n in graph.nodes if watched_values(graph, [n])]
    torch.manual_seed(0)
    expected = Values(graph).run(inputs)
    runs = Runs(graph, target, registry, memory)
    alone = runs.alone(computed, expected.of)
    values = watched_values(graph, computed)
    if traced is not None:
        found = traced(inputs)
        together = {v: found[v.name] for v in values if v.name in found}
    else:
        together = runs.together(values, expected.of) if whole else {}
    double = Values(graph, wide=True).run(inputs, beside=expected) if wide else None
    skipped = _random(graph, values)
    limits = max_error, max_error if whole_error is None else whole_error
    made = _Maker(graph, expected, double, alone, together, runs, skipped, limits)
    largest = max((t.nbytes for v in values for t in (expected.of[v],) if t.layout is torch.strided), default=0)
    rows = side_by_side(made.row, computed, memory // (_COPIES * largest or 1), large=largest > _LARGE)
    rows = [r for row in rows for r in (_with_inner(row, runs, expected, max_error) if inner else [row])]
    notes = (f"the whole program does not give every value: {runs.whole_failed}",) if runs.whole_failed else ()
    fixed = literals(graph, expected.sizes)
    return Table(target.name, tuple(rows), expected.sizes, notes, time.perf_counter() - start, fixed)


def _with_inner(row: Row, runs: Runs, expected: Values, limit: float | None) -> Iterator[Row]:
    """The row; of a branch or a loop that differs, those of the nodes in it before it.

    They run on what the branch was called with, a loop on what it was first and last called with.
    """
    if not (row.wrong and row.own and row.node.graphs):  # what is refused or fails says so itself
        yield row
        return
    found: dict[str, Row] = {}
    for graph, operands in programs_inside(runs.graph, row.node, expected):
        with contextlib.suppress(ExportError):  # the row of the whole is what there is to say then
            table = table_of(
                graph, runs.target, runs.registry, operands, memory=runs.memory, whole=False, max_error=limit
            )
            for r in table.rows:
                within = f"{row.node.name}/{r.within}" if r.within else row.node.name
                if r.name not in found or r.score > found[r.name].score:
                    found[r.name] = replace(r, within=within)
    yield from found.values()
    yield replace(row, held=any(r.wrong for r in found.values()))


def _random(graph: Graph, values: Sequence[Value]) -> Mapping[str, str]:
    """The values that random numbers decide, by name, and why."""
    if not graph.random:
        return {}
    names = tuple(v.name for v in values)
    return undetermined(graph.replace(outputs=tuple(values), output_names=names, updates={}))[0]


class _Maker:
    """Makes rows of what was run."""

    def __init__(
        self,
        graph: Graph,
        expected: Values,
        double: Values | None,
        alone: Mapping[Value, Tensor],
        together: Mapping[Value, Tensor],
        runs: Runs,
        skipped: Mapping[str, str],
        limits: tuple[float | None, float | None],
    ) -> None:
        self.limits = limits  # of the error alone, and in the whole program
        self.narrow = getattr(runs.target, "dtype", None) is not None  # results have the target's own element type
        self.graph, self.expected, self.double, self.runs = graph, expected, double, runs
        self.alone, self.together, self.skipped = alone, together, skipped
        self._kinds: dict[int, frozenset[str]] = {}  # of a tensor, by id: all are held as long as this is

    def row(self, node: Node) -> Row:
        """The row of a node: of several results, each column has the worst."""
        values = watched_values(self.graph, [node])
        note = self.runs.failed.get(node, "")
        of = self.expected.of
        first = of[values[0]]
        if self.narrow:
            first = next((f[values[0]] for f in (self.alone, self.together) if values[0] in f), first)
        about: dict[str, Any] = {
            "shape": tuple(first.shape),
            "dtype": str(first.dtype).removeprefix("torch."),
            "ops": tuple(self.runs.ops.get(node, ())),
        }
        why = next((self.skipped[v.name] for v in values if v.name in self.skipped), "")
        if why or "empty" in node.op:
            drawn = self.graph.context.draws(node) or "empty" in node.op
            if drawn:
                return Row(node, **about, note=f"not compared: {why or 'memory that nothing was written to'}")
        limit, whole_limit = self.limits
        own = self._worst_of(node, {v: self.alone[v] for v in values if v in self.alone}, limit)
        found = {} if why else {v: self.together[v] for v in values if v in self.together}
        whole = self._worst_of(node, found, whole_limit)
        return Row(
            node, **about, own=own, inherited=whole, torch_own=self._rounding(node, values),
            torch_whole=self._whole_rounding(values), makes=self._makes(node, self.together),
            torch_makes=self._makes(node, of), note=note,
        )  # fmt: skip

    def _worst_of(self, node: Node, made: Mapping[Value, Tensor], limit: float | None) -> Error | None:
        of = self.expected.of
        errors = [self._error(t, of[v], limit) for v, t in made.items()]
        if any(is_beyond_rounding(e, t.dtype) for e, t in zip(errors, made.values(), strict=True)):
            pairs = without_unwritten(self.expected, node, made)
            errors = [self._error(*pair, limit) for pair in pairs.values()]
        return _worst(errors)

    def _error(self, actual: Tensor, expected: Tensor, limit: float | None) -> Error:
        if self.narrow and actual.is_floating_point() and expected.is_floating_point():
            expected = expected.to(actual.dtype)
        return distance(actual, expected, limit=limit)

    def _rounding(self, node: Node, values: Sequence[Value]) -> Error | None:
        """torch in the graph's element types against float64, from the same operands; of float64 it is not known."""
        if self.double is None or node in self.double.failed or node.graphs:
            return None
        if all(self.expected.of[v].dtype in (torch.float64, torch.complex128) for v in values):
            return None
        wide = Values(self.graph, wide=True, sizes=dict(self.expected.sizes))
        for operand in node.inputs:
            if operand in self.graph.weights:
                wide.of[operand] = self.double.of[operand]  # the same numbers
            else:
                wide.keep(operand, self.expected.of[operand])
        try:
            with torch.no_grad():
                made = dict(zip(node.outputs, wide.results(node), strict=True))
            return _worst([distance(self.expected.of[v], made[v], checked=False) for v in values])
        except Exception:  # an op that torch has not in float64
            return None

    def _whole_rounding(self, values: Sequence[Value]) -> Error | None:
        if self.double is None:
            return None
        return _worst([distance(self.expected.of[v], self.double.of[v], checked=False) for v in values])

    def _makes(self, node: Node, found: Mapping[Value, Tensor]) -> str:
        """ "nan" or "inf" where these results have some though the operands and the numbers among them have none."""
        made = {kind for v in node.outputs if v in found for kind in self._kinds_in(found[v])}
        if not made:
            return ""
        operands = (found.get(v, self.expected.of.get(v)) for v in node.inputs)
        before = {kind for t in operands if t is not None for kind in self._kinds_in(t)}
        kind = "nan" if "nan" in made else "inf"
        known = kind in before or (kind == "nan" and "inf" in before)
        literal = any(isinstance(a, float) and not math.isfinite(a) for a in leaves(node.args.values()))
        return "" if known or literal else kind

    def _kinds_in(self, tensor: Tensor) -> frozenset[str]:
        if id(tensor) not in self._kinds:
            self._kinds[id(tensor)] = kinds_in(tensor)
        return self._kinds[id(tensor)]


def _worst(errors: Sequence[Error]) -> Error | None:
    return max(errors, key=lambda e: (bool(e.reason), e.largest), default=None)
