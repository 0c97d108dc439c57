"""nn.Module, ExportedProgram or .pt2 file -> ir.Graph, through torch.export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim as TorchDim
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Body, Graph, Node, Value, Weight
from ir.importer import autograd_functions, fake_rules, file_guards, guards
from ir.importer import structure as st
from ir.importer.archive import load_pt2
from ir.importer.bodies import Bodies
from ir.importer.evaluate import evaluate
from ir.importer.functions import FunctionModule
from ir.importer.memory import supported, writers
from ir.importer.naming import name_symbols, signature_names
from ir.importer.normalise import Importer
from ir.importer.symbols import Symbols
from ir.importer.weights import TorchWeight


@dataclass(eq=False)
class Capture:
    """What stays of a capture beside its graph: bodies for nodes, the reference and the example arguments."""

    program: ExportedProgram
    bodies: Bodies
    model: torch.nn.Module | None = None
    _reference: Any = field(default=None, repr=False)

    def body(self, node: Node) -> Body | None:
        return self.bodies.body(node)

    def parts(self, node: Node) -> Graph | None:
        return self.bodies.parts(node)

    def body_error(self, node: Node) -> str:
        """Why the node's decomposition could not be used, empty if it has none."""
        return self.bodies.errors.get(node.overload, "")

    def skeleton(self, node: Node, target: str) -> str:
        from ir.importer.custom_ops import skeleton

        return skeleton(node, target)

    def evaluate(self, nodes: Iterable[Node], weights: Mapping[Value, Weight], value: Value) -> Any:
        return evaluate(nodes, weights, value)

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the model was captured with.

        Raises:
            CaptureError: the program carries none (a .pt2 file saved without them).
        """
        inputs = self.program.example_inputs
        if inputs is None:
            raise CaptureError("this program carries no example inputs; give args= to verify")
        return inputs

    def reference(
        self, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """torch's own values of `graph.results`; neither the model nor its arguments are changed by asking.

        `weights` stand in for the model's own of these names.
        """
        if self._reference is None:
            self._reference = self.program.module(check_guards=False)
        module = self._reference
        state = {k: v.detach().clone() for k, v in self._mutated(module, graph)}
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
        try:
            with torch.no_grad():
                given = dict(weights or {})
                made = (
                    torch.func.functional_call(module, given, args, dict(kwargs)) if given else module(*args, **kwargs)
                )
                leaves = pytree.tree_leaves(made)
                outputs = [
                    leaf for leaf, o in zip(leaves, graph.structure.outputs, strict=True) if not isinstance(o, st.Fixed)
                ]
                after = dict(self._mutated(module, graph))
                after.update(zip(graph.structure.input_names, graph.structure.flatten(args, kwargs), strict=True))
                return self.arrays([*outputs, *(after[name] for name in graph.updates)])
        finally:
            with torch.no_grad():
                for k, v in self._mutated(module, graph):
                    v.copy_(state[k])

    @staticmethod
    def _mutated(module: torch.nn.Module, graph: Graph) -> list[tuple[str, torch.Tensor]]:
        """The buffers and parameters that the model writes to."""
        return [(k, v) for k, v in (*module.named_buffers(), *module.named_parameters()) if k in graph.updates]

    @staticmethod
    def arrays(values: Sequence[Any]) -> list[Any]:
        """Tensors and numbers as numpy arrays."""
        return [TorchWeight("", v.clone() if isinstance(v, torch.Tensor) else _number(v)).numpy() for v in values]

    @staticmethod
    def private(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the inputs, for runtimes that write to them as the model does."""
        return [t.clone() for t in tensors]


def capture(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Graph:
    """The graph of a model.

    Args:
        model: an nn.Module, a torch.export.ExportedProgram, the path of a .pt2 file, or an ir.Graph (as it is).
        args, kwargs: example arguments, as for torch.export.export (a tensor may stand for a tuple of it alone); not
            needed for a program that exists already.
        dynamic_shapes: torch.export's own argument. A string in place of a Dim names a dimension that torch.export
            finds the range of (Dim.DYNAMIC). For a program that exists already it only names dimensions. A Python int
            among the arguments is fixed, or with Dim.DYNAMIC in its place an input of the graph, int64 of shape ().
        input_names, output_names: names for the flat tensor inputs and outputs, in order; the first ones if fewer.

    Warns:
        UserWarning: the model's code branched on a dynamic size: the graph has the branch of the example alone.

    Raises:
        CaptureError: torch.export refused the model, or its graph has something that the IR cannot say.
    """
    if isinstance(model, Graph):
        return model
    module = model if isinstance(model, torch.nn.Module) else None
    args, kwargs = arguments(args, kwargs)
    program = _program(model, args, kwargs, dynamic_shapes)
    symbols = Symbols(program.range_constraints)
    name_symbols(program, symbols, args, kwargs, dynamic_shapes)
    branches = guards.branches(program, symbols)
    if not supported(program.graph_module) or _needs_retrace(program.graph_module):
        program = _functionalised(program)
    return _import(program, module, symbols, branches, input_names, output_names)


def arguments(args: Any, kwargs: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call; a tensor in place of a sequence is the only one.

    Raises:
        TypeError: `args` is no sequence, or `kwargs` no mapping.
    """
    if isinstance(args, torch.Tensor):
        args = (args,)
    if isinstance(args, (str, Mapping)) or not isinstance(args, Iterable):
        raise TypeError(f"args is a {type(args).__name__}: give a tensor, or the arguments as a tuple")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        hint = "; a file is named by path=" if isinstance(kwargs, (str, os.PathLike)) else ""
        raise TypeError(f"kwargs is {kwargs!r:.60}: keyword arguments are given as a dict{hint}")
    return tuple(args), dict(kwargs or {})


def _program(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load_pt2(Path(model))
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise CaptureError(
                f"cannot capture a {type(model).__name__}: give an nn.Module, an ExportedProgram or a .pt2"
            )
        model = FunctionModule(model)
    shapes = pytree.tree_map_only(str, lambda _: TorchDim.DYNAMIC, dynamic_shapes)
    args, kwargs = _distinct(args, kwargs)
    try:
        with fake_rules.dynamic(), autograd_functions.kept(), _unmarked((args, kwargs)):
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        guards.refuse_truncated(program)
        return program
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"torch.export refused the model: {error}{_REMEDIES.get(type(error).__name__, '')}{_notes(error)}"
        ) from error


def _notes(error: BaseException | None) -> str:
    """What was noted at the error, or at one that it came from."""
    notes: list[str] = []
    while error is not None and not notes:
        notes = getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return "".join(f"\n  {note}" for note in dict.fromkeys(notes))


_REMEDIES = {  # for torch's errors that say no more than the op's name
    "DataDependentOutputException": " gives a Python number that depends on the data; compute with tensors instead",
    "DynamicOutputShapeException": " gives a shape that depends on the data, which torch has no symbols for; write it "
    "with other ops, or as a custom op with a body",
}


@contextlib.contextmanager
def _unmarked(arguments: Any) -> Iterator[None]:
    """Inside of the block torch notes at the tensors which sizes are dynamic; after an error it leaves that there."""
    noted = [(t, dict(vars(t))) for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    try:
        yield
    finally:
        for tensor, before in noted:
            vars(tensor).clear()
            vars(tensor).update(before)


def _distinct(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with a tensor that is given twice copied: torch.export would read one input for both."""
    seen: set[int] = set()

    def copy(t: torch.Tensor) -> torch.Tensor:
        again = id(t) in seen
        seen.add(id(t))
        return t.clone() if again else t

    return pytree.tree_map_only(torch.Tensor, copy, (args, kwargs))


def _number(value: Any) -> torch.Tensor:
    """A Python number as the 0-d tensor that a graph returns for it."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _functionalised(program: ExportedProgram) -> ExportedProgram:
    """torch's own functionalisation: a retrace, for writes that ir.importer.memory cannot undo, and for autocast.

    Raises:
        CaptureError: torch refused, or the retrace fixed a size that was dynamic.
    """
    example = program.example_inputs
    try:
        with fake_rules.dynamic():
            done = program.run_decompositions({})
    except Exception as error:
        raise CaptureError(
            "the model writes through views that have no inverse, casts by itself (autocast), or transforms functions "
            f"(vmap, grad); torch's functionalisation, which undoes that, refused it: {error}"
        ) from error
    done.example_inputs = example
    before, after = ([str(s) for s in _input_sizes(p)] for p in (program, done))
    if len(before) == len(after) and before != after:
        changed = ", ".join(f"{b} became {a}" for b, a in zip(before, after, strict=True) if a != b)
        raise CaptureError(f"torch's functionalisation fixed sizes that were dynamic: {changed}; write without views")
    return done


def _input_sizes(program: ExportedProgram) -> list[Any]:
    names = set(program.graph_signature.user_inputs)
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    return [s for f in fakes if isinstance(f, torch.Tensor) for s in f.shape]


def _needs_retrace(module: torch.fx.GraphModule) -> bool:
    """True for autocast, which casts inside of ops, and for vmap, whose calls are no operators."""

    def names(n: torch.fx.Node) -> tuple[str, str]:
        return getattr(n.target, "__name__", ""), getattr(n.target, "__module__", "") or ""

    if any("functorch" in names(n)[1] for n in module.graph.nodes if n.op == "call_function"):
        return True
    return any(
        n.op == "call_function" and names(n)[0] == "wrap_with_autocast" and n.args[2]
        for m in module.modules()
        if isinstance(m, torch.fx.GraphModule)
        for n in m.graph.nodes
    )


# -- the graph ---------------------------------------------------------------------------------------------------------


def _import(
    program: ExportedProgram,
    model: torch.nn.Module | None,
    symbols: Symbols,
    branches: Sequence[guards.Branch],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Graph:
    importer = Importer(symbols, program.graph_module)
    signature = program.graph_signature
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    inputs: list[Value] = []
    leaves: list[Any] = []
    given = list(input_names or ())
    by_name: dict[str, str] = {}
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            fake = node.meta.get("val")
            if isinstance(fake, torch.Tensor):
                name = given[len(inputs)] if len(inputs) < len(given) else node.name
                by_name[node.name] = name
                importer.env[node] = importer.value(name, fake)
                inputs.append(importer.env[node])
                leaves.append(st.TENSOR)
            elif isinstance(fake, torch.SymInt):
                name = given[len(inputs)] if len(inputs) < len(given) else node.name
                importer.env[node] = symbols.convert(fake)
                inputs.append(importer.integer_input(name, fake))
                leaves.append(st.Integer(name, symbols.range_of(fake)))
            else:
                importer.env[node] = symbols.convert(fake if fake is not None else getattr(spec.arg, "value", None))
                leaves.append(getattr(spec.arg, "value", None))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            importer.env[node] = importer.constant(node, spec.target, _tensor(program, spec))
        else:
            raise CaptureError(f"the input {node.name} is a {spec.kind.name}, which has no form in the IR")
    numbers = [n.args["symbol"] for n in importer.nodes if n.op == "ir::item"]
    known = {d.as_symbol for d in (*numbers, *(d for v in inputs for d in v.type.shape)) if isinstance(d, Expr)}
    importer.nodes += guards.checks(branches, symbols, known)
    if guards.is_from_file(program):
        specs = zip(placeholders, signature.input_specs, strict=True)
        arguments = [importer.env[n] for n, s in specs if s.kind == InputKind.USER_INPUT]
        importer.nodes += file_guards.checks(program, signature_names(program), arguments, symbols.ranges)
    if any(writers(m.graph) for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)):
        importer.remember()
    results = importer.run(program.graph)
    results = results if isinstance(results, tuple) else (results,)
    updates: dict[str, Value] = {}
    users: list[Any] = []
    for result, out in zip(results, signature.output_specs, strict=True):
        if out.kind == OutputKind.USER_OUTPUT:
            users.append(result)
        elif out.kind == OutputKind.BUFFER_MUTATION:
            updates[out.target] = result
        elif out.kind in (OutputKind.USER_INPUT_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
            updates[by_name.get(out.target, out.target)] = result
        else:
            raise CaptureError(f"an output of kind {out.kind.name} has no form in the IR")
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if importer.memory is not None and node in importer.memory.writes:
            updates[by_name.get(node.name, spec.target or node.name)] = importer.env[node]
    outputs, kinds = _outputs(importer, users)
    out_spec = program.call_spec.out_spec
    all_names = st.names_of(out_spec) if out_spec is not None else ["output"] * len(users)
    names = [n for n, k in zip(all_names, kinds, strict=True) if not isinstance(k, st.Fixed)]
    names[: len(output_names or ())] = list(output_names or ())[: len(names)]
    convention = st.Structure(program.call_spec.in_spec, out_spec, tuple(leaves), kinds, tuple(v.name for v in inputs))
    bodies = Bodies(symbols)
    return Graph(
        inputs=tuple(inputs),
        nodes=tuple(importer.nodes),
        outputs=outputs,
        output_names=st.unique(names),
        weights=_used(importer, outputs, updates),
        updates=updates,
        symbols=symbols.ranges,
        random=any(bodies.draws(n) for n in importer.nodes),
        structure=convention,
        context=Capture(program, bodies, model),
    )


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


def _used(importer: Importer, outputs: Sequence[Value], updates: Mapping[str, Value]) -> dict[Value, Any]:
    """The weights that something reads, in the model's order."""
    used = {v for n in importer.nodes for v in n.inputs} | set(outputs) | set(updates.values())
    return {v: w for v, w in importer.weights.items() if v in used}


def _tensor(program: ExportedProgram, spec: Any) -> torch.Tensor:
    if spec.target in program.constants:
        return program.constants[spec.target]
    return program.state_dict[spec.target]
