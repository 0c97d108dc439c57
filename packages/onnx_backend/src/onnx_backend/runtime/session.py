"""Running a model in onnxruntime."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import onnx_ir

from ir.conditions import SharedSizes, SmallSizes
from ir.errors import ExportError, RefusedError, RuntimeFailure
from ir.files import opened
from ir.graph import Graph
from ir.opened import Timed
from ir.passes.exact_sizes import exact_sizes, with_empty_slices
from ir.types import DType
from onnx_backend.building.dtypes import FLOAT8, FROM_ONNX, TO_ONNX
from onnx_backend.format.comparison import same_content
from onnx_backend.format.data_files import locations
from onnx_backend.format.writer import proto_of
from onnx_backend.runtime.failures import places_of, unmet_condition, where
from onnx_backend.runtime.settings import Settings
from onnx_backend.runtime.timing import timed

LIMIT = 2**31 - 2**20  # what a protobuf message may hold, less room for the graph itself
_RUNS_EMPTY_TOP_K = (1, 31)  # the first version of onnxruntime that does: earlier ones divide by zero (SIGFPE)


class OnnxProgram:
    """A model in onnxruntime, on the CPU if the settings say nothing: torch tensors in and out.

    `folder` is where files that it refers to lie, if not beside it.
    """

    def __init__(
        self,
        artifact: onnx_ir.Model,
        graph: Graph,
        path: Path | None,
        folder: Path | None = None,
        settings: Settings | None = None,
        lowered: Callable[[Graph], onnx_ir.Model] | None = None,
    ) -> None:
        self._artifact, self._lowered = artifact, lowered
        self.graph, self.small_sizes, self._shared = graph, SmallSizes(graph), SharedSizes(graph)
        self._settings, self._places = settings or Settings(), places_of(artifact)
        self._crashes_on_empty = _version() < _RUNS_EMPTY_TOP_K and any(
            node.op_type == "TopK"
            for part in [artifact.graph, *(f.graph for f in artifact.functions.values())]
            for node in onnx_ir.traversal.RecursiveGraphIterator(part)
        )
        self._open = functools.partial(self._opened, artifact, path, folder)
        self._open()
        outlive_fork(self)

    def _shorter(self, inputs: Sequence[Any]) -> str:
        """Which slice is shorter than in the file: those of one that are part of a result have the size 1 there.

        Or which op torch refuses behind such a slice: onnxruntime joins tensors of unlike sizes where one is empty.
        """
        if not self.small_sizes.shorter(inputs):
            return ""
        reason = self._emitted.shorter(inputs)
        if reason and not self._takes_sizes_from_operands:
            return reason
        exact = self._with_empty_slices if reason and self._with_empty_slices else self._emitted
        return exact.refused_behind_slices(inputs)

    @functools.cached_property
    def _emitted(self) -> SmallSizes:
        return SmallSizes(exact_sizes(self.graph), computes=True)

    @functools.cached_property
    def _takes_sizes_from_operands(self) -> bool:
        """Whether the file would be the same with the sizes that hold where those slices are empty."""
        if self._with_empty_slices is None or self._lowered is None:
            return False
        with contextlib.suppress(ExportError):
            return same_content(self._lowered(self._with_empty_slices.graph), self._artifact)
        return False

    @functools.cached_property
    def _with_empty_slices(self) -> SmallSizes | None:
        exact = with_empty_slices(self.graph)
        return None if exact is None else SmallSizes(exact, computes=True)

    def _opened(self, artifact: onnx_ir.Model, path: Path | None, folder: Path | None) -> None:
        source: Any = str(path) if path is not None else model_bytes(artifact)
        try:
            with contextlib.ExitStack() as held:
                options = held.enter_context(self._settings.options())
                if path is not None and folder is not None:
                    if not self._settings.fresh:
                        raise ExportError("external_data='reference' takes session_options= as a dict alone")
                    source = path.read_bytes()
                    _lend(options, held, {name: _either(path.parent, folder, name) for name in locations(path)})
                self.session = self._settings.session(source, options)
        except ExportError:
            raise
        except Exception as error:
            what = f"onnxruntime does not load the model: {error}{self._settings.hint(error)}"
            raise RuntimeFailure(what) from error
        self._source = source
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
        self._owner = os.getpid()

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        self._shared.check(inputs)
        if reason := self.small_sizes.refused(inputs) or self._shorter(inputs):
            raise RefusedError(f"target 'onnx' refuses to run: {reason}")
        if self._crashes_on_empty and any(0 in x.shape for x in inputs):
            raise RefusedError(
                "target 'onnx' refuses to run: before version 1.31 onnxruntime ends the process where TopK is given no "
                "elements, and an input has none; update onnxruntime"
            )
        if os.getpid() != self._owner:  # after a fork
            self._open()
        try:
            return run(self.session, self.inputs, self.outputs, inputs)
        except Exception as error:
            raise self._failure(error, inputs) from error

    def _failure(self, error: Exception, inputs: Sequence[Any]) -> ExportError:
        """What to raise for an error of onnxruntime's: the condition that was not met, or where it was and why."""
        if unmet := unmet_condition(error, self._places):
            return unmet
        told = f"{error}{where(error, self._places)}"
        if reason := self.small_sizes.shorter(inputs):
            return RefusedError(f"target 'onnx' refuses to run: {reason}")
        if reason := self.small_sizes.likely_cause(inputs):
            return RefusedError(f"target 'onnx': {reason}\n{told}")
        return RuntimeFailure(f"onnxruntime failed while it ran the model: {told}")

    def timed(self, inputs: Sequence[Any], runs: int) -> list[Timed]:
        """The time of each of onnxruntime's nodes in one run, the median over `runs`."""

        settings, names = self._settings, (self.inputs, self.outputs)
        with settings.options() as options:
            return timed(lambda o: settings.session(self._source, o), options, lambda s: run(s, *names, inputs), runs)


def run(session: Any, names: Sequence[str], outputs: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
    """One run of a session on torch tensors, without a copy where onnxruntime takes their memory."""
    plain = [t.detach().cpu().resolve_neg().contiguous() for t in tensors]  # kept: onnxruntime holds none that it reads
    feeds = {name: _ort_value(t) for name, t in zip(names, plain, strict=True)}
    return [_tensor(r) for r in session._sess.run_with_ort_values(feeds, outputs, None)]


def _ort_value(t: Any) -> Any:
    """onnxruntime's view of a contiguous tensor, good as long as the tensor is."""
    import torch
    from onnxruntime import OrtValue
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue as COrtValue

    eight = t.dtype.is_floating_point and t.dtype.itemsize == 1
    if t.dtype != torch.bool and not eight and t.numel() and t.dim():  # what onnxruntime's dlpack import takes
        return COrtValue.from_dlpack(t.__dlpack__(), *_is_bool())
    if t.dtype == torch.bfloat16 or eight:  # as their bits, for numpy has no such types
        bits = t.view(torch.uint8 if eight else torch.int16).numpy()
        kind = TO_ONNX[DType[str(t.dtype).removeprefix("torch.")]]
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)._ortvalue
    return OrtValue.ortvalue_from_numpy(t.numpy())._ortvalue


class _Holder(Protocol):
    session: Any


_RUNNING: weakref.WeakSet[_Holder] = weakref.WeakSet()


def outlive_fork(holder: _Holder) -> None:
    """Keep the session of this object from being freed in a forked process."""
    _RUNNING.add(holder)


def _forked() -> None:
    """After a fork: sessions wait for threads that are the parent's, also those that are freed; so none ever is."""
    for program in list(_RUNNING):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(program.session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _either(first: Path, second: Path, name: str) -> Path:
    return first / name if (first / name).exists() else second / name


def _lend(options: Any, held: contextlib.ExitStack, files: Mapping[str, Path]) -> None:
    """Give a session the files that a model refers to; onnxruntime itself looks for all of them in one folder."""
    maps = []
    for place in files.values():
        with opened(place) as file:
            maps.append(held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    options.add_external_initializers_from_files_in_memory(list(files), maps, [len(m) for m in maps])


@functools.cache
def _is_bool() -> tuple[bool, ...]:
    """What onnxruntime's dlpack import takes beside the memory: until 1.31, whether it holds bools."""
    return (False,) if _version() < (1, 32) else ()


def _version() -> tuple[int, ...]:
    """onnxruntime's, (1, 31)."""
    import onnxruntime

    return tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def _tensor(value: Any) -> Any:
    import torch

    if value.element_type() == onnx_ir.DataType.BFLOAT16:
        return torch.utils.dlpack.from_dlpack(value.to_dlpack()).clone()
    dtype = FROM_ONNX.get(onnx_ir.DataType(value.element_type()))
    if dtype in FLOAT8:  # numpy has no such type
        size = math.prod(value.shape())
        held = bytearray((ctypes.c_char * size).from_address(value.data_ptr()).raw if size else b"")
        return torch.tensor(held, dtype=torch.uint8).view(getattr(torch, dtype.name)).reshape(value.shape())
    array = value.numpy()
    if array.dtype.kind == "u":  # of 64 bits it is numpy's ulonglong, which torch does not know
        array = array.view(f"u{array.itemsize}")
    return torch.from_numpy(array.copy() if array.ndim else array)


def weight_bytes(model: onnx_ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def model_bytes(artifact: onnx_ir.Model) -> bytes:
    """The model as one protobuf message.

    Raises:
        RuntimeFailure: it is larger than a message may be.
    """
    if weight_bytes(artifact) > LIMIT:
        raise RuntimeFailure("a model of more than 2 GB runs from its file only: give path=")
    data: bytes = proto_of(artifact).SerializeToString()
    return data
