"""Onnx: the target. Options, writing, running in onnxruntime."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx.defs
import onnx_ir

from ir.conditions import SINCE, Slices, sizes_of, small
from ir.errors import RefusedError, RuntimeFailure
from ir.graph import Graph
from ir.passes.canonicalize_factories import canonicalize_factories
from ir.passes.collapse_casts import collapse_casts
from ir.passes.collapse_views import collapse_views
from ir.passes.cse import cse
from ir.passes.exact_sizes import exact_sizes
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.fold_constants import fold_constants, fold_small_constants
from ir.passes.fuse_rms_norm import fuse_rms_norm
from ir.passes.fuse_rotary import fuse_rotary
from ir.passes.outline import outline
from ir.passes.promote import promote
from ir.passes.simplify_arithmetic import simplify_arithmetic
from ir.registry import Registry
from ir.target import Pass, Target
from onnx_backend.data_files import locations, new_name, own
from onnx_backend.helper import OnnxHelper
from onnx_backend.passes.unsigned_activations import unsigned_activations
from onnx_backend.registry import load
from onnx_backend.safetensors import find
from onnx_backend.schema import op_schema
from onnx_backend.torchlib import table_handlers
from onnx_backend.writer import INSIDE, write_data, write_model

LOWEST_OPSET = 13
LIMIT = 2**31 - 2**20  # what a protobuf message may hold, less room for the graph itself
# An Expand that a condition fails at, as onnxruntime's message names it.
_NEEDED = re.compile(r"Name:'[^']* needs ([^']*)'")
# Where onnxruntime would rather be fast: products with 4- and 8-bit weights in float32, not in int8 (level 4, its
# default); and on x86 without VNNI, int8 weights as uint8, whose products do not saturate in 16 bits.
EXACT = {"session.qdq_matmulnbits_accuracy_level": "1", "session.x64quantprecision": "1"}


class Onnx(Target):
    """ONNX, written with onnx_ir and run in onnxruntime.

    Args:
        opset: the opset to write, 13 to the newest that the installed onnx knows.
        external_data: weights in a file `<name>.data` beside the model: True, False, or None for "past 2 GB";
            "reference" points to those that lie in .safetensors files in the model's folder and copies none of them.
        functions: keep nn.Modules as model-local functions, one for each class and signature; or the names of the
            classes to keep.
        metadata: note at each node where it comes from (namespace, source line, torch's overload), and the type of
            each value in between.
        allow_narrowing: compute in float32 what onnxruntime has no kernel for in float64; otherwise it is written in
            ops that have one, or refused.
        custom_opsets: the version to import of each domain beside the standard one, {"custom": 2}; 1 by default.
        custom_translation_table: as torch.onnx.export's: operators (torch.ops.ns.op.default) and the onnxscript
            function of each, or a list of them; before everything else, as `handlers` are.

    Raises:
        ValueError: the opset is out of range.
        TypeError: it is no whole number.
    """

    name = "onnx"
    suffix = ".onnx"
    suffixes = (".onnx",)

    def __init__(
        self,
        opset: int = 20,
        *,
        external_data: bool | Literal["reference"] | None = None,
        functions: bool | Collection[str] = False,
        metadata: bool = False,
        allow_narrowing: bool = False,
        custom_opsets: Mapping[str, int] | None = None,
        custom_translation_table: Mapping[Any, Any] | None = None,
    ) -> None:
        newest = onnx.defs.onnx_opset_version()
        if not isinstance(opset, int):
            raise TypeError(f"opset={opset!r:.40}: give a whole number, {LOWEST_OPSET} to {newest}")
        if not LOWEST_OPSET <= opset <= newest:
            raise ValueError(f"opset {opset}: {LOWEST_OPSET} to {newest} can be written")
        self.opset = opset
        self.external_data = external_data
        self.functions = functions
        self.metadata = metadata
        self.allow_narrowing = allow_narrowing
        self.custom_opsets = dict(custom_opsets or {})
        self._table = table_handlers(custom_translation_table or {})

    @property
    def registry(self) -> Registry:
        return load().with_handlers(self._table)

    @property
    def version(self) -> int:
        return self.opset

    @property
    def passes(self) -> Sequence[Pass]:
        # onnxruntime merges equal nodes of different modules itself, once it has put the functions in place
        last = self._outline if self.functions else cse
        rest = (collapse_casts, collapse_views, unsigned_activations, last)
        # below the opset that has RotaryEmbedding the written-out form stays as the model has it
        fused = (fuse_rms_norm, fuse_rotary) if op_schema("RotaryEmbedding", self.opset) else (fuse_rms_norm,)
        typed = (promote, canonicalize_factories)
        if self.keeps_weights:
            return (exact_sizes, simplify_arithmetic, *fused, *typed, fold_small_constants, *rest)
        # before weights are computed too, so that equal weights are stored once
        folded = (fold_constants,) if self.functions else (cse, fold_constants)
        return (exact_sizes, simplify_arithmetic, fold_batch_norm, *fused, *typed, *folded, *rest)

    @property
    def keeps_weights(self) -> bool:
        """True if weights are to be written as the model has them, none computed from others."""
        return self.external_data == "reference"

    def _outline(self, graph: Graph) -> Graph:
        return outline(graph, None if self.functions is True else self.functions or ())

    def helper(self, graph: Graph) -> OnnxHelper:
        return OnnxHelper(self, graph)

    def write(self, artifact: onnx_ir.Model, path: Path) -> None:
        """Write the model; its weights go into `<name>.data` where they do not fit or where asked for.

        Raises:
            ExportError: external_data="reference", and nothing lies there or is no file of its own.
            OSError: the disk refused.
        """
        tensors: list[Any] = [v.const_value for v in artifact.graph.initializers.values()]
        folder = path.parent.parent  # where the staged files go
        places = find(tensors, folder) if self.external_data == "reference" else {}
        rest = [t for t in tensors if t.name not in places]
        if self.external_data is True or (sum(t.nbytes for t in rest) > LIMIT and self.external_data is not False):
            large = [t for t in rest if t.nbytes >= INSIDE]
            places |= write_data(large, path.parent / new_name(folder, path.name)) if large else {}
        write_model(artifact, path, places)

    def side_files(self, path: Path) -> set[str]:
        """The data files of the model at `path`, but for those that another model of the folder refers to."""
        return own(path)

    def packed(self, artifact: onnx_ir.Model) -> bytes:
        return _bytes(artifact)

    def unpacked(self, packed: bytes, graph: Graph, handlers: Any) -> onnx_ir.Model:
        return onnx_ir.from_proto(onnx.load_model_from_string(packed))

    def runner(self, artifact: onnx_ir.Model, graph: Graph, path: Path | None = None) -> OnnxProgram:
        refers = path is not None and self.external_data == "reference"
        staged = refers and path is not None and not any(path.parent.glob("*.safetensors"))
        return OnnxProgram(artifact, graph, path, path.parent.parent if staged and path is not None else None)


class OnnxProgram:
    """A model in onnxruntime on the CPU: torch tensors in and out.

    `folder` is where files that it refers to lie, if not beside it.
    """

    def __init__(self, artifact: onnx_ir.Model, graph: Graph, path: Path | None, folder: Path | None = None) -> None:
        self.graph, self.slices = graph, Slices(graph)
        self._open = functools.partial(self._opened, artifact, path, folder)
        self._open()
        _RUNNING.add(self)

    def _opened(self, artifact: onnx_ir.Model, path: Path | None, folder: Path | None) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        for key, value in EXACT.items():
            options.add_session_config_entry(key, value)
        try:
            source: Any = str(path) if path is not None else _bytes(artifact)
            with contextlib.ExitStack() as held:
                if path is not None and folder is not None:
                    source = path.read_bytes()
                    _lend(options, held, {name: _either(path.parent, folder, name) for name in locations(path)})
                self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise RuntimeFailure(f"onnxruntime does not load the model: {error}") from error
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
        self._owner = os.getpid()

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results in the order of the graph's outputs and updates."""
        import torch
        from onnxruntime import OrtValue
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue as COrtValue

        if os.getpid() != self._owner:  # after a fork
            self._open()
        feeds = {}
        for name, tensor in zip(self.inputs, inputs, strict=True):
            t = tensor.detach().cpu().resolve_neg().contiguous()
            direct = t.dtype != torch.bool and t.numel() and t.dim()  # what onnxruntime's dlpack import takes
            if t.dtype == torch.bfloat16 and not direct:
                bits = t.view(torch.int16).numpy()
                feeds[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_ir.DataType.BFLOAT16)._ortvalue
            elif not direct:
                feeds[name] = OrtValue.ortvalue_from_numpy(t.numpy())._ortvalue
            else:
                feeds[name] = COrtValue.from_dlpack(t.__dlpack__(), *_is_bool())
        try:
            results = self.session._sess.run_with_ort_values(feeds, self.outputs, None)
        except Exception as error:
            if needed := _NEEDED.search(str(error)):
                way = f"the program needs {needed[1]}; capture the model anew for other sizes"
                raise RefusedError(f"target 'onnx' refuses to run: {way}") from error
            if shorter := self.slices.shorter(inputs):
                raise RefusedError(f"target 'onnx' refuses to run: {shorter}") from error
            if at := small(sizes_of(self.graph, inputs)):
                raise RefusedError(f"target 'onnx': a step may not hold at {at}, {SINCE}\n{error}") from error
            raise RuntimeFailure(f"onnxruntime failed while it ran the model: {error}") from error
        return [_tensor(r) for r in results]


_RUNNING: weakref.WeakSet[OnnxProgram] = weakref.WeakSet()


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
        with place.open("rb") as file:
            maps.append(held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    options.add_external_initializers_from_files_in_memory(list(files), maps, [len(m) for m in maps])


@functools.cache
def _is_bool() -> tuple[bool, ...]:
    """What onnxruntime's dlpack import takes beside the memory: until 1.31, whether it holds bools."""
    import onnxruntime

    return (False,) if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32) else ()


def _tensor(value: Any) -> Any:
    import torch

    if value.element_type() == onnx_ir.DataType.BFLOAT16:
        return torch.utils.dlpack.from_dlpack(value.to_dlpack()).clone()
    return torch.from_numpy(value.numpy().copy() if value.numpy().ndim else value.numpy())


def weight_bytes(model: onnx_ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def _bytes(artifact: onnx_ir.Model) -> bytes:
    if weight_bytes(artifact) > LIMIT:
        raise RuntimeFailure("a model of more than 2 GB runs from its file only: give path=")
    return onnx_ir.to_proto(artifact).SerializeToString()
