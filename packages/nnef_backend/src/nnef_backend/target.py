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
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.promote import promote
from ir.registry import Registry
from ir.target import Pass, Target
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
    """

    name = "nnef"
    suffix = ".nnef.tgz"

    dialect = "tract"

    def __init__(self, version: str | None = None, *, assertions: Sequence[str] = ()) -> None:
        self.tract_version = version or installed()
        self.assertions = tuple(assertions)

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

    def runner(self, artifact: Document, graph: Graph, path: Path | None = None) -> NnefProgram:
        return NnefProgram(artifact, path)


def installed() -> str:
    """The version of the installed tract, or the newest that the table of operations knows."""
    try:
        return metadata.version("tract")
    except metadata.PackageNotFoundError:
        return "0.23"


class NnefProgram:
    """A document in tract: torch tensors in and out."""

    def __init__(self, artifact: Document, path: Path | None) -> None:
        self._folder = None
        if path is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nnef-")
            path = archive.write(artifact, Path(self._folder.name) / "model")
        try:
            self.program = runtime.load(path)
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


class Khronos(Tract):
    """Standard NNEF 1.0.5 only, run in nnef-tools' interpreter."""

    name = "khronos"
    dialect = "standard NNEF"

    def has(self, operator: Operator) -> bool:
        """True for NNEF's own operations."""
        return not operator.extension
