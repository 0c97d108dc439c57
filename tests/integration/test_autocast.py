"""An export inside of torch.autocast: the program has the casts in it, wherever it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir

MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), torch.randn(3, 4)),
    "convolution": (lambda: nn.Conv1d(4, 2, 3), torch.randn(3, 4, 8)),
}


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_the_program_computes_what_the_model_does_there(name, target):
    make, x = MODELS[name]
    model = make().eval()
    with autocast():
        program = ir.export(model, (x,), target=target, dynamic_shapes=({0: "b"},), verify=True)
        wanted, inside = model(x), program(x)
        assert program.verify((x,)).ok
    assert program.verify((x,)).ok
    for got in (program(x), inside, program.exported_program.module()(x)):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)


def test_a_program_that_exists_already_is_taken_as_it_is():
    program = torch.export.export(nn.Linear(4, 2), (torch.randn(3, 4),))
    with autocast():
        graph = ir.capture(program)
        ir.export(graph, target="onnx", verify=True)
    assert [str(v.type) for v in graph.outputs] == ["f32[3, 2]"]


def test_autocast_is_on_again_after_the_export():
    with autocast():
        with pytest.raises(ir.ExportError):
            ir.export(lambda x: x + 1 if x.sum() > 0 else x, (torch.randn(3),))
        assert torch.is_autocast_enabled("cpu")
        assert nn.Linear(4, 2)(torch.randn(3, 4)).dtype is torch.bfloat16
    with autocast(), torch.autocast("cpu", enabled=False):
        assert ir.export(nn.Linear(4, 2), (torch.randn(3, 4),))(torch.randn(3, 4)).dtype is torch.float32
