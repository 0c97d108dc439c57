"""Target: what a backend is. It names its registry, makes a helper for a graph, writes and runs artifacts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ir.graph import Graph
from ir.helper import OpHelper
from ir.registry import Registry

Pass = Callable[[Graph], Graph]


class Runner(Protocol):
    """An artifact loaded into its runtime: torch tensors in, one for each graph input; torch tensors out."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results in the order of `graph.results`."""


class Target(abc.ABC):
    """A backend with its options. Construct one, or name it: `ir.export(..., target="onnx", opset=18)`."""

    name: ClassVar[str]
    has_complex: ClassVar[bool] = False  # without, complex tensors are taken out before lowering
    has_sparse: ClassVar[bool] = False  # without, a graph with sparse tensors is refused
    has_checks: ClassVar[bool] = False  # without, what the model asserts of its data is left out
    suffix: ClassVar[str] = ""  # what a file of this target usually ends in; "" for none

    @property
    @abc.abstractmethod
    def registry(self) -> Registry:
        """The handlers of this target, the builtin ones loaded."""

    @property
    def version(self) -> int | None:
        """The version that `since_version` is compared with (an opset), None where there is none."""
        return None

    @property
    def passes(self) -> Sequence[Pass]:
        """Graph -> Graph, run in this order before lowering, on the graph and on every body."""
        return ()

    @abc.abstractmethod
    def helper(self, graph: Graph) -> OpHelper[Any]:
        """A helper that collects the artifact of one graph."""

    def stored_weights(self, graph: Graph) -> Mapping[str, Any]:
        """Weights by name that an artifact stores as other numbers than the model's own, as torch tensors.

        Verification computes with them on torch's side, too: what it compares is the lowering.
        """
        return {}

    @abc.abstractmethod
    def write(self, artifact: Any, path: Path) -> None:
        """Write the artifact; `path` lies in a fresh directory whose files are moved to their place afterwards."""

    def settle(self, path: Path) -> None:  # noqa: B027
        """Called when the artifact stands at `path`: take away side files of the one that it replaced."""

    @abc.abstractmethod
    def runner(self, artifact: Any, graph: Graph, path: Path | None = None) -> Runner:
        """Load the artifact into its runtime, from the file at `path` where there is one."""
