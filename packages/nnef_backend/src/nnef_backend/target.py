"""Tract and Khronos: the NNEF targets. Options, writing, running."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from ir.errors import RefusedError
from ir.files import stem
from ir.graph import Graph, Value, Weight
from ir.opened import Place
from ir.passes.canonicalize_factories import canonicalize_factories
from ir.passes.collapse_views import collapse_views
from ir.passes.cse import cse
from ir.passes.equal_sizes import equal_sizes
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.fold_constants import fold_constants
from ir.passes.fuse_rms_norm import fuse_rms_norm
from ir.passes.promote import promote
from ir.passes.simplify_arithmetic import simplify_arithmetic
from ir.passes.unread_draws import drop_unread_draws
from ir.registry import Registry
from ir.target import Pass, Runner, Target
from ir.types import DType
from nnef_backend.building import library
from nnef_backend.building.operators import STORED, Operator, through
from nnef_backend.errors import PathError
from nnef_backend.format import archive
from nnef_backend.format import q4_0 as quantise
from nnef_backend.format.document import Document, TensorSource
from nnef_backend.format.grammar import Definition
from nnef_backend.helper import NnefHelper
from nnef_backend.passes.widen_bfloat16 import bfloat16_as_float32, rounded_bfloat16
from nnef_backend.registry import load
from nnef_backend.runtime.child import LIMIT
from nnef_backend.runtime.opened import KhronosFile, TractFile
from nnef_backend.runtime.program import KhronosProgram, NnefProgram
from nnef_backend.runtime.script import script
from nnef_backend.runtime.tract import Limit

OLDEST, NEWEST = (0, 22), (0, 23)
NAMINGS = ("raw", "numeric")
_MODE = re.compile(r"^\s*[A-Za-z_]\w*\s*:")
_ASSERTION = re.compile(r"[\w\s+*/()-]+(?:==|<=|>=|<|>)[\w\s+*/()-]+")


class Tract(Target[Document]):
    """NNEF in the dialect of tract, run in tract in a child process.

    Args:
        version: the version of tract to write for, "0.23" or "0.23.4", which decides the operations that may be
            emitted; None is the installed one.
        compression: "directory", "tar" or "tgz"; None goes by the path's name.
        assertions: facts about the graph's symbols that tract may use, such as "S>=1", or that hold in one mode of
            its use, which stands before them: "tg: S==1".
        naming: "raw" names values as torch.export does and weights by their place in the model; "numeric" counts.
        metadata: True notes behind each operation where it comes from (torch's value and overload, module, source
            line), as a comment; a mapping does, too, and is properties that tract hands out with the model.
        fragments: hand-written fragments for handlers, as .nnef files or as texts; they come before registered ones.
        weights: "q4_0" stores weights of linear and embedding in blocks of 4 bits; None stores what the model holds.
        weights_filter: patterns ("*.mlp.*") or a function of a parameter's name; None is every weight that fits.
        bfloat16: "rounded" holds bfloat16, which tract has not, in float32 and rounds each result as torch does;
            "float32" holds it there alone, which is quicker; None refuses it. The program takes and gives bfloat16.
        allow_narrowing: compute in float32 what tract has no kernel for in float64; refused otherwise.
        load_timeout: seconds that tract may take to load the document; None is no limit, "auto" none but for documents
            with hand-written fragments: as `load` has it.
        run_timeout: seconds for a call.
        memory: bytes that tract may take beyond what it has, for either.

    Raises:
        ValueError: an option that is none of these, or a version that the installed tract does not reach.
        DocumentError: a mistake in a fragment, with file and line.
    """

    name = "nnef"
    runtimes = ("tract",)
    suffix = ".nnef.tgz"
    dialect = "tract"
    tract = True  # its extensions may be used

    def __init__(
        self,
        version: str | None = None,
        *,
        compression: str | None = None,
        assertions: Sequence[str] = (),
        naming: str = "raw",
        metadata: bool | Mapping[str, str | int | float | bool] | None = None,
        fragments: Sequence[library.Source] = (),
        weights: str | None = None,
        weights_filter: quantise.Filter = None,
        bfloat16: str | None = "rounded",
        allow_narrowing: bool = False,
        load_timeout: Limit = "auto",
        run_timeout: float | None = LIMIT,
        memory: Limit = "auto",
    ) -> None:
        self.tract_version = version or installed() or ".".join(map(str, NEWEST))
        self.release = _checked_release(self.tract_version)
        self.compression = _one_of("compression", compression, (None, *archive.KINDS))
        self.assertions = tuple(assertions)
        self.naming = _one_of("naming", naming, NAMINGS)
        self.noted = bool(metadata)
        self.metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
        self.fragments: Mapping[str, Definition] = library.own(fragments)
        self.weights = _one_of("weights", weights, (None, "q4_0"))
        if weights is None and weights_filter is not None:
            raise ValueError("weights_filter chooses among weights that are packed: say weights='q4_0', too")
        self.weights_filter = weights_filter
        self.bfloat16 = _one_of("bfloat16", bfloat16, (None, "float32", "rounded"))
        self.allow_narrowing = allow_narrowing
        self.limits = load_timeout, run_timeout, memory

    def has(self, operator: Operator) -> bool:
        """True if this version of tract has the operation."""
        return not operator.since or operator.since[: len(self.release)] <= self.release

    def lacks(self, operator: Operator) -> str:
        """Why `has` says no."""
        return f"tract has it since {'.'.join(map(str, operator.since))}, this is for {self.tract_version}"

    def work(self, operator: Operator, dtype: DType) -> DType | None:
        """The element type in which an operation on this one is done, None where there is none."""
        narrow = DType.float32 if self.allow_narrowing and dtype is DType.float64 else None
        return through(operator, dtype) or (narrow if narrow in operator.takes else None)

    def extensions_of(self, definition: Definition) -> set[str]:
        """The extensions that a hand-written fragment needs."""
        return library.extensions_of(definition)

    def packs(self, graph: Graph, value: Value, weight: Weight) -> bool:
        """Whether this weight is stored in blocks of 4 bits."""
        return self.weights == "q4_0" and quantise.packs(graph, value, weight, self.weights_filter)

    def weight_bytes(self, graph: Graph) -> int:
        """Of packed weights 18 bytes for 32 numbers."""
        packed = [v for v, w in graph.weights.items() if self.packs(graph, v, w)]
        return super().weight_bytes(graph) - sum(v.type.nbytes - v.type.numbers * 18 // 32 for v in packed)

    def stored_weights(self, graph: Graph) -> dict[str, Any]:
        """What the artifact holds in the place of the model's own weights: the numbers of their blocks."""
        import torch

        tensors = {w.name: w.tensor for w in graph.weights.values()}
        graph = bfloat16_as_float32(graph) if self.bfloat16 else graph
        chosen = {w for v, w in graph.weights.items() if self.packs(graph, v, w)}
        return {w.name: torch.from_numpy(quantise.unpacked(w)).to(tensors[w.name].dtype) for w in chosen}

    def check_assertions(self, symbols: Iterable[str]) -> None:
        """Refuse what tract would not parse, or what speaks of symbols that the graph has not."""
        known = set(symbols)
        for said in self.assertions:
            text = _MODE.sub("", said)
            if not _ASSERTION.fullmatch(text) or not _parses(text):
                raise RefusedError(f"the assertion {text!r} is no comparison of sums and products of symbols (S>=1)")
            unknown = set(re.findall(r"[A-Za-z_]\w*", text)) - known
            if unknown:
                there = f"there are {', '.join(sorted(known))}" if known else "it has none"
                raise RefusedError(f"the assertion {text!r} names {unknown.pop()}, no symbol of this graph: {there}")
            if _degree(text) > 1:
                raise RefusedError(f"the assertion {text!r} multiplies symbols: tract would load the file forever")

    @property
    def registry(self) -> Registry:
        return load()

    @property
    def passes(self) -> Sequence[Pass]:
        first: tuple[Pass, ...] = {None: (), "float32": (bfloat16_as_float32,), "rounded": (rounded_bfloat16,)}[
            self.bfloat16
        ]
        # tract itself leaves products of large constants, such as normed weights, to the run
        first = (*first, drop_unread_draws, equal_sizes, simplify_arithmetic, fold_batch_norm)
        # tract merges equal constants, removes views that do nothing, and loses nodes that are equal only after it
        return (*first, promote, canonicalize_factories, collapse_views, cse, fold_constants, fuse_rms_norm)

    def helper(self, graph: Graph) -> NnefHelper:
        return NnefHelper(self, graph)

    def check_path(self, path: Path) -> None:
        """A directory, a .tar or a .tgz; what looks like a file of another kind is none of them.

        Raises:
            PathError: see ir.Target.
        """
        name = path.name.lower()
        kind = name.rpartition(".")[2] if "." in name[1:] else ""
        if archive.kind_of(path) == "directory" and kind not in ("", "nnef") and not kind.isdigit():
            name = stem(path.name)
            fitting = f"call it {name}.nnef.tgz, {name}.nnef.tar, or {name}.nnef, a directory"
            raise PathError(f"{path.name:.100} is no name for an artifact of target {self.name!r}: {fitting:.400}")
        archive.check_place(path, self.compression)

    def write(self, artifact: Document, path: Path) -> None:
        """Write a directory, a .tar or a .tgz, by the option or by the path's name."""
        archive.write_new(artifact, path, self.compression)

    def packed(self, artifact: Document) -> Document:
        """The document with its tensors, not with what computes them."""
        sources = artifact.tensors.items()
        made: dict[str, TensorSource] = {label: s() if callable(s) else s for label, s in sources}
        return dataclasses.replace(artifact, tensors=made)

    def usage(self, path: Path, graph: Graph) -> str:
        inputs = ", ".join(v.name if v.name.isidentifier() else "..." for v in graph.inputs)
        loader = "tract.nnef().with_tract_extra().with_tract_transformers()"
        return f"import tract\n{loader}.load({str(path)!r}).into_runnable().run([{inputs}])"

    def reads(self, path: Path) -> bool:
        """A directory with a document, a .tar or a .tgz; those of `khronos` too, which tract can run."""
        kind = archive.kind_of(path)
        return kind != "directory" or (path / archive.GRAPH).is_file()

    def node_places(self, artifact: Document) -> dict[str, Place]:
        return {name: o.place for o in artifact.operations if o.place is not None for name in o.results}

    def open(self, path: Path, threads: int | None = None) -> TractFile | KhronosFile:
        return TractFile(path, self.limits)

    def script(self, artifact: Document, literal: Callable[[Any], str]) -> tuple[Sequence[str], Sequence[str]]:
        return script(artifact, literal)

    def runner(self, artifact: Document, graph: Graph, path: Path | None = None) -> Runner:
        return NnefProgram(artifact, graph, path, self.limits)


def _parses(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _degree(x: str | ast.AST) -> int:
    """How many symbols an assertion multiplies with each other."""
    match ast.parse(x.strip(), mode="eval").body if isinstance(x, str) else x:
        case ast.Name():
            return 1
        case ast.BinOp(left, ast.Mult(), right):
            return _degree(left) + _degree(right)
        case node:
            return max(map(_degree, ast.iter_child_nodes(node)), default=0)


def installed() -> str | None:
    """The version of the installed tract, None where there is none."""
    try:
        return packages.version("tract")
    except packages.PackageNotFoundError:
        return None


def _checked_release(version: str) -> tuple[int, ...]:
    """The numbers of a version that the table of operations knows and the installed tract reaches."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?([.-]?\w+)?", version):
        raise ValueError(f"version={version!r} is no version of tract: write '0.23' or '0.23.9'")
    release = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if release[:2] < OLDEST:
        raise ValueError(f"version={version!r}: what is written here starts at tract {'.'.join(map(str, OLDEST))}")
    there = installed()
    if there is not None:
        have = tuple(int(n) for n in re.findall(r"\d+", there)[:3])
        if release > have[: len(release)]:
            raise ValueError(f"version={version!r} is newer than the installed tract {there}, which could not run it")
    return release


def _one_of(option: str, value: Any, allowed: Sequence[Any]) -> Any:
    if value not in allowed:
        raise ValueError(f"{option}={value!r} is none of {', '.join(map(repr, allowed))}")
    return value


class Khronos(Tract):
    """NNEF 1.0.5 with standard operations only, run in nnef-tools' interpreter; sizes must be static.

    Args:
        compression: as for `Tract`.
        naming: as for `Tract`.
        fragments: as for `Tract`. The standard has no assertions, metadata or packed weights.
    """

    name = "khronos"
    dialect = "standard NNEF"
    tract = False

    def __init__(
        self,
        *,
        compression: str | None = None,
        naming: str = "raw",
        fragments: Sequence[library.Source] = (),
    ) -> None:
        super().__init__(compression=compression, naming=naming, fragments=fragments, bfloat16=None)

    def has(self, operator: Operator) -> bool:
        """True for NNEF's own operations."""
        return not operator.extension

    def lacks(self, operator: Operator) -> str:
        """Why `has` says no, and the extension that could."""
        return f"standard NNEF lacks it; tract's extension {operator.extension.removeprefix('tract_registry ')} has it"

    def work(self, operator: Operator, dtype: DType) -> DType | None:
        """The element type itself: the standard moves everything about, computes with scalars, and has no casts."""
        fits = dtype is DType.float32 or operator.takes in (STORED, {DType.bool})
        return dtype if fits and dtype in operator.takes else None

    def extensions_of(self, definition: Definition) -> set[str]:
        """The standard's own extensions, without which its parser reads no fragments."""
        extra = {"KHR_enable_operator_expressions"} if definition.uses_operators else set()
        return {"KHR_enable_fragment_definitions", *definition.extensions, *extra}

    def script(self, artifact: Document, literal: Callable[[Any], str]) -> tuple[Sequence[str], Sequence[str]]:
        return Target.script(self, artifact, literal)

    def reads(self, path: Path) -> bool:
        """Nothing unasked: `nnef` runs the standard's documents as well."""
        return False

    def open(self, path: Path, threads: int | None = None) -> KhronosFile:
        return KhronosFile(path)

    def runner(self, artifact: Document, graph: Graph, path: Path | None = None) -> Runner:
        return KhronosProgram(artifact, graph, path)
