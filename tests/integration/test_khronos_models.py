"""Real models in standard NNEF: nnef-tools parses each, infers its shapes, and runs it equal to torch."""

from __future__ import annotations

import pytest

import ir
from nnef_backend.runtime import khronos
from tests.zoo import get


@pytest.mark.parametrize(
    "name", ["resnet50", "mobilenet_v3_small", "squeezenet1_1", "densenet121", "convnext_tiny", "vit_b_16"]
)
def test_a_model_parses_infers_shapes_and_runs_equal_to_torch(name, tmp_path):
    model = get(name, small=True)
    args, kwargs = model.inputs(model.sizes)
    program = ir.export(model.build(), args, kwargs, target="khronos", path=tmp_path / "model", verify=True)
    graph = khronos.check(tmp_path / "model")
    shapes = [list(graph.tensors[o].shape) for o in graph.outputs]
    assert shapes == [list(t.shape) for t in program.graph.context.reference(program.graph, args, kwargs)]
