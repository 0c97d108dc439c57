"""Files with modules as functions hold no node that does nothing either, and equal torch (others: test_models.py)."""

from __future__ import annotations

import onnx
import pytest

import ir
from tests.onnx.scan import findings
from tests.zoo import get
from tests.zoo.measure import captured


@pytest.mark.parametrize(("name", "kept"), [("bert", "BertLayer"), ("resnet50", "Bottleneck"), ("llama", "LlamaMLP")])
def test_modules_as_functions_equal_torch_at_every_size(name, kept, tmp_path):
    model, graph = captured(get, name, True)
    path = ir.export(graph, target="onnx", path=tmp_path / "m.onnx", functions=True, metadata=True).path
    described = onnx.load(path)
    onnx.checker.check_model(described)
    assert findings(described) == []
    assert kept in {f.name for f in described.functions}
    program = ir.export(graph, target="onnx", functions=True)
    for sizes in (model.sizes, *model.other_sizes):
        program.verify(*model.inputs(sizes))
