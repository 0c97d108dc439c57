"""A saved program: what ir.importer.capture reads of an ExportedProgram, out of a file and without running it."""

from __future__ import annotations

import contextlib
import json
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
from ir.importer import caches
from ir.importer.pt2.archive import Archive
from ir.importer.pt2.consistency import check_results
from ir.importer.pt2.dimension_names import dimension_names
from ir.importer.pt2.examples import example_inputs
from ir.importer.pt2.expressions import Size
from ir.importer.pt2.graphs import FileGraph, read_graph
from ir.importer.pt2.rebuild import rebuilt
from ir.importer.pt2.recorded_conditions import recorded_in
from ir.importer.pt2.symbols import FileSymbols
from ir.importer.pt2.trees import read_tree
from ir.importer.pt2.values import PLAIN, identifier, integer, text, union
from ir.importer.pt2.weights import Payloads, check_byte_order
from ir.importer.pt2.write import write_with
from ir.importer.tensor_meta import Described, Tensors, graphs_of
from ir.importer.torch_api import PT2_COMPILED, PT2_CONSTANTS, PT2_FORMAT, PT2_MODELS, PT2_SCHEMA, PT2_WEIGHTS, pytree

_LARGEST_JSON = 2**28
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

    `module` is torch's own: it loads the file with torch.export.load, which runs what is in it.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises CaptureError: it is missing, damaged, of another version, or holds no program."""
        self.path = path
        archive = Archive(path)
        document = _document(archive)
        inner = document["graph_module"]
        model = next(n for n in archive.names if n.startswith(PT2_MODELS))[len(PT2_MODELS) : -len(".json")]
        self._model = model
        check_byte_order(archive)
        self.state_dict = Payloads(archive, PT2_WEIGHTS, model).tensors
        self.constants = Payloads(archive, PT2_CONSTANTS, model).tensors
        self.graph_signature = _Signature(inner["signature"])
        constants = [getattr(s.arg, "name", None) for s in self.graph_signature.input_specs]
        self.graph_module: FileGraph = read_graph(inner["graph"], constants)
        self.graph = self.graph_module.graph
        self.call_spec, self.argument_names = _convention(inner)
        self.ranges = {
            text(name): tuple(None if r[k] is None else integer(r[k]) for k in ("min_val", "max_val"))
            for name, r in document["range_constraints"].items()
        }
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
            if (given.dtype, tuple(given.shape)) != (wanted.dtype, wanted.shape):
                sides = [f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in (given, wanted)]
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
        return rebuilt(_document(self._archive), self.state_dict, self.constants)

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

    # -- what only torch's own loader has ------------------------------------------------------------------------------

    @cached_property
    def trusted(self) -> torch.export.ExportedProgram:
        """The same program by torch.export.load, which runs code of the file's if there is some.

        Raises:
            CaptureError: torch refuses the file.
        """
        try:
            with torch.serialization.safe_globals(caches.classes()):
                return torch.export.load(self.path)
        except Exception as error:
            raise CaptureError(f"{self.path} is not a file that torch.export.load accepts: {error}") from error

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        return self.trusted.module(check_guards=check_guards)


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


def _document(archive: Archive) -> Any:
    """The program's JSON."""
    if PT2_FORMAT not in archive.names:
        raise CaptureError(f"an archive of an older format, which can hold any pickle: {_WAY_OUT}")
    for name in archive.names:
        if name.startswith(PT2_COMPILED):
            raise CaptureError(f"the archive holds compiled code ({name}): {_WAY_OUT}")
    models = [n for n in archive.names if n.startswith(PT2_MODELS) and n.endswith(".json")]
    if len(models) != 1:
        raise CaptureError(f"it holds {len(models)} programs, and one is read")
    if archive.size(models[0]) > _LARGEST_JSON:
        raise CaptureError(f"its program is larger than {_LARGEST_JSON} bytes")
    document = json.loads(bytes(archive.view(models[0])))
    version = document["schema_version"]
    if version["major"] != PT2_SCHEMA:
        shown = f"{version['major']!r:.20}.{version.get('minor')!r:.20}"
        raise CaptureError(
            f"its program is of schema version {shown}, {PT2_SCHEMA} is read: save it anew with this torch"
        )
    return document


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
        raise CaptureError(f"{path}: {error}") from error.__cause__
    except Exception as error:
        raise CaptureError(
            f"{path} is not a .pt2 file of torch.export.save, or was damaged: {type(error).__name__} ({error!s:.200})"
        ) from error
