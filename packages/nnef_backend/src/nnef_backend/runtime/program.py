"""Documents in their runtimes, with torch tensors in and out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ir.conditions import SmallSizes
from ir.errors import ExportError, RefusedError, RuntimeFailure
from ir.graph import Graph
from ir.helper import numpy_dtype
from ir.opened import Timed
from ir.temporary import TemporaryFolder, sweep
from ir.types import DType
from nnef_backend.errors import TractTimeout
from nnef_backend.format import archive
from nnef_backend.format.document import Document
from nnef_backend.format.grammar import Definition
from nnef_backend.runtime import tract as runtime
from nnef_backend.runtime.child import LIMIT
from nnef_backend.runtime.failures import Failures
from nnef_backend.runtime.tract import Limits

_KIND = "nnef"  # of temporary folders


class NnefProgram:
    """A document in tract: torch tensors in and out; `limits` are those of `Tract`."""

    def __init__(self, artifact: Document, graph: Graph, path: Path | None, limits: Limits) -> None:
        self.narrow = [v.type.dtype is DType.bfloat16 for v in graph.results.values()]
        self.graph, self.small_sizes = graph, SmallSizes(graph)
        self._failures = Failures(artifact)
        self._open = functools.partial(self._opened, artifact, path, limits)
        self._open()

    def _opened(self, artifact: Document, path: Path | None, limits: Limits) -> None:
        self._folder, path = _on_disk(artifact, path)
        timeout, called, memory = limits
        if not any(isinstance(f, Definition) for f in artifact.fragments):  # nothing but what we wrote
            timeout, memory = (given if given != "auto" else none for given, none in ((timeout, LIMIT), (memory, None)))
        try:
            self.program = runtime.load(path, timeout=timeout, memory=memory)
            self.program.timeout = called
        except RuntimeError as error:
            if reason := self._failures.unlike_sizes(error):
                raise RefusedError(f"target 'nnef' refuses the sizes of this model: {reason}") from error
            raise RuntimeFailure(f"tract does not load the document: {error}") from error

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        import torch

        if reason := self.small_sizes.refused(inputs) or self.small_sizes.shorter(inputs):
            raise RefusedError(f"target 'nnef' refuses to run: {reason}")
        if self._folder is not None and self._folder.is_inherited:  # by a fork; it goes when its own process ends
            self._open()
        try:
            results = self.program.run([_array(t) for t in inputs])
        except RuntimeError as error:
            raise self._failure(error, inputs) from error
        made = [torch.from_numpy(np.array(r)) for r in results]
        return [t.bfloat16() if narrow else t for t, narrow in zip(made, self.narrow, strict=True)]

    def _failure(self, error: RuntimeError, inputs: Sequence[Any]) -> ExportError:
        """What to raise for an error of tract's: what it was made to look at, or where it was and why that may be."""
        if requirement := self._failures.unmet_requirement(error):
            return RefusedError(f"target 'nnef' stopped the run: {requirement}")
        where = self._failures.places(error)
        if not isinstance(error, TractTimeout) and (reason := self.small_sizes.likely_cause(inputs)):
            return RefusedError(f"target 'nnef': {reason}\n{error}{where}")
        return RuntimeFailure(f"tract failed while it ran the document: {error}{where}")

    def timed(self, inputs: Sequence[Any], runs: int) -> list[Timed]:
        """The time of each of tract's nodes in one run; tract chooses the number of runs."""
        return self.program.profile([_array(t) for t in inputs])

    def close(self) -> None:
        """Let the child process forget the document."""
        self.program.close()


class KhronosProgram:
    """A document in nnef-tools' interpreter: torch tensors in and out."""

    def __init__(self, artifact: Document, graph: Graph, path: Path | None) -> None:
        self._folder, self.path = _on_disk(artifact, path)
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        types = [v.type.dtype for v in graph.results.values()]
        self.dtypes = [numpy_dtype(t.real if t.is_complex else t) for t in types]  # complex: as two real numbers

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        import torch

        from nnef_backend.runtime import khronos  # the interpreter brings torch

        arrays = dict(zip(self.inputs, (_array(t) for t in inputs), strict=True))
        try:
            results = khronos.run(self.path, arrays)
        except RuntimeError as error:
            raise RuntimeFailure(f"nnef-tools' interpreter failed on the document: {error}") from error
        return [
            torch.from_numpy(np.array(results[name], dtype=dtype))
            for name, dtype in zip(self.outputs, self.dtypes, strict=True)
        ]


def _array(tensor: Any) -> np.ndarray:
    """A torch tensor as tract takes it; bfloat16 in float32."""
    tensor = tensor.detach().cpu().resolve_neg()
    return np.asarray((tensor if str(tensor.dtype) != "torch.bfloat16" else tensor.float()).numpy(), order="C")


def _on_disk(artifact: Document, path: Path | None) -> tuple[TemporaryFolder | None, Path]:
    """The document's own path, or a temporary folder and the path in it."""
    if path is not None:
        sweep(_KIND)
        return None, path
    folder = TemporaryFolder(_KIND)
    archive.write_new(artifact, folder.path / "model")
    return folder, folder.path / "model"
