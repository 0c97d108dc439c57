"""Tract and Khronos: the NNEF targets. Options, writing, running."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ir.errors import RuntimeFailure
from ir.graph import Graph
from ir.helper import numpy_dtype
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.promote import promote
from ir.registry import Registry
from ir.target import Pass, Runner, Target
from nnef_backend import archive, runtime
from nnef_backend.document import Document
from nnef_backend.helper import NnefHelper
from nnef_backend.operators import Operator
from nnef_backend.registry import load


class Tract(Target):
    """NNEF in the dialect of tract, run in tract in a child process.

    Args:
        version: the version of tract to write for; None is the installed one.
        assertions: facts about symbols that tract may use, such as "S>=1".
        load_timeout: seconds that tract may take to load the document; None is no limit.
    """

    name = "nnef"
    suffix = ".nnef.tgz"
    dialect = "tract"
    tract = True  # its extensions may be used

    def __init__(
        self, version: str | None = None, *, assertions: Sequence[str] = (), load_timeout: float | None = 600.0
    ) -> None:
        self.tract_version = version or installed()
        self.assertions = tuple(assertions)
        self.load_timeout = load_timeout

    def has(self, operator: Operator) -> bool:
        """True if this version of tract has the operation."""
        release = tuple(int(n) for n in re.findall(r"\d+", self.tract_version)[:3])
        return not operator.since or operator.since[: len(release)] <= release

    @property
    def registry(self) -> Registry:
        return load()

    @property
    def passes(self) -> Sequence[Pass]:
        return (fold_batch_norm, promote)

    def helper(self, graph: Graph) -> NnefHelper:
        return NnefHelper(self, graph)

    def write(self, artifact: Document, path: Path) -> None:
        """Write a directory, or a .tar or .tgz by the path's name."""
        archive.write(artifact, path)

    def runner(self, artifact: Document, graph: Graph, path: Path | None = None) -> Runner:
        return NnefProgram(artifact, path, self.load_timeout)


def installed() -> str:
    """The version of the installed tract, or the newest that the table of operations knows."""
    try:
        return metadata.version("tract")
    except metadata.PackageNotFoundError:
        return "0.23"


class NnefProgram:
    """A document in tract: torch tensors in and out."""

    def __init__(self, artifact: Document, path: Path | None, timeout: float | None = None) -> None:
        self._folder, path = _on_disk(artifact, path)
        try:
            self.program = runtime.load(path, timeout=timeout)
            self.program.timeout = None  # a call may take as long as it takes
        except RuntimeError as error:
            raise RuntimeFailure(f"tract does not load the document: {error}") from error

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        import torch

        try:
            results = self.program.run([np.asarray(t.detach().cpu().numpy(), order="C") for t in inputs])
        except RuntimeError as error:
            raise RuntimeFailure(f"tract failed while it ran the document: {error}") from error
        return [torch.from_numpy(np.array(r)) for r in results]

    def close(self) -> None:
        """Let the child process forget the document."""
        self.program.close()


def _on_disk(artifact: Document, path: Path | None) -> tuple[Any, Path]:
    """The document's own path, or a temporary folder and the path in it."""
    if path is not None:
        return None, path
    folder = tempfile.TemporaryDirectory(prefix="nnef-")
    return folder, archive.write(artifact, Path(folder.name) / "model")


class Khronos(Tract):
    """NNEF 1.0.5 with standard operations only, run in nnef-tools' interpreter; sizes must be static."""

    name = "khronos"
    dialect = "standard NNEF"
    tract = False

    def __init__(self) -> None:
        super().__init__()

    def has(self, operator: Operator) -> bool:
        """True for NNEF's own operations."""
        return not operator.extension

    def runner(self, artifact: Document, graph: Graph, path: Path | None = None) -> Runner:
        return KhronosProgram(artifact, graph, path)


class KhronosProgram:
    """A document in nnef-tools' interpreter: torch tensors in and out."""

    def __init__(self, artifact: Document, graph: Graph, path: Path | None) -> None:
        self._folder, self.path = _on_disk(artifact, path)
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self.types = [v.type for v in graph.results.values()]

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        import torch

        from nnef_backend import khronos  # the interpreter brings torch

        arrays = dict(zip(self.inputs, (t.detach().cpu().numpy() for t in inputs), strict=True))
        try:
            results = khronos.run(self.path, arrays)
        except RuntimeError as error:
            raise RuntimeFailure(f"nnef-tools' interpreter failed on the document: {error}") from error
        made = [np.asarray(results[name]) for name in self.outputs]
        return [
            torch.from_numpy(np.array(a, dtype=numpy_dtype(t.dtype))) for a, t in zip(made, self.types, strict=True)
        ]
