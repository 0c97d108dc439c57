"""The files of real models hold no node that does nothing, and names that say where in the model a node is."""

from __future__ import annotations

import onnx
import pytest

import ir
from tests.onnx.scan import findings
from tests.zoo import ALSO, FIRST, NAMES, get


def exported(name, folder, **options):
    model = get(name, small=True)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    path = folder / f"{name}.onnx"
    ir.export(graph, target="onnx", path=path, **options)
    return model, graph, onnx.load(path)


ALL = [pytest.param(n, marks=() if n in {*FIRST, *ALSO} else pytest.mark.slow) for n in NAMES]


@pytest.mark.parametrize("name", ALL)
def test_nothing_in_the_file_does_nothing(name, tmp_path):
    _, graph, described = exported(name, tmp_path, metadata=True)
    assert findings(described) == []
    plain = onnx.load(ir.export(graph, target="onnx", path=tmp_path / "plain.onnx").path)
    assert [n.op_type for n in plain.graph.node] == [n.op_type for n in described.graph.node]
    assert not plain.graph.value_info and not any(n.metadata_props for n in plain.graph.node)


@pytest.mark.parametrize(("name", "kept"), [("bert", "BertLayer"), ("resnet50", "Bottleneck"), ("llama", "LlamaMLP")])
def test_modules_as_functions_equal_torch_at_every_size(name, kept, tmp_path):
    model, graph, described = exported(name, tmp_path, functions=True, metadata=True)
    onnx.checker.check_model(described)
    assert findings(described) == []
    assert kept in {f.name for f in described.functions}
    program = ir.export(graph, target="onnx", functions=True)
    for sizes in (model.sizes, *model.other_sizes):
        program.verify(*model.inputs(sizes))
