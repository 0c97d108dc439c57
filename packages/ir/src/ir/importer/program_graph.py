"""A captured program -> ir.Graph: its placeholders, its guards, its nodes, and what it returns and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node as FxNode

from ir.collector import held_back
from ir.dims import Dim, Expr, solve
from ir.errors import CaptureError, warn
from ir.graph import Graph, Value, Weight, symbols_in
from ir.importer import calling_convention as st
from ir.importer import file_guards, guards, input_strides, io_names, numbers_for_sizes
from ir.importer.bodies import Bodies
from ir.importer.condition_texts import worded
from ir.importer.context import Capture
from ir.importer.counted_indices import within_axes
from ir.importer.dim_names import signature_names
from ir.importer.fx_importer import Importer
from ir.importer.ladder import Rung
from ir.importer.literal_sizes import literal_sizes
from ir.importer.live import Live
from ir.importer.origins import origin_of
from ir.importer.private_writes import writes
from ir.importer.pt2.expressions import Size
from ir.importer.pt2.program import SavedProgram
from ir.importer.pt2.recorded_conditions import packed
from ir.importer.real_views import check_views
from ir.importer.refusals import INSTEAD_OF_GENERATOR
from ir.importer.symbols import Symbols
from ir.importer.tensor_meta import Tensors
from ir.importer.torch_api import pytree
from ir.progress import stage

_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@stage("import")
@held_back
def graph_of(
    program: ExportedProgram | SavedProgram,
    symbols: Symbols,
    *,
    live: Live | None = None,
    rung: Rung | None = None,
    recorded: guards.RecordedConditions | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    of_file: bool = False,
) -> Graph:
    """The graph of a program.

    Args:
        program: torch's, or one that was read from a .pt2 file.
        symbols: the program's, with their names and ranges.
        live: what it was captured from, where that is at hand.
        rung: how it was captured; None for a program that existed already.
        recorded: the conditions on sizes; None where nothing says who asked for those that the program has.
        input_names: for the first of its tensor inputs.
        output_names: for the first of its outputs.
        of_file: it was made of one that was read from a file.

    Raises:
        CaptureError: it has something that the IR cannot say.
    """
    saved = of_file or isinstance(program, SavedProgram)
    work = _ProgramImporter(program, symbols, saved)
    work.take_inputs(input_names)
    symbols.take_literals(literal_sizes(program.graph_module))
    work.add_checks(recorded)
    results = work.run()
    users, updates = work.sorted_results(results)
    outputs, kinds = _outputs(work.importer, users)
    work.importer.drop_unread((*outputs, *updates.values()))
    work.hold_sizes(recorded.asked if recorded is not None else ())
    names = tuple(v.name for v in work.inputs)
    specs, own = (program.call_spec.in_spec, program.call_spec.out_spec), tuple(signature_names(program))
    symbols.equal = work.equal_sizes()
    bodies = Bodies(symbols)
    graph = Graph(
        inputs=tuple(work.inputs),
        nodes=tuple(work.importer.nodes),
        outputs=outputs,
        output_names=io_names.output_names(program, kinds, names, output_names),
        weights=_used(work.importer, outputs, list(updates.values())),
        updates=updates,
        symbols=symbols.ranges,
        equal=symbols.equal,
        random=any(bodies.draws(n) for n in work.importer.nodes),
        strides=work.strides,
        structure=st.Structure(*specs, tuple(work.leaves), kinds, names, own),
        context=Capture(program, bodies, live, rung, packed(program, recorded), saved),
    )
    return worded(within_axes(graph))


def _no_form(node: FxNode, spec: Any) -> CaptureError:
    """What to raise for an input that is neither a tensor nor a number, with the first line that uses it."""
    kind = getattr(spec.arg, "class_fqn", spec.kind.name).replace("torch._C.", "torch.")
    lines = [f"the input {node.name} is a {kind}, which has no form in the IR"]
    lines += [f"at {origin_of(user)}" for user in list(node.users)[:1]]
    return CaptureError("\n  ".join([*lines, INSTEAD_OF_GENERATOR] if kind == "torch.Generator" else lines))


class _ProgramImporter:
    """The work on one program."""

    def __init__(self, program: ExportedProgram | SavedProgram, symbols: Symbols, of_file: bool) -> None:
        self.program = program
        self._of_file = of_file
        self.symbols = symbols
        self.importer = Importer(symbols, program.graph_module)
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        self.specs = list(zip(placeholders, program.graph_signature.input_specs, strict=True))
        self.inputs: list[Value] = []
        self.leaves: list[Any] = []
        self._equal: dict[str, Any] = {}  # numbers among the arguments, by name: the sizes that they are
        self.strides: Mapping[str, input_strides.Strides] = {}  # of inputs of which they matter
        self._names: dict[str, str] = {}  # of tensor inputs, by the names of their placeholders

    def take_inputs(self, input_names: Sequence[str] | None) -> None:
        """Every placeholder as an input, a fixed argument or a weight."""
        given = iter(io_names.input_names(self.program, input_names))
        for node, spec in self.specs:
            if spec.kind == InputKind.USER_INPUT:
                self._argument(node, spec, given)
            elif spec.kind in _STORED:
                self.importer.env[node] = self.importer.constant(node, spec.target, self._tensor(spec))
            else:
                raise _no_form(node, spec)
        self._warn_of_sizes()

    def _warn_of_sizes(self) -> None:
        """Of numbers among the arguments that are sizes, or other numbers, in torch's program."""
        for name, size in self._equal.items():
            named = [(v.name, i, d) for v in self.inputs for i, d in enumerate(v.type.shape)]
            axes = [f"axis {i} of {v} is {d}" for v, i, d in named if symbols_in([d]) & symbols_in([size])]
            where = f", where {' and '.join(axes)}" if axes else ""
            warn(
                f"the argument {name} is {size} in the program{where}, as in the example: the model's code or an op "
                "asks for it; the program refuses other numbers"
            )

    def _argument(self, node: Any, spec: Any, given: Any) -> None:
        importer, fake = self.importer, node.meta.get("val")
        if isinstance(fake, Tensors):
            name = self._names[node.name] = next(given)
            importer.env[node] = importer.value(name, fake)
            self.inputs.append(importer.env[node])
            self.leaves.append(st.TENSOR)
        elif isinstance(fake, torch.SymInt | Size):
            name = next(given)
            importer.env[node] = known = self.symbols.convert(fake)
            read = self.symbols.read(fake, name)
            if read == known and read.as_symbol in self._sized:
                read = self.symbols.fresh(name, "int", name)
            if read != known:
                self._equal[name] = known
            self.inputs.append(importer.integer_input(name, read, known))
            self.leaves.append(st.Integer(name, self.symbols.range_of(fake)))
        else:
            fixed = getattr(spec.arg, "value", None)
            importer.env[node] = self.symbols.convert(fake if fake is not None else fixed)
            self.leaves.append(fixed)

    @cached_property
    def _sized(self) -> set[str]:
        """The symbols that sizes of tensors tell: a number that is one in torch's program may be given another."""
        users = [n for n, s in self.specs if s.kind == InputKind.USER_INPUT and isinstance(n.meta.get("val"), Tensors)]
        sizes = [self.symbols.convert(d) for n in users for d in n.meta["val"].shape]
        return {name for d in sizes for name in symbols_in([d]) if solve(d, name) is not None}

    def add_checks(self, recorded: guards.RecordedConditions | None) -> None:
        """Nodes for the conditions that torch assumed of sizes and arguments."""
        importer = self.importer
        if recorded is not None:
            importer.nodes += guards.checks(recorded.branches, self.symbols, self._known())
        elif guards.is_from_file(self.program):
            arguments = [importer.env[n] for n, s in self.specs if s.kind == InputKind.USER_INPUT]
            names = signature_names(self.program)
            importer.nodes += file_guards.checks(self.program, names, arguments, self.symbols.ranges)

    def hold_sizes(self, asked: Sequence[guards.Branch]) -> None:
        """Checks, first of all nodes, that sizes are the numbers which stand for them in the graph."""
        asked = numbers_for_sizes.needed(self.importer.nodes, asked, self.symbols.ranges)
        guards.warn(asked, self.symbols)
        self.importer.nodes[:0] = guards.checks(asked, self.symbols, self._known())

    def equal_sizes(self) -> tuple[tuple[Dim, Dim], ...]:
        """Sizes that are one, by torch's notes and by what the graph checks."""
        program = self.program
        recorded = guards.equalities(program, self.symbols) if isinstance(program, ExportedProgram) else ()
        return tuple(dict.fromkeys((*recorded, *numbers_for_sizes.equalities(self.importer.nodes))))

    def _known(self) -> set[str | None]:
        """The symbols that inputs and numbers among them tell."""
        arguments = [self.importer.env[n] for n, s in self.specs if s.kind == InputKind.USER_INPUT]
        sizes = (*arguments, *(d for v in self.inputs for d in v.type.shape))
        return {d.as_symbol for d in sizes if isinstance(d, Expr)}

    def run(self) -> tuple[Any, ...]:
        """Import every node; what the program returns."""
        stored = {n: self._tensor(s) for n, s in self.specs if s.kind in _STORED}
        if writes(self.program.graph_module):
            self.importer.remember(self.program.graph, stored)
        given = [n for n, _ in self.specs if n.name in self._names]
        layouts = input_strides.observed(self.program.graph_module, stored, given, self.importer.seen)
        self.strides = {self._names[n.name]: s for n, s in layouts.inputs.items()}
        check_views(self.program.graph_module, lambda: self._example(stored), layouts, self._of_file)
        results = self.importer.run(self.program.graph)
        return results if isinstance(results, tuple) else (results,)

    def _example(self, stored: Mapping[FxNode, torch.Tensor]) -> Mapping[FxNode, Any]:
        """What the placeholders are in the example.

        Raises:
            CaptureError: the program has none.
        """
        example = self.program.example_inputs
        if example is None:
            raise CaptureError("the program carries no example inputs")
        users = [n for n, s in self.specs if s.kind == InputKind.USER_INPUT]
        return {**stored, **dict(zip(users, pytree.tree_leaves(example), strict=True))}

    def sorted_results(self, results: Sequence[Any]) -> tuple[list[Any], dict[str, Value]]:
        """What the user gets of the results, and the new contents of buffers and inputs by name."""
        updates: dict[str, Value] = {}
        users: list[Any] = []
        for result, out in zip(results, self.program.graph_signature.output_specs, strict=True):
            if out.kind == OutputKind.USER_OUTPUT:
                users.append(result)
            elif out.kind == OutputKind.BUFFER_MUTATION:
                updates[out.target] = result
            elif out.kind in (OutputKind.USER_INPUT_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
                updates[self._names.get(out.target, out.target)] = result
            else:
                raise CaptureError(f"an output of kind {out.kind.name} has no form in the IR")
        targets = {n: s.target for n, s in self.specs}
        for node, value in self.importer.memory.updates() if self.importer.memory is not None else ():
            updates[self._names.get(node.name, targets[node] or node.name)] = value
        return users, updates

    def _tensor(self, spec: Any) -> torch.Tensor:
        known = self.program.constants if spec.target in self.program.constants else self.program.state_dict
        tensor: torch.Tensor = known[spec.target]
        return tensor


def _outputs(importer: Importer, users: Sequence[Any]) -> tuple[tuple[Value, ...], tuple[Any, ...]]:
    """The graph's outputs, and for each leaf of the model's output what it is."""
    values: list[Value] = []
    kinds: list[Any] = []
    for r in users:
        if isinstance(r, Value):
            kinds.append(st.TensorOutput(len(values)))
            values.append(r)
        elif r is None or isinstance(r, bool | int | float | str):
            kinds.append(st.Fixed(r))
        else:
            kinds.append(st.ScalarOutput(len(values)))
            values.append(importer.scalar_tensor(r, f"scalar_{len(values)}"))
    return tuple(values), tuple(kinds)


def _used(importer: Importer, outputs: Sequence[Value], updates: Sequence[Value]) -> dict[Value, Weight]:
    """The weights that something reads, in the model's order."""
    used = {v for n in importer.nodes for v in n.inputs} | set(outputs) | set(updates)
    return {v: w for v, w in importer.weights.items() if v in used}
