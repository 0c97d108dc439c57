"""Any .onnx file in onnxruntime, by what it declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir

from ir.errors import ExportError, RuntimeFailure
from ir.opened import Place, Port, Timed
from ir.runtime.binding import Binding
from onnx_backend.building.dtypes import FROM_SCHEMA
from onnx_backend.building.names import place
from onnx_backend.format.data_files import check_data, has_data
from onnx_backend.runtime import foreign
from onnx_backend.runtime.failures import unmet_condition, where
from onnx_backend.runtime.session import outlive_fork, run
from onnx_backend.runtime.settings import Settings
from onnx_backend.runtime.timing import inlined, timed


class OnnxFile:
    """A session, on the CPU if the settings say nothing: torch tensors in and out."""

    def __init__(self, path: Path, threads: int | None = None, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        foreign.check(path, self._settings.libraries, self._settings.weights_entry)
        if not self._settings.weights_entry and has_data(path):
            check_data(path)
        try:
            with self._settings.options() as options:
                if threads is not None:
                    options.intra_op_num_threads = threads
                self.session = self._settings.session(str(path), options)
        except Exception as error:
            hint = self._settings.hint(error)
            raise RuntimeFailure(f"onnxruntime does not load {path}: {error}{hint}") from error
        outlive_fork(self)
        self.path, self.threads = path, threads
        self.inputs = [_port(v, path) for v in self.session.get_inputs()]
        self.outputs = [_port(v, path) for v in self.session.get_outputs()]
        self._bound = Binding(self.inputs)

    @property
    def operators(self) -> Mapping[str, int]:
        """Operators, those of functions and sub-graphs too."""
        return Counter(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in _nodes(self._model()))

    @property
    def places(self) -> Mapping[str, Place]:
        """What the nodes' metadata say, which `metadata=True` wrote."""
        model = self._model()
        found = {n.name: place(n.metadata_props) for n in _nodes(model) if n.name and n.metadata_props}
        calls = {name: (n, place(n.metadata_props)) for name, n in inlined(model).items() if n.metadata_props}
        return found | {name: p for name, (n, p) in calls.items() if p.op.startswith(f"{n.domain}::{n.op_type}")}

    def _model(self) -> onnx_ir.Model:
        return onnx_ir.from_proto(onnx.load(self.path, load_external_data=False))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs in the file's order."""
        tensors = self._bound(inputs)
        try:
            return run(self.session, [p.name for p in self.inputs], [p.name for p in self.outputs], tensors)
        except Exception as error:
            places = self.places if self.path.exists() else {}
            failure = RuntimeFailure(f"onnxruntime failed while it ran the model: {error}{where(error, places)}")
            raise unmet_condition(error, places) or failure from error

    def timed(self, inputs: Sequence[Any], runs: int) -> list[Timed]:
        """The time of each of onnxruntime's nodes in one run, the median over `runs`."""
        names = [p.name for p in self.inputs], [p.name for p in self.outputs]
        settings, tensors = self._settings, self._bound(inputs)
        with settings.options() as options:
            if self.threads is not None:
                options.intra_op_num_threads = self.threads
            return timed(
                lambda o: settings.session(str(self.path), o), options, lambda s: run(s, *names, tensors), runs
            )


def _nodes(model: onnx_ir.Model) -> list[onnx_ir.Node]:
    graphs: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
    return [n for g in graphs for n in onnx_ir.traversal.RecursiveGraphIterator(g)]


def _port(value: Any, path: Path) -> Port:
    dtype = FROM_SCHEMA.get(value.type)
    if dtype is None:
        raise ExportError(f"{path}: {value.name} is a {value.type}, and only tensors of numbers are run here")
    sizes = [s if s is not None else f"{value.name}_{axis}" for axis, s in enumerate(value.shape)]
    return Port(value.name, dtype, tuple(s if isinstance(s, int) else str(s) for s in sizes))
