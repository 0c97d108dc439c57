"""StableHLO: the target's options, what writing and running mean for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ir.conditions import SINCE, SmallSizes, sizes_of, small
from ir.errors import RefusedError, RuntimeFailure
from ir.graph import Graph
from ir.passes.canonicalize_factories import canonicalize_factories
from ir.passes.equal_sizes import hold_equal_sizes
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.fold_constants import fold_constants
from ir.passes.promote import promote
from ir.passes.simplify_arithmetic import simplify_arithmetic
from ir.registry import Registry
from ir.target import Pass, Runner, Target
from ir.temporary import TemporaryFolder
from stablehlo_backend.format.module import SUFFIXES, Module, is_archive_name, own_archive
from stablehlo_backend.helper import HloHelper
from stablehlo_backend.registry import load
from stablehlo_backend.runtime.child import shared
from stablehlo_backend.runtime.compiler import compiled
from stablehlo_backend.runtime.modules import HloFile, loaded, run


class StableHLO(Target[Module]):
    """A StableHLO module, compiled and run by IREE on the CPU, in a child process.

    Args:
        cpu: what `--iree-llvmcpu-target-cpu` takes: "host" is for this machine and its like, "generic" for all of its
            architecture, where IREE lacks some functions of float64.
        flags: more flags for iree-compile.
    """

    name = "stablehlo"
    suffix = ".mlir"
    suffixes = SUFFIXES

    def __init__(self, cpu: str = "host", flags: Sequence[str] = ()) -> None:
        self.cpu = cpu
        self.flags = tuple(flags)

    @property
    def registry(self) -> Registry:
        return load()

    @property
    def passes(self) -> Sequence[Pass]:
        return (hold_equal_sizes, simplify_arithmetic, fold_batch_norm, promote, canonicalize_factories, fold_constants)

    def helper(self, graph: Graph) -> HloHelper:
        return HloHelper(self, graph)

    def side_files(self, path: Path) -> Collection[str]:
        return own_archive(path)

    def is_side_file(self, path: Path, name: str) -> bool:
        return is_archive_name(name, path)

    def write(self, artifact: Module, path: Path) -> None:
        """Write the text (.mlir) or what IREE compiles it to (.vmfb), and the tensors beside it (.irpa)."""
        text = artifact.write_archive(path)
        if path.suffix.lower() == ".vmfb":
            path.write_bytes(compiled(text, self.cpu, self.flags))
        else:
            path.write_text(text)

    def packed(self, artifact: Module) -> Module:
        """The module with its tensors, not with what computes them."""
        return dataclasses.replace(artifact, tensors={name: artifact.array(name) for name in artifact.tensors})

    def open(self, path: Path, threads: int | None = None) -> HloFile:
        return HloFile(path, self.cpu, self.flags)

    def runner(self, artifact: Module, graph: Graph, path: Path | None = None) -> Runner:
        return HloProgram(self, artifact, graph, path)


class HloProgram:
    """A compiled module: torch tensors in and out."""

    def __init__(self, target: StableHLO, artifact: Module, graph: Graph, path: Path | None) -> None:
        self.graph, self.artifact, self.small_sizes = graph, artifact, SmallSizes(graph)
        self._folder = TemporaryFolder("stablehlo")
        if path is None:
            path = self._folder.path / "model.vmfb"
            target.write(artifact, path)
        self._module = loaded(path, self._folder.path, target.cpu, target.flags)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        if reason := self.small_sizes.refused(inputs) or self.small_sizes.shorter(inputs):
            raise RefusedError(f"target 'stablehlo' refuses to run: {reason}")
        try:
            return run(self._module, inputs, self.artifact.takes, self.artifact.gives)
        except RuntimeFailure as error:
            if at := small(sizes_of(self.graph, inputs)):
                raise RefusedError(f"target 'stablehlo': a step may not hold at {at}, {SINCE}\n{error}") from error
            raise

    def close(self) -> None:
        """Let the child process forget the module."""
        shared().request("drop", self._module[0])
