"""The eager target: its options, and what saving and running mean for it."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch

from eager_backend.building import devices
from eager_backend.helper import EagerHelper
from eager_backend.inspection.script import script
from eager_backend.passes import FOR_CUDA, GRAPH_PASSES, MEASURED, PASSES
from eager_backend.passes.autotune import choose
from eager_backend.registry import load
from eager_backend.runtime import state
from eager_backend.runtime.opened import EagerFile
from eager_backend.runtime.program import Program
from ir.errors import ExportError
from ir.graph import Graph
from ir.importer.capture import capture
from ir.importer.pt2.dimension_names import packed
from ir.importer.pt2.program import SavedProgram
from ir.importer.pt2.serializable import serializable
from ir.lower import lower
from ir.passes.own_state import with_own_state
from ir.progress import wrote
from ir.registry import Registry
from ir.target import Pass, Runner, Target


def _floating(dtype: Any) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    raise ValueError(f"dtype={dtype!r}: a floating element type of torch, for float32 to become")


class Eager(Target[Program]):
    """Straight-line Python over torch's kernels.

    Args:
        device: where the weights go, and where the program makes new tensors.
        dtype: None keeps what was captured. Otherwise float32 becomes this: in weights and buffers once, in inputs at
            every call (which may come in either), and where the model names float32 itself (a cast, a factory); so
            results come out in it. Every other element type stays as it is. What reads none of it (a range), and what
            torch has no kernel for in it, is computed in float32 and then cast. A float beyond its range becomes its
            largest number.
        optimize: True for every pass that pays everywhere, or the names of those wanted
            (`eager_backend.passes.PASSES`); False, or none, gives the very kernels of the captured program in the same
            order, bit for bit.
        autotune: measure at load which of these passes, and of those that pay only here and there
            (`eager_backend.passes.MEASURED`, with those for CUDA), pay for the example inputs, and drop the others;
            the report says which.
        sizes: dynamic dimensions by name, and the size that passes choose kernels and layouts for where it is not the
            example's (`{"batch": 1}`); the program runs at every other size too.

    Raises:
        ValueError: there is no such pass or device, or `dtype` is no floating element type.
        TypeError: `optimize` is neither a bool nor names.
    """

    name: ClassVar[str] = "eager"
    has_complex: ClassVar[bool] = True
    has_checks = True
    keeps_state: ClassVar[bool] = True
    has_ranks = True
    has_sparse: ClassVar[bool] = True
    has_strides: ClassVar[bool] = True
    has_collectives: ClassVar[bool] = True
    suffix: ClassVar[str] = ".pt2"
    suffixes: ClassVar[tuple[str, ...]] = (".pt2",)

    def __init__(
        self,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        optimize: bool | Collection[str] = True,
        autotune: bool = False,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.device = devices.chosen(device)
        self.dtype = _floating(dtype)
        usual = [name for name in PASSES if autotune or name not in MEASURED]
        if isinstance(optimize, bool):
            wanted: Collection[str] = usual if optimize else ()
        elif isinstance(optimize, Iterable):
            wanted = [optimize] if isinstance(optimize, str) else list(optimize)
        else:
            raise TypeError(f"optimize={optimize!r}: True, False, or the names of passes")
        unknown = set(wanted) - set(PASSES)
        if unknown:
            raise ValueError(f"no pass {', '.join(sorted(unknown))}; there are {', '.join(PASSES)}")
        self.chosen = tuple(name for name in PASSES if name in wanted)
        self.autotune = autotune
        self.sizes = dict(sizes or {})

    @property
    def registry(self) -> Registry:
        return load()

    @property
    def passes(self) -> Sequence[Pass]:
        found = [GRAPH_PASSES[name] for name in self.chosen if name in GRAPH_PASSES]
        return tuple(p.run for p in found if p.pays(self.device))

    def helper(self, graph: Graph) -> EagerHelper:
        """A helper for one graph.

        Raises:
            ExportError: torch finds no such device, or the graph has no dynamic dimension of a name in `sizes`.
        """
        devices.require(self.device)
        for name in set(self.sizes) - set(graph.sources):
            known = ", ".join(sorted(graph.sources)) or "none"
            raise ExportError(f"sizes={self.sizes}: the model has no dynamic dimension {name!r}; it has {known}")
        return EagerHelper(self, graph)

    def notes(self, artifact: Program) -> tuple[str, ...]:
        """Which passes were chosen by measurement, and which of those for a GPU are off for want of one."""
        if self.autotune:
            used = artifact.plan.target.chosen  # type: ignore[attr-defined]
            dropped = ", ".join(n for n in self.chosen if n not in used) or "none"
            return (f"autotune on {self.device}: passes {', '.join(used) or 'none'}; dropped: {dropped}",)
        off = [n for n in FOR_CUDA if n not in self.chosen]
        if self.device.type != "cuda" or not off:
            return ()
        return (f"not measured on {self.device}, so off: {', '.join(off)} (autotune=True measures them)",)

    def tuned(self, graph: Graph, registry: Registry) -> Program:
        """The program with those of the passes that pay on this machine, for the example inputs."""

        def build(passes: Collection[str]) -> Program:
            program: Program = lower(graph, Eager(self.device, self.dtype, passes, sizes=self.sizes), registry)
            return program

        return build(choose(graph, self.chosen, build))

    def write(self, artifact: Program, path: Path) -> None:
        """Save the captured program: an eager program is compiled from it in a moment, and it holds no code.

        What `load_state_dict` or a call put into the program's state is in the file.
        """
        program = getattr(artifact.graph.context, "program", None)
        if program is None:
            raise ExportError("this graph was not captured from a model, and only a captured one can be saved")
        changed = state.changes(program, artifact.state_dict())
        if isinstance(program, SavedProgram):
            program.save(path, changed)
            return
        if not program.graph_signature.output_specs:  # torch.export.save takes them apart, and there are none
            raise ExportError("torch.export.save writes no program without results: return a tensor from the model")
        with path.open("wb", buffering=0) as file:
            disk = _Disk(file)
            context = artifact.graph.context
            own = {**packed(context.bodies.symbols.names), **context.records}
            now = serializable(state.with_changes(program, changed))
            torch.export.save(now, disk, extra_files=own)  # type: ignore[arg-type]
        if disk.refused is not None:
            raise disk.refused

    def packed(self, artifact: Program) -> dict[str, torch.Tensor]:
        """What the program's state has become; the program itself is compiled from the graph again."""
        own = {w.tensor.data_ptr() for w in artifact.graph.weights.values() if w.tensor is not None}
        return {n: t for n, t in artifact.state_dict().items() if t.layout is torch.strided and t.data_ptr() not in own}

    def unpacked(
        self, packed: dict[str, torch.Tensor], graph: Graph, handlers: Mapping[str, Callable[..., Any]] | None
    ) -> Program:
        program: Program = lower(graph, self, self.registry.with_handlers(handlers))
        if packed:
            program.load_state_dict(packed, strict=False)
        return program

    def usage(self, path: Path, graph: Graph) -> str:
        keys = []
        if graph.structure.in_spec is not None:
            args, kwargs = graph.structure.in_spec.children()
            keys = [*[""] * args.num_children, *(f"{k}=" for k in kwargs.context or ())]
        plain = len(keys) == len(graph.inputs) and all(v.name.isidentifier() for v in graph.inputs)
        given = ", ".join(f"{key}{v.name}" for key, v in zip(keys, graph.inputs, strict=True)) if plain else "..."
        return f"import ir\nir.export({str(path)!r}, target={self.name!r})({given})"

    def open(self, path: Path, threads: int | None = None) -> EagerFile:
        return EagerFile(lower(with_own_state(capture(path)), self), threads)

    def script(self, artifact: Program, literal: Callable[[Any], str]) -> tuple[list[str], list[str]]:
        return script(artifact, literal)

    def runner(self, artifact: Any, graph: Graph, path: Path | None = None) -> Runner:
        runner: Program = artifact
        return runner


class _Disk(io.RawIOBase):
    """A file for torch's writer, in which an error ends the process: it is kept here, and raised afterwards."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.refused: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """torch goes back to the beginning, once all is written."""
        return offset

    def write(self, data: Any) -> int:
        """All of it, or nothing any more once the disk has refused."""
        count = memoryview(data).nbytes
        if self.refused is None:
            try:
                rest = memoryview(data).cast("B")
                while rest:  # one unbuffered write moves 2 GB at most
                    rest = rest[self.file.write(rest) :]
                wrote(count)
            except OSError as error:
                self.refused = error
        return count
