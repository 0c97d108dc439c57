"""What `ir.export` takes for each target, for editors and type checkers alone: nothing imports this at run time.

`tests/docs/test_signatures.py` compares it with the targets themselves.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import onnx_ir
import torch

from eager_backend.runtime.program import Program
from nnef_backend.building.library import Source
from nnef_backend.format.document import Document
from nnef_backend.format.q4_0 import Filter
from nnef_backend.runtime.tract import Limit
from onnx_backend.building.devices import Devices
from onnx_backend.runtime.settings import Options, Provider
from stablehlo_backend.format.module import Module

OnnxModel: TypeAlias = onnx_ir.Model
NnefDocument: TypeAlias = Document
EagerProgram: TypeAlias = Program
StableHLOModule: TypeAlias = Module

class Common(TypedDict, total=False):
    """For every target."""

    path: str | os.PathLike[str] | None
    dynamic_shapes: Any
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    handlers: Mapping[str, Callable[..., Any]] | None
    plugins: Sequence[str]
    discover_plugins: bool
    strict_plugins: bool
    verify: bool | Literal["thorough"]
    certificate: Literal["metadata"] | None
    report: str | os.PathLike[str] | None
    dtype: Any
    keep_float32: Sequence[str]
    max_error: float | None
    deploy: str | None

class OnnxOptions(Common, total=False):
    """`onnx_backend.Onnx` says what each is."""

    opset: int
    external_data: bool | Literal["reference"] | None
    weights_folder: str | os.PathLike[str] | None
    max_shard_size: int | None
    functions: bool | Collection[str]
    metadata: bool
    allow_narrowing: bool
    devices: Devices | None
    custom_opsets: Mapping[str, int] | None
    custom_translation_table: Mapping[Any, Any] | None
    session_options: Options
    providers: str | Sequence[Provider] | None
    custom_op_libraries: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

class KhronosOptions(Common, total=False):
    """`nnef_backend.Khronos` says what each is."""

    compression: str | None
    naming: str
    fragments: Sequence[Source]

class TractOptions(KhronosOptions, total=False):
    """`nnef_backend.Tract` says what each is."""

    version: str | None
    assertions: Sequence[str]
    metadata: Mapping[str, str | int | float | bool] | None
    weights: str | None
    weights_filter: Filter
    bfloat16: str | None
    allow_narrowing: bool
    load_timeout: Limit
    run_timeout: float | None
    memory: Limit

class EagerOptions(Common, total=False):
    """`eager_backend.Eager` says what each is; its `dtype` is the common one."""

    device: str | torch.device
    optimize: bool | Collection[str]
    autotune: bool
    sizes: Mapping[str, int] | None

class HLOOptions(Common, total=False):
    """`stablehlo_backend.StableHLO` says what each is."""

    cpu: str
    flags: Sequence[str]
