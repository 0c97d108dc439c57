"""The eager target: its options, and what saving and running mean for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch

from eager_backend import devices, state
from eager_backend.autotune import choose
from eager_backend.helper import EagerHelper
from eager_backend.passes import MEASURED, PASSES
from eager_backend.program import Program
from eager_backend.registry import load
from ir.errors import ExportError
from ir.graph import Graph
from ir.lower import lower
from ir.registry import Registry
from ir.target import Runner, Target


def _floating(dtype: Any) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    raise ValueError(f"dtype={dtype!r}: a floating element type of torch, for float32 to become")


class Eager(Target):
    """Straight-line Python over torch's kernels.

    Args:
        device: where the weights go, and where the program makes new tensors.
        dtype: None keeps what was captured. Otherwise float32 becomes this: in weights and buffers once, in inputs at
            every call (which may come in either), and where the model names float32 itself (a cast, a factory); so
            results come out in it. Every other element type stays as it is.
        optimize: True for every pass that pays everywhere, or the names of those wanted
            (`eager_backend.passes.PASSES`); False, or none, gives the very kernels of the captured program in the same
            order, bit for bit.
        autotune: measure at load which of these passes, and of those that pay only here and there
            (`eager_backend.passes.MEASURED`), pay for the example inputs, and drop the others.

    Raises:
        ValueError: there is no such pass or device, or `dtype` is no floating element type.
        TypeError: `optimize` is neither a bool nor names.
    """

    name: ClassVar[str] = "eager"
    has_complex: ClassVar[bool] = True
    has_checks = True
    has_sparse: ClassVar[bool] = True
    suffix: ClassVar[str] = ".pt2"

    def __init__(
        self,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        optimize: bool | Collection[str] = True,
        autotune: bool = False,
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

    @property
    def registry(self) -> Registry:
        return load()

    def helper(self, graph: Graph) -> EagerHelper:
        """A helper for one graph.

        Raises:
            ExportError: torch finds no such device.
        """
        devices.require(self.device)
        return EagerHelper(self, graph)

    def tuned(self, graph: Graph, registry: Registry) -> Program:
        """The program with those of the passes that pay on this machine, for the example inputs."""

        def build(passes: Collection[str]) -> Program:
            program: Program = lower(graph, Eager(self.device, self.dtype, passes), registry)
            return program

        return build(choose(graph, self.chosen, build))

    def write(self, artifact: Program, path: Path) -> None:
        """Save the captured program: an eager program is compiled from it in a moment, and it holds no code.

        What `load_state_dict` or a call put into the program's state is in the file.
        """
        program = getattr(artifact.graph.context, "program", None)
        if program is None:
            raise ExportError("this graph was not captured from a model, and only a captured one can be saved")
        torch.export.save(state.with_state(program, artifact.state_dict()), path)

    def runner(self, artifact: Any, graph: Graph, path: Path | None = None) -> Runner:
        runner: Program = artifact
        return runner
