"""Models at the opsets that people still run: equal to torch up to what onnxruntime loads, valid at the newest."""

from __future__ import annotations

from functools import lru_cache

import onnx
import pytest

import ir
from onnx_backend.building.kernels import HIGHEST
from tests.zoo import Model, get

NEWEST = onnx.defs.onnx_opset_version()


@lru_cache(maxsize=1)
def captured(name: str, small: bool = True) -> tuple[Model, ir.Graph]:
    model = get(name, small=small)
    args, kwargs = model.inputs(model.sizes)
    return model, ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)


OPSETS = (13, 17, 18, 21, 23, HIGHEST, NEWEST)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", ["resnet50", "bert", "gpt2", "llama", "lstm"])
def test_opset(name, opset, tmp_path):
    compared(*captured(name), opset, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", ["resnet50", "bert", "gpt2", "lstm"])
def test_full_size(name, opset, tmp_path):
    compared(*captured(name, small=False), opset, tmp_path)


def compared(model, graph, opset, tmp_path):
    program = ir.export(graph, target="onnx", path=tmp_path / "m.onnx", opset=opset)
    written = onnx.load(program.path, load_external_data=False)
    onnx.checker.check_model(program.path, full_check=True)
    assert [o.version for o in written.opset_import if o.domain == ""] == [opset]
    for sizes in (model.sizes, *model.other_sizes) if opset <= HIGHEST else ():
        program.verify(*model.inputs(sizes))
