"""torch.export's 0/1 specialization: what it decides of dynamic sizes, tried at the sizes of 0 and 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ir.bounds import Range, bounds
from ir.conditions import SHORTER, holds, holds_at, symbols_of
from ir.dims import Expr, call, symbol
from ir.errors import ExportError, warn
from ir.graph import Graph, Specialized, leaves, symbols_in
from ir.importer.other_sizes import resized, sizes_of
from ir.passes.checks import check
from ir.passes.exact_sizes import may_be_shorter
from ir.trial import undetermined
from ir.verify import rows

_TAKES = "torch.export takes dynamic sizes to be 2 or more, and "
_REFUSED = (
    f"{_TAKES}at smaller ones the model itself does something else: the program refuses these{{}}\n"
    "export the model for such a size as well, or branch by torch.cond"
)
_ASSUMED = (
    f"{_TAKES}what the model's code asked of them is decided in the graph{{}}\n{{}}; "
    "Dim(..., min=2) leaves such sizes out"
)
_EQUAL = "on arguments made from the example the model gives the same there"
_NOT_RUN = "the model was not run there to see if that matters"


def hold_specialized(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], verified: bool = False) -> Graph:
    """The graph, with a check for each size of 0 or 1 at which the model itself gives other results than its program.

    Where the model's code asked nothing that has another answer at such a size, and slices have the sizes of the trace
    there, nothing is run.

    Args:
        args, kwargs: the arguments of the example; empty for those that the graph was captured with.
        verified: the program is compared with the model afterwards, at these sizes too.

    Warns:
        UserWarning: the code asked, with what the model does at these sizes as far as that is known. Where it is
            `verified` and the results are the same, there is no need to say so.
    """
    if graph.context is None:
        return graph
    try:
        given = (args, kwargs) if args or kwargs else graph.context.example()
    except ExportError:  # a program without an example
        given = None
    inputs = () if given is None else graph.structure.flatten(*given)
    if len(inputs) != len(graph.inputs):  # a pass of the caller's took some away: the example is of another graph
        given = None
    example = {} if given is None else sizes_of(graph, inputs)
    tried = [(n, s) for n in example for s in (0, 1) if (graph.symbols.get(n, Range()).min or 0) <= s < example[n]]
    shorter, turned = _not_as_traced(graph, example, tried), _turned_writes(graph, example, tried)
    asked = (*graph.context.specialized, *shorter, *turned)
    if not asked:
        return graph
    differs: dict[tuple[str, int], bool | None] = {(s.name, s.size): True for s in turned}
    of_code = {(s.name, s.size) for s in graph.context.specialized}
    for at in dict.fromkeys((s.name, s.size) for s in asked if (s.name, s.size) not in differs):
        differs[at] = _differs(graph, given, at, at in of_code)
    held = [s for s in asked if differs[s.name, s.size]]
    branched = [s for s in asked if s.answer in ("True", "False") and s not in shorter]  # by data, too
    equal = [s for s in branched if differs[s.name, s.size] is False and not verified]
    unknown = [s for s in asked if differs[s.name, s.size] is None and s not in shorter]
    for text, decisions, why in ((_REFUSED, held, ""), (_ASSUMED, equal, _EQUAL), (_ASSUMED, unknown, _NOT_RUN)):
        if decisions:
            warn(text.format(_listed(decisions), why))
    checks = [check(call("ne", symbol(s.name), s.size), _refusal(s)) for s in held]
    return graph.replace(nodes=[*checks, *graph.nodes], context=graph.context.refusing(held)) if held else graph


def _refusal(decision: Specialized) -> str:
    return (
        f"the model was traced where {decision.asked} is {decision.answer} ({decision.place}), and does something else "
        f"where it is not; export it for {decision.name}={decision.size} as well, or branch by torch.cond"
    )


def _turned_writes(graph: Graph, example: Mapping[str, int], tried: Iterable[tuple[str, int]]) -> list[Specialized]:
    """The sizes at which a slice begins or ends at 0 that is counted from the end in the trace, where it is written.

    `z[-b:] = 0` writes all of z at b = 0; in the trace it is a write from `a - b` on.
    """
    written = symbols_in(a for n in graph.nodes if n.op.endswith("_scatter") for a in n.args.values())
    found = {}
    for node in graph.nodes:
        numbers = node.args.values() if node.op in SHORTER else ()
        ends = {e for e in leaves(numbers) if isinstance(e, Expr) and e.symbols <= example.keys() & written}
        for e, (name, size) in itertools.product(ends, tried):
            if name in e.symbols and _falls_below_zero(call("sub", -1, e), example, {**example, name: size}):
                found[e, name, size] = Specialized(f"{e} < 0", "True", node.origin.source, name, size)
    return list(found.values())


def _not_as_traced(graph: Graph, example: Mapping[str, int], tried: Sequence[tuple[str, int]]) -> list[Specialized]:
    """The sizes of 0 and 1 at which a slice is shorter than in the trace, or a size of it less than 0.

    What the model computes from such a size is another number in the trace: `x[1:].shape[0]` is `n - 1` in it, and
    `x[-2:].shape[0]` is 2.
    """
    read = symbols_in(a for n in graph.nodes for a in n.args.values())
    found: dict[tuple[Any, str, int], Specialized] = {}
    for name, size in () if graph.context.knows_decisions else tried:
        found["", name, size] = Specialized(f"{name} > {size}", "True", "by torch.export's strict mode", name, size)
    for node in graph.nodes:
        where = node.origin.source
        numbers = leaves([*node.args.values(), *(v.type.shape for v in node.outputs)])
        sizes = {d for d in numbers if isinstance(d, Expr) and d.kind == "int"}
        below = [d for d in sizes if d.symbols <= example.keys() and bounds(d, graph.symbols)[0] < 0]
        for d, (name, size) in itertools.product(below, tried):
            if name in d.symbols & read and _falls_below_zero(d, example, {**example, name: size}):
                found.setdefault((d, name, size), Specialized(f"{d} >= 0", "True", where, name, size))
        fixed = node.op in SHORTER and symbols_of(node) <= example.keys() and may_be_shorter(node, graph.symbols)
        for name, size in tried if fixed else ():
            if name in symbols_of(node) and not holds_at(node, {**example, name: size}, graph.context):
                found.setdefault((where, name, size), Specialized(f"{name} > {size}", "True", where, name, size))
    return list(found.values())


def _falls_below_zero(d: Expr, example: Mapping[str, int], small: Mapping[str, int]) -> bool:
    return holds(call("ge", d, 0), example) and holds(call("lt", d, 0), small)


def _listed(decisions: Iterable[Specialized]) -> str:
    lines: dict[str, dict[str, None]] = {}
    for s in decisions:
        lines.setdefault(f"{s.asked} is {s.answer}  ({s.place})", {})[f"{s.name} = {s.size}"] = None
    return "".join(f"\n  {line}, but not at {' or '.join(sizes)}" for line, sizes in lines.items())


def _differs(graph: Graph, given: Any, at: tuple[str, int], asked: bool) -> bool | None:
    """Whether the model gives other results than its program; None if it was not run.

    So it does where it alone raises, and where its program alone does and the model's code `asked` for the size: slices
    have their true sizes in a graph, not in torch's program.
    """
    if given is None or graph.context.live is None:  # no model is at hand: torch's program alone tells nothing
        return None
    context, (args, kwargs) = graph.context, given
    sizes = sizes_of(graph, graph.structure.flatten(args, kwargs)) | dict([at])
    for resized_args, resized_kwargs in resized(graph, args, kwargs, sizes):
        try:
            expected = context.reference(graph, resized_args, resized_kwargs)
        except Exception:  # torch's own, of any kind
            expected = None
        try:
            made = context.of_model(graph, resized_args, resized_kwargs)
        except Exception:  # the model's own, of any kind
            if expected is None:
                continue
            return True if _runs(graph, given) else None
        if made is None:
            return None
        if expected is None:
            return asked or None
        drawn, unsized = undetermined(graph)
        names = list(graph.results)[: len(made)]
        found = rows(names, expected[: len(made)], made, skipped=drawn, unsized=unsized)
        return True if not all(r.ok for r in found) else None if drawn else False
    return None


def _runs(graph: Graph, given: Any) -> bool:
    """True if the model runs on the example: its weights have data."""
    try:
        return graph.context.of_model(graph, *given) is not None
    except Exception:  # the model's own, of any kind
        return False
