"""What a type checker says of `ir.export`: `nox -s lint` runs mypy over this file, and nothing runs the file.

A call whose ignore comment is not needed is an error, too: these are the wrong calls that it has to notice.
"""

from __future__ import annotations

import onnx_ir
import torch
from typing_extensions import assert_type

import ir
from eager_backend import Eager
from eager_backend.runtime.program import Program
from ir.signatures import EagerOptions, HLOOptions, KhronosOptions, OnnxOptions, TractOptions
from nnef_backend import Khronos, Tract
from nnef_backend.format.document import Document
from onnx_backend import Onnx
from stablehlo_backend import StableHLO
from stablehlo_backend.format.module import Module


def artifacts(model: torch.nn.Module, x: torch.Tensor, name: str) -> None:
    assert_type(ir.export(model, x).artifact, onnx_ir.Model)
    assert_type(ir.export(model, (x,), target="onnx", opset=18, functions=True).artifact, onnx_ir.Model)
    assert_type(ir.export(model, x, target="nnef", weights="q4_0", path="m.nnef.tgz").artifact, Document)
    assert_type(ir.export(model, x, target="khronos", naming="numeric").artifact, Document)
    assert_type(ir.export(model, x, target="eager", device="cuda", verify=True).artifact, Program)
    assert_type(ir.export(model, x, target="stablehlo", cpu="generic").artifact, Module)
    assert_type(ir.export(model, x, target=Eager(autotune=True)).artifact, Program)
    assert_type(ir.export(model, x, target=Onnx(18), dynamic_shapes=({0: "batch"},)).artifact, onnx_ir.Model)
    for target in ("onnx", "nnef", name):
        ir.export(model, x, target=target, verify=True)


def wrong(model: torch.nn.Module, x: torch.Tensor) -> None:
    ir.export(model, x, opst=18)  # type: ignore[call-overload]
    ir.export(model, x, opset="18")  # type: ignore[call-overload]
    ir.export(model, x, target="nnef", opset=18)  # type: ignore[call-overload]
    ir.export(model, x, target="eager", verify="yes")  # type: ignore[call-overload]
    ir.export(model, x, target=Onnx(18), opset=18)  # type: ignore[call-overload]


def every_option_fits_its_target(
    onnx: OnnxOptions, tract: TractOptions, khronos: KhronosOptions, eager: EagerOptions, hlo: HLOOptions
) -> None:
    """Each option's type is one that the target itself takes."""
    if "opset" in onnx:
        Onnx(onnx["opset"])
    Onnx(
        external_data=onnx.get("external_data"),
        weights_folder=onnx.get("weights_folder"),
        max_shard_size=onnx.get("max_shard_size"),
        functions=onnx.get("functions", False),
        metadata=onnx.get("metadata", False),
        allow_narrowing=onnx.get("allow_narrowing", False),
        devices=onnx.get("devices"),
        custom_opsets=onnx.get("custom_opsets"),
        custom_translation_table=onnx.get("custom_translation_table"),
        session_options=onnx.get("session_options"),
        providers=onnx.get("providers"),
        custom_op_libraries=onnx.get("custom_op_libraries", ()),
    )
    Tract(
        version=tract.get("version"),
        compression=tract.get("compression"),
        assertions=tract.get("assertions", ()),
        naming=tract.get("naming", "raw"),
        metadata=tract.get("metadata"),
        fragments=tract.get("fragments", ()),
        weights=tract.get("weights"),
        weights_filter=tract.get("weights_filter"),
        bfloat16=tract.get("bfloat16"),
        allow_narrowing=tract.get("allow_narrowing", False),
        load_timeout=tract.get("load_timeout"),
        run_timeout=tract.get("run_timeout"),
        memory=tract.get("memory"),
    )
    Khronos(
        compression=khronos.get("compression"),
        naming=khronos.get("naming", "raw"),
        fragments=khronos.get("fragments", ()),
    )
    Eager(
        device=eager.get("device", "cpu"),
        optimize=eager.get("optimize", True),
        autotune=eager.get("autotune", False),
        sizes=eager.get("sizes"),
    )
    StableHLO(cpu=hlo.get("cpu", "host"), flags=hlo.get("flags", ()))
