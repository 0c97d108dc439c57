"""Target: what a backend is. It names its registry, makes a helper for a graph, writes and runs artifacts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol

from ir.errors import ExportError, OutputError
from ir.files import stem
from ir.graph import Graph
from ir.helper import OpHelper
from ir.registry import Registry

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ir.opened import Opened, Place

    A = TypeVar("A", default=Any)  # the artifact
else:
    from typing import TypeVar

    A = TypeVar("A")

Pass = Callable[[Graph], Graph]


class Runner(Protocol):
    """An artifact loaded into its runtime: torch tensors in, one for each graph input; torch tensors out."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results in the order of `graph.results`."""


class Target(abc.ABC, Generic[A]):
    """A backend with its options. Construct one, or name it: `ir.export(..., target="onnx", opset=18)`."""

    name: ClassVar[str]
    has_complex: ClassVar[bool] = False  # without, complex tensors are taken out before lowering
    has_sparse: ClassVar[bool] = False  # without, a graph with sparse tensors is refused
    has_strides: ClassVar[bool] = False  # without, what `as_strided` reads of an input is as in the example
    has_collectives: ClassVar[bool] = False  # without, a graph that talks to other processes is refused
    has_checks: ClassVar[bool] = False  # without, checks become `ir::require` before lowering (passes/checks.py)
    keeps_state: ClassVar[bool] = False  # without, each run of an artifact starts with the buffers as they were written
    has_ranks: ClassVar[bool] = False  # without, sizes that give another rank than the graph's are refused at run time
    runtimes: ClassVar[tuple[str, ...]] = ()  # the distributions that run an artifact, for reports of their faults
    suffix: ClassVar[str] = ""  # what a file of this target usually ends in; "" for none
    suffixes: ClassVar[tuple[str, ...]] = ()  # what it may end in; none: anything

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

    def notes(self, artifact: A) -> tuple[str, ...]:
        """What a report is to say of this artifact beyond the comparison, one line each."""
        return ()

    @abc.abstractmethod
    def helper(self, graph: Graph) -> OpHelper[Any]:
        """A helper that collects the artifact of one graph."""

    def stored_weights(self, graph: Graph) -> Mapping[str, Any]:
        """Weights by name that an artifact stores as other numbers than the model's own, as torch tensors.

        Verification computes with them on torch's side, too: what it compares is the lowering.
        """
        return {}

    def weight_bytes(self, graph: Graph) -> int:
        """About how many bytes of weights `write` will write, for who waits for it."""
        return sum(value.type.nbytes for value in graph.weights)

    @abc.abstractmethod
    def write(self, artifact: A, path: Path) -> None:
        """Write the artifact; `path` lies in a fresh directory whose files are moved to their place afterwards."""

    def check_path(self, path: Path) -> None:
        """Called before an export to `path` begins, and before it takes its place there.

        Raises:
            OutputError: its name is none for this target, or what lies there is not the target's to replace.
        """
        if self.suffixes and not path.name.lower().endswith(self.suffixes):
            fitting = " or ".join(f"{stem(path.name)}{s}" for s in self.suffixes)
            raise OutputError(f"{path.name:.100} is no name for a file of target {self.name!r}: call it {fitting:.300}")
        if path.is_dir() and not path.is_symlink():
            raise OutputError(f"{path} is a directory and stays as it is: target {self.name!r} writes a file")

    def side_files(self, path: Path) -> Collection[str]:
        """The names of the files beside `path` that go with the artifact there when another takes its place."""
        return ()

    def is_side_file(self, path: Path, name: str) -> bool:
        """Whether a file of this name can be one of the `side_files` of `path`.

        Those of an export whose process was killed are told by it, and no other file is taken away.
        """
        return name.startswith(f"{path.name}.")

    def usage(self, path: Path, graph: Graph) -> str:
        """Two or three lines of Python that run the file at `path` in its runtime; empty where nothing needs saying."""
        return ""

    def reads(self, path: Path) -> bool:
        """Whether `open` takes what lies at the path, as far as its name tells."""
        return bool(self.suffixes) and path.name.lower().endswith(self.suffixes)

    def open(self, path: Path, threads: int | None = None) -> Opened:
        """A file in its runtime, by what it says of itself, without the model that it was made of.

        Raises:
            ExportError: it is no file of this target, or does not say what it takes.
            RuntimeFailure: the runtime does not load it.
        """
        raise ExportError(f"target {self.name!r} opens no files without the model that they were made of")

    def node_names(self, artifact: A) -> Mapping[str, str]:
        """The name of the value that each of the artifact's nodes makes, where its runtime calls nodes otherwise."""
        return {}

    def node_places(self, artifact: A) -> Mapping[str, Place]:
        """Where each of the artifact's nodes comes from, by what it makes, where the artifact itself knows."""
        return {}

    def annotate(self, artifact: A, key: str, text: str) -> None:
        """Keep a text in the artifact, which its file will have too.

        Raises:
            ExportError: files of this target have no place for it.
        """
        raise ExportError(f"a file of target {self.name!r} has no place for {key}")

    def script(self, artifact: A, literal: Callable[[Any], str]) -> tuple[Sequence[str], Sequence[str]]:
        """The modules to import, and lines of Python that define `run(*tensors)`, which gives a list of results.

        They call the runtime alone, without `ir`. `literal` gives an expression for an array of numpy.

        Raises:
            ExportError: this target has no such form.
        """
        raise ExportError(f"target {self.name!r} has no form without ir")

    def packed(self, artifact: A) -> Any:
        """The artifact as something that can be pickled."""
        return artifact

    def unpacked(self, packed: Any, graph: Graph, handlers: Mapping[str, Callable[..., Any]] | None) -> A:
        """The artifact of what `packed` gave, in another process it may be; `handlers` are those of its export."""
        artifact: A = packed
        return artifact

    @abc.abstractmethod
    def runner(self, artifact: A, graph: Graph, path: Path | None = None) -> Runner:
        """Load the artifact into its runtime, from the file at `path` where there is one."""
