"""torchvision's deformable convolution through a symbolic function: a custom domain, and the standard's own op."""

from __future__ import annotations

import importlib

import onnx
import onnxruntime
import pytest
import torch
from onnx_backend.legacy.symbolic_helper import parse_args

import ir
from onnx_backend.legacy import register_custom_op_symbolic, unregister_custom_op_symbolic
from tests.zoo import torchvision_shim

NAME = "torchvision::deform_conv2d"
INTS = ("i",) * 8
input = torch.rand(1, 3, 10, 10)


@pytest.fixture(autouse=True)
def torchvision(monkeypatch):
    """torchvision with the op's fake kernel, also where its compiled library does not load."""
    torchvision_shim.install()
    module = importlib.import_module("torchvision")
    monkeypatch.setattr("torchvision.extension._has_ops", lambda: True)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(NAME, "Meta"):

        @torch.library.register_fake(NAME)
        def _(input, weight, offset, *rest):
            return input.new_empty(input.shape[0], weight.shape[0], *offset.shape[2:])

    yield module
    for version in (9, 19):
        unregister_custom_op_symbolic(NAME, version)


def model_of(torchvision):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 18, 3)
            self.conv2 = torchvision.ops.DeformConv2d(3, 3, 3)

        def forward(self, x):
            return self.conv2(x, self.conv1(x))

    return Model()


@parse_args("v", "v", "v", "v", "v", "i", "i", "i", "i", "i", "i", "i", "i", "none")
def symbolic(g, input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, n_weight_grps,
             n_offset_grps, use_mask):  # fmt: skip
    return g.op("custom::deform_conv2d", input, offset)


def test_a_custom_domain(torchvision, tmp_path):
    register_custom_op_symbolic(NAME, symbolic, 9)
    ir.export(
        model_of(torchvision), torch.rand(2, 3, 10, 10), path=tmp_path / "dcn.onnx", dynamic_shapes=({0: "batch"},)
    )
    model = onnx.load(tmp_path / "dcn.onnx")
    onnx.checker.check_model(model)
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("", "Conv"), ("custom", "deform_conv2d")]
    conv, deform = model.graph.node
    assert list(deform.input) == [model.graph.input[0].name, conv.output[0]]
    assert {o.domain: o.version for o in model.opset_import} == {"": 20, "custom": 1}
    dims = [d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == ["batch", 3, 8, 8]


def standard(g, input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups,
             offset_groups, use_mask):  # fmt: skip
    return g.op("DeformConv", input, weight, offset, bias, mask if use_mask else None, strides_i=[stride_h, stride_w],
                pads_i=[pad_h, pad_w] * 2, dilations_i=[dil_h, dil_w], group_i=groups,
                offset_group_i=offset_groups)  # fmt: skip


def test_the_standards_op_from_opset_19(torchvision):
    """Offsets of whole pixels make it an ordinary convolution of the shifted image, which is the reference here."""
    register_custom_op_symbolic(NAME, symbolic, 9)
    register_custom_op_symbolic(NAME, parse_args("v", "v", "v", "v", "v", *INTS, "b")(standard), 19)
    model = model_of(torchvision)
    down, right = 2, 1
    with torch.no_grad():
        model.conv1.weight.zero_()
        model.conv1.bias.copy_(torch.tensor([float(down), float(right)] * 9))
    program = ir.export(model, input, opset=20)
    assert [n.op_type for n in program.artifact.graph] == ["Conv", "DeformConv"]
    shifted = torch.nn.functional.pad(input, (0, right, 0, down))[..., down:, right:]
    expected = torch.nn.functional.conv2d(shifted, model.conv2.weight, model.conv2.bias)
    if onnxruntime.__version__ < "1.24":  # the oldest that is admitted has no kernel for it
        with pytest.raises(ir.RuntimeFailure, match="Could not find an implementation for DeformConv"):
            program(input)
    else:
        assert torch.allclose(program(input), expected, atol=1e-5)
    assert [n.domain for n in ir.export(model, input, opset=18).artifact.graph] == ["", "custom"]
