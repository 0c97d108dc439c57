"""A saved program: what ir.importer.capture reads of an ExportedProgram, out of a file and without running it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from ir.errors import CaptureError
from ir.importer.file_guards import plain_condition
from ir.importer.pt2.archive import Archive
from ir.importer.pt2.consistency import check_results
from ir.importer.pt2.dimension_names import dimension_names
from ir.importer.pt2.examples import example_inputs
from ir.importer.pt2.expressions import Size
from ir.importer.pt2.graphs import FileGraph, read_graph
from ir.importer.pt2.rebuild import check_paths, put_arguments, rebuilt
from ir.importer.pt2.recorded_conditions import recorded_in
from ir.importer.pt2.symbols import FileSymbols
from ir.importer.pt2.trees import read_tree
from ir.importer.pt2.values import PLAIN, identifier, integer, text, union
from ir.importer.pt2.weights import Payloads, check_byte_order
from ir.importer.pt2.write import write_with
from ir.importer.tensor_meta import Described, Tensors, graphs_of
from ir.importer.torch_api import (
    PT2_COMPILED,
    PT2_CONSTANTS,
    PT2_EXAMPLES,
    PT2_FORMAT,
    PT2_MODELS,
    PT2_SCHEMA,
    PT2_WEIGHTS,
    put,
    pytree,
)

_MANY_RANGES = 1000
_SYMBOL = re.compile(rb"Symbol\('(\w+)'")
_WAY_OUT = "load a file that you trust with torch.export.load and pass the ExportedProgram"
_NUMBERS: dict[str, Any] = {"as_sym_int": SymIntArgument, "as_sym_float": SymFloatArgument,
                            "as_sym_bool": SymBoolArgument}  # fmt: skip
_INPUTS = {  # tag -> kind, the key of the name in the model
    "parameter": (InputKind.PARAMETER, "parameter_name"),
    "buffer": (InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}
_OUTPUTS = {
    "user_output": (OutputKind.USER_OUTPUT, None),
    "loss_output": (OutputKind.LOSS_OUTPUT, None),
    "buffer_mutation": (OutputKind.BUFFER_MUTATION, "buffer_name"),
    "user_input_mutation": (OutputKind.USER_INPUT_MUTATION, "user_input_name"),
    "parameter_mutation": (getattr(OutputKind, "PARAMETER_MUTATION", None), "parameter_name"),
}


class SavedProgram:
    """The program in a .pt2 file. The names that it shares with torch.export.ExportedProgram mean the same.

    `module` is torch's own, made of what was read and checked here: torch never sees the file.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises CaptureError: it is missing, damaged, of another version, or holds no program."""
        self.path = path
        archive = Archive(path)
        self._text, model = _program_text(archive)
        document = _document(self._text)
        inner = document["graph_module"]
        self._model = model
        check_byte_order(archive)
        self.state_dict = Payloads(archive, PT2_WEIGHTS, model).tensors
        self.constants = Payloads(archive, PT2_CONSTANTS, model).tensors
        self.graph_signature = _Signature(inner["signature"])
        constants = [getattr(s.arg, "name", None) for s in self.graph_signature.input_specs]
        self.graph_module: FileGraph = read_graph(inner["graph"], constants)
        self.graph = self.graph_module.graph
        self.call_spec, self.argument_names = _convention(inner)
        self.ranges = {text(name): _range(name, r) for name, r in document["range_constraints"].items()}
        archive.has(f"{PT2_EXAMPLES}{model}.pt")
        self.dimension_names = dimension_names(archive)
        self.recorded = recorded_in(archive)
        self._archive = archive
        self._guards_code = [text(g) for g in document.get("guards_code") or ()]
        self._check()

    def _check(self) -> None:
        """That signature, graph, arguments and tensors fit each other."""
        inputs, outputs = self.graph_signature.input_specs, self.graph_signature.output_specs
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        results = self.graph.output_node().args[0]
        if len(placeholders) != len(inputs) or not isinstance(results, tuple) or len(results) != len(outputs):
            raise CaptureError("its signature has another number of inputs or results than its graph")
        users = sum(s.kind == InputKind.USER_INPUT for s in inputs)
        returned = sum(s.kind == OutputKind.USER_OUTPUT for s in outputs)
        if self.call_spec.in_spec.num_leaves != users or self.call_spec.out_spec.num_leaves != returned:
            raise CaptureError("the tree of its arguments or results has another number of leaves than its graph")
        for node, given_spec in zip(placeholders, inputs, strict=True):
            spec: Any = given_spec
            wanted = node.meta["val"]
            if not isinstance(spec.arg, ConstantArgument) and spec.arg.name != node.name:
                raise CaptureError(f"its signature names the input {node.name} {spec.arg.name!r:.80}")
            if spec.target is None:
                continue
            given = self.constants.get(spec.target, self.state_dict.get(spec.target))
            if given is None or not isinstance(wanted, Described):
                raise CaptureError(f"it holds no tensor {spec.target!r:.80}")
            kinds = [(t.dtype, tuple(t.shape), t.layout) for t in (given, wanted)]
            if kinds[0] != kinds[1]:
                sides = [f"{dtype}{list(shape)} ({layout})".replace("torch.", "") for dtype, shape, layout in kinds]
                raise CaptureError(f"the tensor {spec.target} is {sides[0]}, the graph was made for {sides[1]}")
        for result, returned_spec in zip(results, outputs, strict=True):
            spec = returned_spec
            name = spec.arg.name
            if isinstance(result, torch.fx.Node) != bool(name) or (name and name != result.name):
                raise CaptureError(f"its signature names the result {result!r:.80} {name!r:.80}")

    def check_results(self) -> None:
        """That each node gives what the file says of it; see ir.importer.pt2.consistency."""
        check_results(self.graph_module, self.hints, self.ranges)

    @property
    def symbols(self) -> FileSymbols:
        """The sizes' symbols, none of them named yet."""
        return FileSymbols(self.ranges, self.hints)

    @cached_property
    def hints(self) -> dict[str, int]:
        """The sizes of the example, by torch's symbols."""
        hints: dict[str, int] = {}
        for graph in graphs_of(self.graph_module):
            for value in (n.meta.get("val") for n in graph.nodes):
                for size in value.shape if isinstance(value, Described) else (value,):
                    if isinstance(size, Size) and size.symbol is not None and type(size.hint) is int:
                        hints.setdefault(size.symbol, size.hint)
        return hints

    @property
    def input_names(self) -> list[str]:
        """The names of the arguments that are tensors, or numbers that are not fixed."""
        specs = self.graph_signature.input_specs
        return [s.arg.name for s in specs if s.kind == InputKind.USER_INPUT and getattr(s.arg, "name", None)
                and not isinstance(s.arg, ConstantArgument)]  # fmt: skip

    @property
    def _users(self) -> list[Any]:
        """What each leaf of the arguments is."""
        users = zip(
            (n for n in self.graph.nodes if n.op == "placeholder"), self.graph_signature.input_specs, strict=True
        )
        return [n.meta["val"] for n, s in users if s.kind == InputKind.USER_INPUT]

    @property
    def stand_ins(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that are nested as the model's are, with empty tensors of the same ranks in them."""
        leaves = [torch.empty([0] * len(v.shape)) if isinstance(v, Tensors) else None for v in self._users]
        nested: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self.call_spec.in_spec)
        return nested

    def rebuilt(self) -> tuple[torch.export.ExportedProgram, dict[str, str]]:
        """The program for torch's own functionalisation; see ir.importer.pt2.rebuild."""
        return rebuilt(_document(self._text), self.state_dict, self.constants)

    def install_fakes(self) -> Mapping[Any, Any]:
        """Put fake tensors in the place of the nodes' descriptions, for what runs them; the ranges of their symbols."""
        from ir.importer.pt2.fakes import install

        return install(self.graph_module, self.ranges, self.hints)

    def save(self, path: Path, changed: Mapping[str, torch.Tensor]) -> None:
        """Write the file anew with other contents of some tensors, of the same types."""
        write_with(self._archive, path, changed)

    @cached_property
    def example_inputs(self) -> Any:
        """The arguments that it was captured with, None if it was saved without; see ir.importer.pt2.examples."""
        try:
            return example_inputs(self._archive, self._model, self.call_spec.in_spec, self._users)
        except CaptureError as error:
            raise CaptureError(f"{self.path}: {error}") from error

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        """torch's own module, on the tensors of this program; its results are flat.

        Raises:
            CaptureError: torch would make code of a name or a text in it that is no plain one.
            Exception: torch's own, of any kind.
        """
        try:
            if check_guards:
                check_paths(self._of_torch.example_inputs)
            return self._of_torch.module(check_guards=check_guards)
        except CaptureError as error:
            raise CaptureError(f"{self.path}: {error}") from error

    @cached_property
    def _of_torch(self) -> torch.export.ExportedProgram:
        """torch's own program, which takes the arguments as they are nested here."""
        program, _ = self.rebuilt()
        put_arguments(program, self.call_spec.in_spec, self.argument_names)
        put(program, guards_code=[plain_condition(text) for text in self._guards_code])
        program.example_inputs = self.stand_ins  # for the names of their parts, in guards
        return program


class _Signature:
    """What each input and each result of the graph is in the model."""

    def __init__(self, document: Any) -> None:
        self.input_specs = [self._input(*union(s)) for s in document["input_specs"]]
        self.output_specs = [self._output(*union(s)) for s in document["output_specs"]]
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        self.parameters, self.buffers = ([s.target for s in self.input_specs if s.kind == k] for k in kinds)

    def _input(self, tag: str, value: Any) -> InputSpec:
        if tag == "constant_input":
            argument = ConstantArgument(
                name=text(value["name"]), value=PLAIN[union(value["value"])[0]](*union(value["value"])[1:])
            )
            return InputSpec(InputKind.USER_INPUT, argument, None)
        if tag == "user_input":
            return InputSpec(InputKind.USER_INPUT, _argument(value["arg"]), None)
        if tag not in _INPUTS:
            raise CaptureError(f"an input of kind {tag} has no form in the IR")
        kind, key = _INPUTS[tag]
        persistent = bool(value["persistent"]) if tag == "buffer" else None
        return InputSpec(kind, TensorArgument(name=text(value["arg"]["name"])), text(value[key]), persistent)

    def _output(self, tag: str, value: Any) -> OutputSpec:
        kind, key = _OUTPUTS.get(tag, (None, None))
        if kind is None:
            raise CaptureError(f"an output of kind {tag} has no form in the IR")
        argument = _argument(value["arg"]) if tag == "user_output" else TensorArgument(name=text(value["arg"]["name"]))
        return OutputSpec(kind, argument, None if key is None else text(value[key]))


def _argument(document: Any) -> Any:
    tag, value = union(document)
    if tag == "as_tensor":
        return TensorArgument(name=text(value["name"]))
    if tag in _NUMBERS and union(value)[0] == "as_name":
        return _NUMBERS[tag](name=text(value["as_name"]))
    if tag not in PLAIN:
        raise CaptureError(f"an argument or result of a kind ({tag}) that has no form in the IR")
    return ConstantArgument(name="", value=PLAIN[tag](value))


def _program_text(archive: Archive) -> tuple[bytes, str]:
    """The program's JSON, which is kept as it was checked while the file may change, and the program's name."""
    if not archive.has(PT2_FORMAT):
        raise CaptureError(f"an archive of an older format, which can hold any pickle: {_WAY_OUT}")
    for name in archive.names:
        if name.startswith(PT2_COMPILED):
            raise CaptureError(f"the archive holds compiled code ({name}): {_WAY_OUT}")
    models = [n for n in archive.names if n.startswith(PT2_MODELS) and n.endswith(".json")]
    if len(models) != 1:
        raise CaptureError(f"it holds {len(models)} programs, and one is read")
    return archive.document(models[0]), models[0][len(PT2_MODELS) : -len(".json")]


def _document(data: bytes) -> Any:
    document = json.loads(data)
    if len(document["range_constraints"]) > _MANY_RANGES:  # torch passes over those of sizes that the graph has not
        known = {name.decode() for name in _SYMBOL.findall(data)}
        document["range_constraints"] = {n: r for n, r in document["range_constraints"].items() if n in known}
    version = document["schema_version"]
    if version["major"] != PT2_SCHEMA:
        shown = f"{version['major']!r:.20}.{version.get('minor')!r:.20}"
        raise CaptureError(
            f"its program is of schema version {shown}, {PT2_SCHEMA} is read: save it anew with this torch"
        )
    return document


def _range(name: str, document: Any) -> tuple[int | None, int | None]:
    """The least and the greatest value of a size; None where the file has none."""
    low, high = (None if document[k] is None else integer(document[k]) for k in ("min_val", "max_val"))
    if low is not None and high is not None and low > high:
        raise CaptureError(f"its size {name!r:.80} is at least {low} and at most {high}, which no number is")
    return low, high


def _convention(inner: Any) -> tuple[Any, Sequence[str]]:
    """How arguments and results are nested, and the names of the positional arguments."""
    calls = [c for c in inner["module_call_graph"] if c["fqn"] == ""]
    if not calls or not calls[0].get("signature"):
        raise CaptureError("it does not say how its arguments are nested")
    signature = calls[0]["signature"]
    fields: Mapping[str, Any] = inner.get("treespec_namedtuple_fields") or {}
    in_spec = read_tree(signature["in_spec"], fields, results=False)
    both = in_spec.type is tuple and [c.type for c in in_spec.children()] == [tuple, dict]
    if not both:
        raise CaptureError("its arguments are no positional and keyword arguments")
    out_spec: pytree.TreeSpec = read_tree(signature["out_spec"], fields, results=True)
    names = [identifier(n) for n in signature.get("forward_arg_names") or ()]
    places = {text(f): i for known in fields.values() for i, f in enumerate(known.get("field_names") or ())}
    return SimpleNamespace(in_spec=in_spec, out_spec=out_spec, places=places), names


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Inside of the block every error is a CaptureError that names the file: what it holds may be anything.

    Raises:
        CaptureError: in the place of any other exception.
    """
    try:
        yield
    except CaptureError as error:
        raise CaptureError(f"{path!s:.200}: {error}") from error.__cause__
    except Exception as error:
        raise CaptureError(
            f"{path!s:.200} is not a .pt2 file of torch.export.save, or was damaged: "
            f"{type(error).__name__} ({error!s:.200})"
        ) from error
