"""What the file of a quantised model holds; its numbers are in the case table."""

from __future__ import annotations

import collections

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
import torch

import ir
from onnx_backend.format import writer
from tests.cases import ALL
from tests.harness import captured, run_case

CASES = {c.name.partition("/")[2]: c for c in ALL if c.family == "quantize"}
INTEGERS = {"INT4", "UINT4", "INT8", "UINT8"}


def exported(name: str, tmp_path, opset: int = 21) -> onnx.ModelProto:
    path = tmp_path / "m.onnx"
    ir.export(captured(CASES[name]), target="onnx", path=path, opset=opset)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def ops(model: onnx.ModelProto) -> collections.Counter[str]:
    return collections.Counter(n.op_type for n in model.graph.node)


def weights(model: onnx.ModelProto) -> dict[str, str]:
    """Element type by name, of everything larger than a bias."""
    return {
        i.name: onnx.TensorProto.DataType.Name(i.data_type)
        for i in model.graph.initializer
        if torch.Size(i.dims).numel() > 16
    }


@pytest.mark.parametrize(
    ("name", "opset", "kind"),
    [
        ("weight_per_tensor", 13, "INT8"),
        ("weight_per_channel", 18, "INT8"),
        ("weight_unfolded", 18, "INT8"),
        ("weight_group", 18, "INT8"),
        ("weight_group", 21, "INT8"),
        ("weight_4_bits", 20, "INT8"),
        ("weight_4_bits", 21, "INT4"),
        ("weight_4_bits_tensor", 21, "INT4"),
        ("weight_4_bits_group", 21, "INT4"),
    ],
)
def test_weights_are_stored_as_integers(name, opset, kind, tmp_path):
    assert set(weights(exported(name, tmp_path, opset)).values()) == {kind}


def test_numbers_that_do_not_fit_into_4_bits_stay(tmp_path):
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.full((6, 8), 9, dtype=torch.int8))

        def forward(self, x):
            return x @ torch.ops.quantized_decomposed.dequantize_per_tensor(self.whole, 0.1, 0, -8, 7, torch.int8).T

    program = ir.export(Wide(), (torch.randn(2, 8),), target="onnx", path=tmp_path / "m.onnx", opset=21, verify=True)
    assert set(weights(onnx.load(program.path)).values()) == {"INT8"}


def test_groups_lie_as_onnxruntime_wants_them(tmp_path):
    """MatMulNBits comes from DequantizeLinear along the first axis, straight into MatMul."""
    model = exported("weight_4_bits_group", tmp_path)
    (node,) = (n for n in model.graph.node if n.op_type == "DequantizeLinear")
    assert {a.name: a.i for a in node.attribute} == {"axis": 0, "block_size": 16}
    assert "Transpose" not in ops(model)


@pytest.mark.parametrize(("zero", "operands"), [(0, 2), (1, 3)])
def test_groups_around_zero_have_no_zero_points(zero, operands, tmp_path):
    class Grouped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.randint(-8, 8, (8, 32), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(8, 2) + 0.1)
            self.register_buffer("zeros", torch.full((8, 2), zero))

        def forward(self, x):
            weight = torch.ops.quantized_decomposed.dequantize_per_channel_group(
                self.codes, self.scales, self.zeros, -8, 7, torch.int8, 16, torch.float32
            )
            return torch.nn.functional.linear(x, weight)

    place = tmp_path / "m.onnx"
    ir.export(Grouped(), (torch.randn(2, 32),), target="onnx", path=place, opset=21, verify=True)
    (node,) = (n for n in onnx.load(place).graph.node if n.op_type == "DequantizeLinear")
    assert len(node.input) == operands


def test_activations_are_unsigned(tmp_path):
    model = exported("int8_read_twice", tmp_path)
    assert ops(model)["QuantizeLinear"] == 1
    assert {i.data_type for i in model.graph.initializer if i.data_type != 1} == {onnx.TensorProto.UINT8}


def test_integers_that_are_results_keep_their_type(tmp_path):
    types = [o.type.tensor_type.elem_type for o in exported("per_tensor_int8", tmp_path).graph.output]
    assert types == [onnx.TensorProto.INT8, onnx.TensorProto.FLOAT]


@pytest.mark.parametrize(("opset", "native"), [(20, 0), (21, 1)])
def test_16_bits(opset, native, tmp_path):
    assert ops(exported("per_tensor_int16", tmp_path, opset))["QuantizeLinear"] == native


def test_a_narrow_range_is_clipped_beside_the_op(tmp_path):
    names = [n.op_type for n in exported("per_tensor_narrow", tmp_path).graph.node]
    assert names == ["Clip", "QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("opset", [13, 17, 18, 21, 23, 26])
@pytest.mark.parametrize("name", CASES)
def test_every_opset(name, opset):
    run_case(CASES[name], "onnx", opset=opset)


def test_a_mismatch_of_a_quantised_program_says_what_to_do():
    class Model(torch.nn.Module):
        def forward(self, x):
            q = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
            return torch.ops.quantized_decomposed.dequantize_per_tensor(q, 0.1, 0, -128, 127, torch.int8)

    args = (torch.randn(2, 3),)
    program = ir.export(Model(), args, target="onnx")
    program.runner = lambda x: [x + 0.1]
    with pytest.raises(ir.MismatchError, match="atol"):
        program.verify()
    program.verify(atol=0.2)


@pytest.mark.parametrize("count", [1, 6, 7, 40, 41])
def test_two_numbers_of_4_bits_in_a_byte(count, monkeypatch):
    """Some at a time, which fit together to what onnx_ir packs as a whole."""
    monkeypatch.setattr("onnx_backend.format.writer._STEP", 16)
    codes = np.random.default_rng(0).integers(-8, 8, count)
    tensor = onnx_ir.tensor(codes.astype(ml_dtypes.int4), dtype=onnx_ir.DataType.INT4)
    assert b"".join(map(bytes, writer._pieces(tensor))) == tensor.tobytes()
