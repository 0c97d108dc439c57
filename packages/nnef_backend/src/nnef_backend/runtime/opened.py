"""Any NNEF artifact in tract or in the Khronos interpreter, by what it declares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ir.errors import ExportError
from ir.helper import numpy_dtype
from ir.opened import Place, Port, Timed
from ir.runtime.binding import Binding
from ir.types import DType
from nnef_backend.errors import TractError
from nnef_backend.format import unpack
from nnef_backend.format.document import without_comments
from nnef_backend.format.places import places
from nnef_backend.format.signature import Fact
from nnef_backend.runtime import khronos, tract
from nnef_backend.runtime.failures import told_of_file

_OF_TRACT = {d.short: d for d in DType} | {"tdim": DType.int64}
_OF_STANDARD = {"scalar": DType.float32, "integer": DType.int64, "logical": DType.bool}


class TractFile:
    """A document in tract's child process: torch tensors in and out."""

    threads = 1

    def __init__(self, path: Path, limits: tract.Limits) -> None:
        timeout, called, memory = limits
        self.program = tract.load(path, timeout=timeout, memory=memory)
        self.program.timeout = called
        facts = self.program.input_facts, self.program.output_facts
        names = self.program.input_names, self.program.output_names
        self.inputs, self.outputs = ([_port(*p) for p in zip(n, f, strict=True)] for n, f in zip(names, facts))
        self._bound = Binding(self.inputs)

    @property
    def operators(self) -> Mapping[str, int]:
        """Operations and fragments, as the document calls them."""
        return _operators(self.program.path)

    @property
    def places(self) -> Mapping[str, Place]:
        """What the comments of the document say, which `metadata=` writes."""
        return places(unpack.checked(self.program.path))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs in the file's order."""
        arrays = _arrays(self._bound(inputs))
        try:
            return _tensors(self.program.run(arrays))
        except TractError as error:
            error.args = (f"{error}{told_of_file(error, self.places)}",)
            raise

    def close(self) -> None:
        """Let tract forget the model."""
        self.program.close()

    def timed(self, inputs: Sequence[Any], runs: int) -> list[Timed]:
        """The time of each of tract's nodes in one run; tract chooses the number of runs."""
        return self.program.profile(_arrays(self._bound(inputs)))


class KhronosFile:
    """A document in nnef-tools' interpreter, which reads it anew at every run: torch tensors in and out."""

    threads = None

    def __init__(self, path: Path) -> None:
        graph = khronos.check(path)
        self.path = path
        names = graph.inputs, graph.outputs
        self.inputs, self.outputs = ([_standard_port(graph, n) for n in part] for part in names)
        self._bound = Binding(self.inputs)

    @property
    def operators(self) -> Mapping[str, int]:
        """Operations and fragments, as the document calls them."""
        return _operators(self.path)

    @property
    def places(self) -> Mapping[str, Place]:
        """What the comments of the document say."""
        return places(unpack.checked(self.path))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs in the file's order."""
        given = dict(zip([p.name for p in self.inputs], _arrays(self._bound(inputs)), strict=True))
        made = khronos.run(self.path, given)
        return _tensors([np.asarray(made[p.name], numpy_dtype(p.dtype)) for p in self.outputs])


def _operators(path: Path) -> Mapping[str, int]:
    body = without_comments(unpack.checked(path)).partition("{")[2]
    return Counter(re.findall(r"= *([A-Za-z_]\w*) *(?:<\w+>)? *\(", body))


def _port(name: str, fact: Fact) -> Port:
    if fact.dtype not in _OF_TRACT:
        raise ExportError(f"{name} is a tensor of {fact.dtype}, which torch has not")
    return Port(name, _OF_TRACT[fact.dtype], fact.shape)


def _standard_port(graph: Any, name: str) -> Port:
    tensor = graph.tensors[name]
    return Port(str(name), _OF_STANDARD[tensor.dtype], tuple(tensor.shape))


def _arrays(tensors: Sequence[Any]) -> list[Any]:
    return [np.asarray(t.detach().cpu().resolve_neg().numpy(), order="C") for t in tensors]


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    import torch

    return [torch.from_numpy(np.array(a)) for a in arrays]
