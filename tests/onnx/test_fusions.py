"""What onnxruntime makes of our forms: its fused ops where it has them, our own ops where they are the faster."""

from __future__ import annotations

import collections

import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ir
from tests.integration.test_fuse_rotary import captured as rotary


class Written(nn.Module):
    """The norm of Llama's kin."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def ran(model: nn.Module, shape: tuple[int, ...], opset: int, tmp_path) -> collections.Counter[str]:
    """The ops that onnxruntime runs, hardware's own layouts aside."""
    path = tmp_path / "m.onnx"
    ir.export(
        model.eval(),
        (torch.randn(shape),),
        target="onnx",
        path=path,
        opset=opset,
        verify=True,
        dynamic_shapes=({0: "n"},),
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return collections.Counter(n.op_type for n in onnx.load(tmp_path / "run.onnx").graph.node)


@pytest.mark.parametrize("opset", [13, 17, 21, 23])
def test_layer_norm_and_gelu(opset, tmp_path):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation=F.gelu)
    ops = ran(layer, (2, 5, 16), opset, tmp_path)
    assert ops["LayerNormalization"] + ops["SkipLayerNormalization"] == 2
    assert ops["BiasGelu"] + ops["Gelu"] == 1
    assert not {"ReduceMean", "Erf", "Pow", "Sqrt"} & ops.keys()


@pytest.mark.parametrize("build", [Written, lambda: nn.RMSNorm(16)], ids=["written", "module"])
@pytest.mark.parametrize(("opset", "op"), [(13, "SimplifiedLayerNormalization"), (22, "SimplifiedLayerNormalization"),
                                           (23, "RMSNormalization")])  # fmt: skip
def test_rms_norm(build, opset, op, tmp_path):
    assert ran(build(), (2, 5, 16), opset, tmp_path) == {op: 1}


def by_hand(x, shape, weight, bias):
    apart = x - x.mean(-1, keepdim=True)
    return apart / torch.sqrt(apart.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


@pytest.mark.parametrize("norm", [F.layer_norm, by_hand])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("opset", [13, 18])
def test_a_norm_of_what_was_cast_loads(norm, dtype, opset):
    weight, bias = torch.rand(8) + 1, torch.randn(8)
    given = (torch.randint(-9, 9, (3, 8)).to(dtype),)
    ir.export(lambda x: norm((x + 1).float(), (8,), weight, bias), given, target="onnx", opset=opset, verify=True)


@pytest.mark.parametrize(("opset", "count"), [(22, 0), (23, 1)])
def test_attention(opset, count, tmp_path):
    assert ran(Attention(), (2, 3, 5, 8), opset, tmp_path)["Attention"] == count


def test_group_norm_is_not_taken_apart(tmp_path):
    ops = ran(nn.GroupNorm(2, 8), (2, 8, 4, 4), 23, tmp_path)
    assert ops["InstanceNormalization"] == 1 and not {"ReduceMean", "Cast", "Sqrt"} & ops.keys()


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize(
    "model", [nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.LayerNorm(8).double(), nn.RMSNorm(8)]
)
def test_norms_of_an_empty_batch(model, opset):
    """onnxruntime's own Reduce kernels lose the shape of an empty tensor where axes count from the end."""
    dtype = torch.float64 if "float64" in str([p.dtype for p in model.parameters()]) else torch.float32
    program = ir.export(model, (torch.randn(3, 5, 8, dtype=dtype),), dynamic_shapes=({0: "n"},), opset=opset)
    assert program(torch.zeros(0, 5, 8, dtype=dtype)).shape == (0, 5, 8)
    x = torch.zeros(0, 5, 8, dtype=dtype)
    means = ir.export(
        lambda x: (x.sum(-1), x.amax(2, keepdim=True)), (x.new_ones(3, 5, 8),), dynamic_shapes=({0: "n"},)
    )
    assert [tuple(r.shape) for r in means(x)] == [(0, 5), (0, 5, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("form", ["half", "partial", "interleaved", "partial_interleaved"])
def test_forms_of_rotary_embedding(form, batch, dtype, tmp_path):
    graph, _ = rotary(form, dtype, batch)
    program = ir.export(graph, target="onnx", path=tmp_path / "m.onnx", opset=23)
    assert [n.op_type for n in onnx.load(program.path).graph.node].count("RotaryEmbedding") == 1
    width = 12 if form.startswith("partial") else 8
    for b, s in ((2, 5), (1, 1), (3, 7)):
        program.verify((torch.randn(b, 3, s, width).to(dtype), torch.randn(1 if batch == 1 else b, s, 4)))


def test_a_product_of_what_is_scaled_twice_beside_one_of_what_is_scaled_once():
    def forward(x, s):
        a, b = x / 3, x.double() * 0.7
        kept = (a * s[:, None]) @ a
        return F.scaled_dot_product_attention(a, a, a), (a * 5) @ x @ a, (b / 7) @ x.double() @ b, kept

    args = torch.randn(2, 4, 4), torch.randn(4)
    program = ir.export(forward, args, target="onnx", verify=True)
    assert [n.op_type for n in program.artifact.graph].count("MatMul") == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_product_of_halves_that_are_scaled_twice(dtype):
    def forward(x, y):
        a = x / 7
        return F.scaled_dot_product_attention(a, a, a, scale=2.0), (a * 2) @ y @ a, y @ (a * 2).mT @ a

    x, y = torch.randn(2, 2, 4, 4).to(dtype)
    program = ir.export(forward, (x, y), target="onnx")
    digits = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(program(x, y), forward(x, y), rtol=digits, atol=digits)


class Grouped(nn.Module):
    """Keys and values repeated for each group of query heads, as transformers writes them out."""

    def forward(self, x):
        k = x[:, :2, None].expand(x.shape[0], 2, 2, 5, 8).reshape(x.shape[0], 4, 5, 8)
        return F.scaled_dot_product_attention(x, k, k)


def test_no_head_is_repeated(tmp_path):
    assert ran(Grouped(), (2, 4, 5, 8), 18, tmp_path)["Expand"] == 0
