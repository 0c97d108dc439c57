"""Onnx: the target. Options, writing, running in onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx.defs
import onnx_ir

from ir.errors import ExportError
from ir.files import size_text
from ir.graph import Graph
from ir.lower import lower
from ir.passes.canonicalize_factories import canonicalize_factories
from ir.passes.collapse_casts import collapse_casts
from ir.passes.collapse_views import collapse_views
from ir.passes.contract import contract
from ir.passes.cse import cse
from ir.passes.equal_sizes import hold_equal_sizes
from ir.passes.exact_sizes import exact_sizes
from ir.passes.fold_batch_norm import fold_batch_norm
from ir.passes.fold_constants import fold_constants, fold_small_constants
from ir.passes.fuse_rms_norm import fuse_rms_norm
from ir.passes.fuse_rotary import fuse_rotary
from ir.passes.group_heads import group_heads
from ir.passes.outline import check_classes, outline
from ir.passes.promote import promote
from ir.passes.simplify_arithmetic import simplify_arithmetic
from ir.passes.unread_draws import drop_unread_draws
from ir.registry import Registry
from ir.stored import Shards, linked_shards, shards_in
from ir.target import Pass, Target
from onnx_backend.building.devices import Devices
from onnx_backend.building.schema import op_schema
from onnx_backend.compat.torchlib import table_handlers
from onnx_backend.format.data_files import is_name, new_names, own
from onnx_backend.format.safetensors import find
from onnx_backend.format.writer import INSIDE, proto_of, shards, write_data, write_model
from onnx_backend.helper import OnnxHelper
from onnx_backend.passes.unsigned_activations import unsigned_activations
from onnx_backend.registry import load
from onnx_backend.runtime.opened import OnnxFile
from onnx_backend.runtime.script import script
from onnx_backend.runtime.session import LIMIT, OnnxProgram, model_bytes
from onnx_backend.runtime.settings import Options, Provider, Settings, with_weights
from onnx_backend.runtime.timing import values

LOWEST_OPSET = 13


class Onnx(Target[onnx_ir.Model]):
    """ONNX, written with onnx_ir and run in onnxruntime.

    Args:
        opset: the opset to write, 13 to the newest that the installed onnx knows.
        external_data: weights in a file `<name>.data` beside the model: True, False, or None for "past 2 GB";
            "reference" points to those that lie in .safetensors files in the model's folder and copies none of them.
        weights_folder: with "reference", the folder of these files where it is another than the model's. All other
            weights lie in the model then, and a session finds them by the config entry
            "session.model_external_initializers_file_folder_path", which the program's own sessions have.
        max_shard_size: bytes of such a file; what is more goes into `<name>.1.data` and so on. A tensor that is larger
            has a file of its own. Each file's SHA-1 stands in the model (`onnx_backend.check_data` compares them).
        functions: keep nn.Modules as model-local functions, one for each class and signature; or the names of the
            classes to keep.
        metadata: note at each node where it comes from (namespace, source line, torch's value and overload), and the
            type of each value in between.
        allow_narrowing: compute in float32 what onnxruntime has no kernel for in float64; otherwise it is written in
            ops that have one, or refused.
        devices: the stages and cut weights of a model that runs on several devices, as annotations (IR version 11).
        custom_opsets: the version to import of each domain beside the standard one, {"custom": 2}; 1 by default.
        custom_translation_table: as torch.onnx.export's: operators (torch.ops.ns.op.default) and the onnxscript
            function of each, or a list of them; before everything else, as `handlers` are.
        session_options: of the sessions in which the program is run and verified: an onnxruntime.SessionOptions, or a
            dict of its attributes and config entries, {"intra_op_num_threads": 1, "session.use_env_allocators": "1"}.
        providers: onnxruntime's execution providers in their order, ["CUDAExecutionProvider"], each with its options
            if it needs some, ("CUDAExecutionProvider", {"device_id": 1}); the CPU by default.
        custom_op_libraries: shared libraries with kernels of custom ops, for these sessions; the file does not name
            them.

    Raises:
        ValueError: the opset is out of range, or onnxruntime has no option or provider of that name here.
        TypeError: it is no whole number.
        ExportError: a library is not there, or onnxruntime does not load it.
    """

    name = "onnx"
    runtimes = ("onnxruntime", "onnx")
    suffix = ".onnx"
    suffixes = (".onnx",)

    def __init__(
        self,
        opset: int = 20,
        *,
        external_data: bool | Literal["reference"] | None = None,
        weights_folder: str | os.PathLike[str] | None = None,
        max_shard_size: int | None = None,
        functions: bool | Collection[str] = False,
        metadata: bool = False,
        allow_narrowing: bool = False,
        devices: Devices | None = None,
        custom_opsets: Mapping[str, int] | None = None,
        custom_translation_table: Mapping[Any, Any] | None = None,
        session_options: Options = None,
        providers: str | Sequence[Provider] | None = None,
        custom_op_libraries: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        newest = onnx.defs.onnx_opset_version()
        if not isinstance(opset, int):
            raise TypeError(f"opset={opset!r:.40}: give a whole number, {LOWEST_OPSET} to {newest}")
        if not LOWEST_OPSET <= opset <= newest:
            raise ValueError(f"opset {opset}: {LOWEST_OPSET} to {newest} can be written")
        self.opset = opset
        if max_shard_size is not None and max_shard_size < 1:
            raise ValueError(f"max_shard_size={max_shard_size}: bytes, at least 1")
        if external_data not in (True, False, None, "reference"):
            raise ValueError(f"external_data={external_data!r:.40}: True, False, None or 'reference'")
        self.external_data, self.max_shard_size = external_data, max_shard_size
        self.functions = (functions,) if isinstance(functions, str) else functions
        self.metadata = metadata
        self.allow_narrowing = allow_narrowing
        self.devices = devices
        self.custom_opsets = dict(custom_opsets or {})
        self._table = table_handlers(custom_translation_table or {})
        self.weights = _shards(weights_folder, external_data)
        if self.weights is not None:
            session_options = with_weights(session_options, self.weights.folder)
        self.settings = Settings(session_options, providers, custom_op_libraries)

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
        rotary = (fuse_rotary,) if op_schema("RotaryEmbedding", self.opset) else ()
        fused = (group_heads, fuse_rms_norm, *rotary)
        typed = (promote, canonicalize_factories)
        start = (drop_unread_draws, hold_equal_sizes, exact_sizes, simplify_arithmetic)
        if self.keeps_weights:
            return (*start, *fused, *typed, fold_small_constants, *rest)
        # before weights are computed too, so that equal weights are stored once
        folded = (fold_constants,) if self.functions else (cse, fold_constants)
        return (*start, fold_batch_norm, *fused, *typed, *folded, *rest)

    @property
    def keeps_weights(self) -> bool:
        """True if weights are to be written as the model has them, none computed from others."""
        return self.external_data == "reference"

    @contract(undoes=("flat", "without equal nodes"))
    def _outline(self, graph: Graph) -> Graph:
        if self.functions is True:
            return outline(graph)
        if graph.context is not None:  # no body of an op, which has no modules
            check_classes(graph, self.functions or ())
        return outline(graph, self.functions or ())

    def helper(self, graph: Graph) -> OnnxHelper:
        return OnnxHelper(self, graph)

    def write(self, artifact: onnx_ir.Model, path: Path) -> None:
        """Write the model; its weights go into `<name>.data` where they do not fit or where asked for.

        Raises:
            ExportError: external_data="reference", and nothing lies there or is no file of its own; or weights that
                have to lie in the model take 2 GB.
            OSError: the disk refused.
        """
        tensors: list[Any] = [v.const_value for v in artifact.graph.initializers.values()]
        folder = path.parent.parent  # where the staged files go
        places = find(tensors, self.weights or shards_in(folder)) if self.external_data == "reference" else {}
        rest = [t for t in tensors if t.name not in places]
        size = sum(t.nbytes for t in rest)
        if self.weights is not None and size > LIMIT:
            raise ExportError(
                f"external_data='reference': {size_text(size)} of weights lie in no file of {self.weights.folder} byte "
                "for byte, and a model holds 2 GB: use external_data=True"
            )
        outside = self.external_data is True or (self.max_shard_size is not None and self.external_data is None)
        if outside or (size > LIMIT and self.external_data is not False):
            large = [t for t in rest if t.nbytes >= INSIDE]
            for name, group in zip(new_names(folder, path.name), shards(large, self.max_shard_size)):
                places |= write_data(group, path.parent / name)
        write_model(artifact, path, places)

    def weight_bytes(self, graph: Graph) -> int:
        return 0 if self.external_data == "reference" else super().weight_bytes(graph)

    def side_files(self, path: Path) -> set[str]:
        """The data files of the model at `path`, but for those that another model of the folder refers to."""
        return own(path)

    def is_side_file(self, path: Path, name: str) -> bool:
        return is_name(name, path)

    def packed(self, artifact: onnx_ir.Model) -> bytes:
        return model_bytes(artifact)

    def proto(self, artifact: onnx_ir.Model) -> onnx.ModelProto:
        """The model as onnx has it."""
        made: onnx.ModelProto = proto_of(artifact)
        return made

    def unpacked(self, packed: bytes, graph: Graph, handlers: Any) -> onnx_ir.Model:
        return onnx_ir.from_proto(onnx.load_model_from_string(packed))

    def usage(self, path: Path, graph: Graph) -> str:
        feeds = ", ".join(
            f"{v.name!r}: {v.name}" if v.name.isidentifier() else f"{v.name!r}: ..." for v in graph.inputs
        )
        return f"import onnxruntime\n{self.settings.usage(path)}.run(None, {{{feeds}}})"

    def open(self, path: Path, threads: int | None = None) -> OnnxFile:
        return OnnxFile(path, threads, self.settings)

    def node_names(self, artifact: onnx_ir.Model) -> dict[str, str]:
        return values(artifact, _is_op_of_torch)

    def annotate(self, artifact: onnx_ir.Model, key: str, text: str) -> None:
        artifact.metadata_props[key] = text

    def script(self, artifact: onnx_ir.Model, literal: Callable[[Any], str]) -> tuple[list[str], list[str]]:
        return script(artifact, literal)

    def runner(self, artifact: onnx_ir.Model, graph: Graph, path: Path | None = None) -> OnnxProgram:
        refers = path is not None and self.external_data == "reference"
        staged = refers and self.weights is None and path is not None and not any(path.parent.glob("*.safetensors"))
        lent = path.parent.parent if staged and path is not None else None
        return OnnxProgram(artifact, graph, path, lent, self.settings, lambda g: lower(g, self))


def _shards(folder: str | os.PathLike[str] | None, external_data: Any) -> Shards | None:
    """The files in another folder that a model is to refer to."""
    if folder is None:
        return None
    if external_data != "reference":
        raise ValueError("weights_folder= is the folder that external_data='reference' points to: give both")
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"weights_folder={folder!r:.40}: give the path of a folder")
    if not (os.fspath(folder) and Path(folder).is_dir()):
        raise ValueError(f"weights_folder={os.fspath(folder)!r:.300}: there is no such folder")
    return linked_shards(Path(folder))


def _is_op_of_torch(call: onnx_ir.Node) -> bool:
    """Whether a function is the body of an op: one of a module stands for many nodes."""
    import torch

    return call.domain.isidentifier() and hasattr(getattr(torch.ops, call.domain), call.op_type)
