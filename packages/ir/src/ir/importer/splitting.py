"""One program of torch as several that run one after another, each a program of its own.

A stage takes what earlier ones made and what the whole takes, by the names of torch's nodes. Numbers (sizes, and what
is read out of a tensor) are made anew in each stage from the tensors that it has: tensors alone cross a border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from ir.errors import CaptureError
from ir.importer.fx_ops import is_writer
from ir.importer.origins import origin_of
from ir.importer.retrace import functionalised
from ir.importer.tensor_meta import Tensors
from ir.importer.torch_api import expression, pytree

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_UPDATES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass
class Stage:
    """A part of a program; what it takes and gives by the names of the whole's nodes, updates apart."""

    program: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class _Part:
    """What a stage is made of: its own nodes, what it reads of others, what others read of it."""

    nodes: dict[FxNode, None] = field(default_factory=dict)
    needs: dict[FxNode, None] = field(default_factory=dict)
    gives: dict[FxNode, None] = field(default_factory=dict)
    updates: list[tuple[OutputSpec, FxNode]] = field(default_factory=list)
    sizes: list[FxNode] = field(default_factory=list)  # of tensors that the stage has no other use for

    def reads(self, node: FxNode) -> None:
        """Note what a node takes that is not made here."""
        for source in node.all_input_nodes:
            if source.op == "placeholder" or not (_is_remade(source) or source in self.nodes):
                self.needs.setdefault(source)
            elif _is_remade(source):
                if _is_size(source) and source.args[0] not in self.nodes:
                    self.sizes.append(source)
                else:
                    self.reads(source)

    def read_sizes(self) -> None:
        """The tensors whose sizes are needed, where no other that comes has an axis of that size."""
        for node in self.sizes:
            tensor = node.args[0]
            assert isinstance(tensor, FxNode)
            if tensor not in self.needs and _axis_of(node, self.needs) is None:
                self.needs.setdefault(tensor)


def _is_number(node: FxNode) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), _NUMBERS)


def _is_remade(node: FxNode) -> bool:
    """True for what a stage makes anew: numbers, and references to sub-graphs."""
    return node.op == "get_attr" or _is_number(node)


def _is_size(node: FxNode) -> bool:
    return node.target is torch.ops.aten.sym_size.int


def _axis_of(size: FxNode, tensors: Mapping[FxNode, Any]) -> tuple[FxNode, int] | None:
    """A tensor and its axis that is of this size by itself."""
    wanted = size.meta["val"]
    if not isinstance(wanted, torch.SymInt):
        return None
    for node in tensors:
        fake = node.meta.get("val")
        for axis, extent in enumerate(fake.shape if isinstance(fake, Tensors) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == wanted.node.expr:
                return node, axis
    return None


# -- what one can cut at -----------------------------------------------------------------------------------------------


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program without writes in place: a value that crosses a border is not another's memory."""
    writers = (n.op == "call_function" and is_writer(n) for n in program.graph.nodes)
    return functionalised(program) if any(writers) else program


def entries(program: ExportedProgram) -> dict[str, int]:
    """The place of the first node of each module, by the module's path, in the order of the program."""
    found: dict[str, int] = {}
    for place, node in enumerate(program.graph.nodes):
        if node.op == "call_function" and not _is_number(node):
            for path, _ in (origin_of(node).modules or {}).values():
                parts = str(path).split(".")
                for end in range(1, len(parts) + 1):  # a ModuleList is entered with its first module
                    found.setdefault(".".join(parts[:end]), place)
    return found


def weight_bytes(program: ExportedProgram) -> list[int]:
    """For each node the bytes of the weights that it is the first to read."""
    stored = {s.arg.name for s in program.graph_signature.input_specs if s.kind in _STORED}
    seen: set[str] = set()
    found = []
    for node in program.graph.nodes:
        new = {a.name: a.meta.get("val") for a in node.all_input_nodes if a.name in stored - seen}
        seen.update(new)
        found.append(sum(f.numel() * f.element_size() for f in new.values() if isinstance(f, torch.Tensor)))
    return found


def seconds(program: ExportedProgram) -> list[float]:
    """The time of each node, the best of three runs on the example inputs.

    Raises:
        CaptureError: the program has none.
    """
    import time

    if program.example_inputs is None:
        raise CaptureError('this program carries no example inputs to measure on: balance it by "weights"')
    best: dict[str, float] = {}

    class Timed(torch.fx.Interpreter):
        def run_node(self, n: FxNode) -> Any:
            start = time.perf_counter()
            found = super().run_node(n)
            best[n.name] = min(best.get(n.name, float("inf")), time.perf_counter() - start)
            return found

    leaves = pytree.tree_leaves(program.example_inputs)
    tensors = program.constants | program.state_dict
    given = iter(leaves)
    flat = [
        next(given) if s.kind is InputKind.USER_INPUT else tensors[s.target]
        for s in program.graph_signature.input_specs
    ]
    with torch.no_grad():
        for _ in range(3):
            Timed(program.graph_module).run(*(t.clone() if isinstance(t, torch.Tensor) else t for t in flat))
    return [best.get(n.name, 0.0) for n in program.graph.nodes]


# -- the stages --------------------------------------------------------------------------------------------------------


def split(program: ExportedProgram, cuts: Sequence[int]) -> list[Stage]:
    """The stages of a functional program, a new one at each of these places of its nodes.

    Raises:
        CaptureError: a buffer or an input that the program writes is read in another stage than it is written in.
    """
    parts = [_Part() for _ in range(len(cuts) + 1)]
    home: dict[FxNode, int] = {}
    for place, node in enumerate(program.graph.nodes):
        if node.op == "call_function" and not _is_number(node):
            k = _home(node, home, sum(place >= c for c in cuts))
            home[node] = k
            parts[k].nodes[node] = None
    _place_results(program, parts, home)
    for part in parts:
        for node in part.nodes:
            part.reads(node)
        part.read_sizes()
        for node in part.needs:
            if node.op != "placeholder":
                parts[home[node]].gives.setdefault(node)
    _check_state(program, parts)
    return [_built(program, part) for part in parts]


def _home(node: FxNode, home: Mapping[FxNode, int], k: int) -> int:
    source = node.args[0] if node.args else None
    several = isinstance(source, FxNode) and source in home and not isinstance(source.meta.get("val"), Tensors)
    return home[source] if several and isinstance(source, FxNode) else k  # one of the results of an op stays with it


def _place_results(program: ExportedProgram, parts: Sequence[_Part], home: Mapping[FxNode, int]) -> None:
    """Results go where they are made; the last stage gives those that no node makes, and makes numbers."""
    output = next(iter(program.graph.find_nodes(op="output")))
    own = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    for node, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
        if not isinstance(node, FxNode):
            continue
        part = parts[home.get(node, -1)]
        if spec.kind in _UPDATES:
            part.updates.append((spec, node))
            written = spec.target if spec.kind is OutputKind.USER_INPUT_MUTATION else _buffer(program, spec.target)
            part.needs.setdefault(next(n for n in program.graph.nodes if n.name == written))
        elif node.name not in own:
            part.gives.setdefault(node)
        if node.op == "placeholder":
            part.needs.setdefault(node)
        elif _is_size(node):
            part.sizes.append(node)
        elif _is_number(node):
            part.reads(node)


def _buffer(program: ExportedProgram, target: str | None) -> str:
    name: str = next(s.arg.name for s in program.graph_signature.input_specs if s.target == target)
    return name


def _check_state(program: ExportedProgram, parts: Sequence[_Part]) -> None:
    for k, part in enumerate(parts):
        for spec, _ in part.updates:
            buffer = spec.kind is OutputKind.BUFFER_MUTATION
            name = _buffer(program, spec.target) if buffer else spec.target
            for j, other in enumerate(parts):
                if j != k and (buffer or j > k) and any(n.name == name for n in other.needs):
                    raise CaptureError(
                        f"{spec.target} is written in stage {k} and read in stage {j}: cut elsewhere, so that one "
                        "stage holds it"
                    )


def _built(program: ExportedProgram, part: _Part) -> Stage:
    specs = {s.arg.name: s for s in program.graph_signature.input_specs}
    place = {n: i for i, n in enumerate(program.graph.nodes)}
    needs = sorted(part.needs, key=lambda n: (n.op != "placeholder", place[n]))
    graph, env = FxGraph(), {}
    inputs: list[InputSpec] = []
    for node in needs:
        made = env[node] = graph.placeholder(node.name)
        made.name = made.target = node.name  # fx calls what has the name of a builtin, `input`, otherwise
        made.meta = dict(node.meta)
        spec = specs.get(node.name) if node.op == "placeholder" else None
        number = not isinstance(node.meta.get("val"), Tensors)
        if spec is not None and spec.kind not in (*_STORED, InputKind.USER_INPUT):
            raise CaptureError(f"the program takes a {spec.kind.name} ({node.name}), and is not split")
        stored = spec if spec is not None and spec.kind in _STORED else None
        arg: Any = SymIntArgument(made.name) if number else TensorArgument(made.name)
        kind = (InputKind.USER_INPUT, None) if stored is None else (stored.kind, stored.target)
        inputs.append(InputSpec(kind[0], arg, kind[1], None if stored is None else stored.persistent))

    def value(node: FxNode) -> FxNode:
        if node not in env:
            if _is_size(node) and node.args[0] not in env and (found := _axis_of(node, part.needs)) is not None:
                env[node] = graph.call_function(torch.ops.aten.sym_size.int, (env[found[0]], found[1]))
                env[node].meta = dict(node.meta)
            else:
                env[node] = graph.node_copy(node, value)
        return env[node]

    for node in part.nodes:
        value(node)
    updates = [(s.kind, s.target, value(n)) for s, n in part.updates]
    given = [(OutputKind.USER_OUTPUT, None, value(n)) for n in part.gives]
    results = [*updates, *given]
    graph.output(tuple(v for *_, v in results))
    outputs = [OutputSpec(k, _argument(v), t) for k, t, v in results]
    users = tuple(s.arg.name for s in inputs if s.kind is InputKind.USER_INPUT)
    made_program = _program(program, graph, inputs, outputs, len(users), len(given))
    return Stage(made_program, users, tuple(n.name for n in part.gives))


def _argument(node: FxNode) -> Any:
    return TensorArgument(node.name) if isinstance(node.meta.get("val"), Tensors) else SymIntArgument(node.name)


def _program(
    whole: ExportedProgram, graph: FxGraph, inputs: list[InputSpec], outputs: list[OutputSpec], takes: int, gives: int
) -> ExportedProgram:
    held = {s.target for s in inputs if s.target is not None}
    in_spec = pytree.tree_structure((tuple(range(takes)), {}))
    call = ModuleCallSignature([], [], in_spec, pytree.tree_structure(tuple(range(gives))), None)
    sizes = (n.meta.get("val") for n in graph.nodes)
    used = {s for v in sizes for s in _symbols(v)}
    return ExportedProgram(
        GraphModule(whole.graph_module, graph),
        graph,
        ExportGraphSignature(inputs, outputs),
        {k: v for k, v in whole.state_dict.items() if k in held},
        {s: r for s, r in whole.range_constraints.items() if s in used},
        [ModuleCallEntry("", call)],
        None,
        {k: v for k, v in whole.constants.items() if k in held},
        verifiers=whole.verifiers,
    )


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, Tensors):
        return {s for extent in value.shape for s in _symbols(extent)}
    if isinstance(value, (list, tuple)):
        return {s for v in value for s in _symbols(v)}
    return set(expression(value).free_symbols) if isinstance(value, (torch.SymInt, torch.SymFloat)) else set()
