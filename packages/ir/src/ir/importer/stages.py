"""`ir.split`: a captured graph as several, with a plan that says which tensors go from where to where."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ir.errors import CaptureError
from ir.graph import Graph
from ir.importer import splitting
from ir.importer.capture import of_program
from ir.importer.pt2.program import SavedProgram, told
from ir.importer.torch_api import pytree
from ir.plan import Part, Plan


@dataclass(frozen=True)
class Split:
    """The stages of a model as graphs, in the order in which they run, and the plan of what goes between them."""

    stages: tuple[Graph, ...]
    plan: Plan
    whole: Graph

    def __iter__(self) -> Iterator[Graph]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, place: int) -> Graph:
        return self.stages[place]

    def __str__(self) -> str:
        return str(self.plan)


def split(graph: Any, at: Sequence[str] | None = None, *, stages: int | None = None, balance: str = "weights") -> Split:
    """A model in stages that run one after another, on devices or machines of their own.

    Each stage is a graph as `ir.capture` gives it, with inputs and outputs by name, dynamic sizes and state, and is
    exported to any target; `.plan` says which tensor goes where.

    Args:
        graph: what `ir.capture` gave, or a program that `ir.export` returned.
        at: paths of modules, each the first of a stage: ["model.layers.12", "model.layers.24"].
        stages: how many, in place of `at`: cut at borders of the model's repeated blocks.
        balance: what the stages have in equal parts: "weights", their bytes, or "time", measured on the example inputs.

    Returns:
        The stages.

    Raises:
        CaptureError: no module of this path runs, the modules do not run in this order, there are fewer borders than
            stages, or state is written in one stage and read in another.
        ValueError: neither or both of `at` and `stages`.

    Examples:
        >>> pipeline = ir.split(ir.capture(model, args), at=["1"])
        >>> for k, stage in enumerate(pipeline):
        ...     program = ir.export(stage, target="onnx", path=f"stage{k}.onnx")
    """
    if (at is None) == (stages is None):
        raise ValueError("say where to cut: at=[module paths], or stages= how many")
    graph = getattr(graph, "graph", graph)
    program = _functional(graph.context.program)
    cuts = _at(program, at) if at is not None else _balanced(program, stages or 0, balance)
    parts = splitting.split(program, cuts)
    return _named(graph, program, parts)


def _functional(program: ExportedProgram | SavedProgram) -> ExportedProgram:
    """Without writes in place; one out of a file without example inputs, which torch would unpickle."""
    if isinstance(program, ExportedProgram):
        example = program.example_inputs
        program = splitting.functional(program)
        program.example_inputs = example
        return program
    with told(program.path):
        rebuilt, lines = program.rebuilt()
    made = splitting.functional(rebuilt)
    for node in made.graph.nodes:
        node.meta["stack_trace"] = lines.get(node.meta.get("stack_trace"), "")
    return made


def _at(program: ExportedProgram, at: Sequence[str]) -> list[int]:
    entries = splitting.entries(program)
    for path in at:
        if path not in entries:
            raise CaptureError(
                f"no module {path!r} runs in this program; there are {', '.join(list(entries)[1:9])} ..."
            )
    cuts = [entries[path] for path in at]
    if cuts != sorted(set(cuts)):
        raise CaptureError(f"the modules {', '.join(at)} do not begin one after another in the program")
    if cuts and cuts[0] == min(entries.values()):
        raise CaptureError(f"{at[0]!r} is where the program begins, and no stage is before it")
    return cuts


# -- balance -----------------------------------------------------------------------------------------------------------


def _balanced(program: ExportedProgram, stages: int, balance: str) -> list[int]:
    """The cuts among the candidates that leave the largest stage smallest."""
    if balance not in ("weights", "time"):
        raise ValueError(f'balance={balance!r}: "weights" or "time"')
    costs = splitting.weight_bytes(program) if balance == "weights" else splitting.seconds(program)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    places = _candidates(program, stages)
    ends = [*places, len(costs)]
    best: dict[int, tuple[float, list[int]]] = {end: (sums[end], []) for end in ends}
    for _ in range(stages - 1):
        best = {
            end: min(
                (max(best[cut][0], sums[end] - sums[cut]), [*best[cut][1], cut])
                for cut in places[: bisect.bisect_left(places, end)]
                if cut in best
            )
            for end in ends
            if any(cut < end and cut in best for cut in places)
        }
    return best[len(costs)][1]


def _candidates(program: ExportedProgram, stages: int) -> list[int]:
    """Where one may cut: the members of the outermost lists of modules if they are enough, else all modules."""
    entries = splitting.entries(program)
    start = min(entries.values(), default=0)
    depth: dict[int, set[int]] = {}
    for path, place in entries.items():
        parts = path.split(".")
        if place > start and parts[-1].isdigit():
            depth.setdefault(len(parts), set()).add(place)
    for places in (*(depth[d] for d in sorted(depth)), {p for p in entries.values() if p > start}):
        if len(places) >= stages - 1:
            return sorted(places)
    raise CaptureError(f"the program has too few modules for {stages} stages")


# -- names -------------------------------------------------------------------------------------------------------------


def _named(graph: Graph, program: ExportedProgram, parts: Sequence[splitting.Stage]) -> Split:
    own = program.graph_signature.user_inputs
    nodes = {n.name: n for n in program.graph.nodes}
    data = [n for n in own if isinstance(n, str) and isinstance(nodes[n].meta.get("val"), (torch.Tensor, torch.SymInt))]
    names = dict(zip(data, (v.name for v in graph.inputs), strict=True))
    output = next(iter(program.graph.find_nodes(op="output")))
    pairs = zip(output.args[0], program.graph_signature.output_specs, strict=True)
    users = [n.name for n, s in pairs if s.kind.name == "USER_OUTPUT" and isinstance(n, torch.fx.Node)]
    for node, name in zip(users, graph.output_names, strict=True):
        names.setdefault(node, name)
    taken = set(names.values())
    for node in (n for part in parts for n in (*part.inputs, *part.outputs) if n not in names):
        name = node
        while name in taken:
            name += "_"
        taken.add(name)
        names[node] = name
    symbols = {str(s): name for s, name in graph.context.bodies.symbols.names.items()}
    _examples(graph, data, parts)
    graphs = tuple(
        of_program(
            p.program, symbols, [names[n] for n in p.inputs], [names[n] for n in p.outputs], graph.context.of_file
        )
        for p in parts
    )
    told = tuple(
        Part(tuple(names[n] for n in p.inputs), tuple(names[n] for n in p.outputs), tuple(g.updates))
        for p, g in zip(parts, graphs, strict=True)
    )
    plan = Plan(tuple(v.name for v in graph.inputs), told, tuple(names[n] for n in users), graph.output_names)
    return Split(graphs, plan, graph)


def _examples(graph: Graph, data: Sequence[str], parts: Sequence[splitting.Stage]) -> None:
    """Example inputs for every stage, by torch's own modules of those before it; none where the whole has none."""
    whole = graph.context.program
    if isinstance(whole, SavedProgram) or whole.example_inputs is None:
        return
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, graph.context.example())
    held: dict[str, Any] = dict(zip(data, graph.structure.flatten(args, kwargs), strict=True))
    with torch.no_grad():
        for part in parts:
            given = tuple(_as_taken(part.program, n, held[n]) for n in part.inputs)
            part.program.example_inputs = (given, {})
            state = {k: v.clone() for k, v in part.program.state_dict.items() if k in _written(part.program)}
            made = part.program.module(check_guards=False)(*pytree.tree_map_only(torch.Tensor, torch.clone, given))
            held.update(zip(part.outputs, made, strict=True))
            for name, tensor in state.items():
                part.program.state_dict[name].copy_(tensor)


def _written(program: ExportedProgram) -> Mapping[str, Any]:
    return dict.fromkeys(program.graph_signature.buffers_to_mutate.values())


def _as_taken(program: ExportedProgram, name: str, value: Any) -> Any:
    """An integer argument is a tensor in the graph, and a number for torch."""
    node = next(n for n in program.graph.nodes if n.name == name)
    return value.item() if isinstance(node.meta.get("val"), torch.SymInt) and isinstance(value, torch.Tensor) else value
