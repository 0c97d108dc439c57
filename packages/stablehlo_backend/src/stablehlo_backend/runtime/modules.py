"""Modules in the child process: loading, one run, and any file of ours by what it declares."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ir.errors import ExportError, RuntimeFailure
from ir.opened import Place, Port
from ir.runtime.binding import Binding
from ir.temporary import TemporaryFolder
from ir.types import DType
from stablehlo_backend.format.module import archive_of
from stablehlo_backend.runtime.child import shared
from stablehlo_backend.runtime.compiler import compiled
from stablehlo_backend.runtime.failures import unmet_condition

_NUMBERS = itertools.count()  # of programs, by which the child process knows them
_OF_SHORT = {d.short: d for d in DType}
Loaded: TypeAlias = "tuple[int, str, str | None]"


def loaded(path: Path, folder: Path, cpu: str, flags: Sequence[str]) -> Loaded:
    """The module of a file, compiled into `folder` where it is text: its number, its file and its archive."""
    archive = archive_of(path)
    _check_plain(path, archive)
    if path.suffix.lower() != ".vmfb":
        module = folder / "model.vmfb"
        module.write_bytes(compiled(path.read_text(), cpu, flags))
        path = module
    made = next(_NUMBERS), str(path.absolute()), None if archive is None else str(archive.absolute())
    shared().request("load", *made)
    return made


def _check_plain(*paths: Path | None) -> None:
    """Raises ExportError for what the compiler or the child process would wait for, or read without end."""
    for path in paths:
        if path is not None and path.exists() and not path.is_file():
            raise ExportError(f"{path}: it is no plain file")


def run(module: Loaded, inputs: Sequence[Any], takes: Sequence[DType], gives: Sequence[DType]) -> list[Any]:
    """One run on torch tensors of these types.

    Raises:
        RefusedError: a condition that the module asserts does not hold.
        RuntimeFailure: IREE failed otherwise.
    """
    import torch

    given = [(_array(t), d.name) for t, d in zip(inputs, takes, strict=True)]
    kinds = ["uint16" if d is DType.bfloat16 else d.name for d in gives]
    try:
        made = shared().request("run", *module, given, kinds)
    except RuntimeFailure as error:
        raise unmet_condition(error) or error from error
    found = [torch.from_numpy(r) for r in made]
    return [t.view(torch.bfloat16) if d is DType.bfloat16 else t for t, d in zip(found, gives, strict=True)]


def _array(tensor: Any) -> np.ndarray:
    """A torch tensor as an array that numpy has a type for: bfloat16 by its bits."""
    import torch

    tensor = tensor.detach().cpu().resolve_neg().contiguous()
    return np.asarray((tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy())


class HloFile:
    """A file of ours, whose main function notes its inputs and outputs: torch tensors in and out."""

    threads = 1  # the device is local-sync
    places: Mapping[str, Place] = {}  # the file does not tell

    def __init__(self, path: Path, cpu: str, flags: Sequence[str]) -> None:
        self._folder = TemporaryFolder("stablehlo")
        self.path = path
        self._module = loaded(path, self._folder.path, cpu, flags)
        said = shared().request("describe", *self._module)
        if not {"inputs", "outputs"} <= said.keys():
            raise ExportError(f"{path}: its main function does not note its inputs and outputs, as ours do")
        self.inputs, self.outputs = _ports(said["inputs"]), _ports(said["outputs"])
        self._bound = Binding(self.inputs)

    @property
    def operators(self) -> Mapping[str, int]:
        """The operations of a text; a compiled module has none of StableHLO any more."""
        if self.path.suffix.lower() == ".vmfb":
            return {}
        return Counter(re.findall(r"\bstablehlo\.\w+", self.path.read_text()))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results in the file's order."""
        return run(self._module, self._bound(inputs), [p.dtype for p in self.inputs], [p.dtype for p in self.outputs])


def _ports(text: str) -> list[Port]:
    """Ports of "x: f32[b, 4], y: i64[]"."""
    found = re.findall(r"([^\s,:][^:]*): (\w+)\[([^\]]*)\]", text)
    sizes = [[s.strip() for s in inner.split(",") if s.strip()] for *_, inner in found]
    shapes = [tuple(int(s) if s.isdigit() else s for s in part) for part in sizes]
    return [Port(name, _OF_SHORT[short], shape) for (name, short, _), shape in zip(found, shapes, strict=True)]
