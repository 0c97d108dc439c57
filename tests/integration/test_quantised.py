"""torchao's two flows on real models: PT2E (observers, then integers) and quantize_ (weights of a tensor subclass)."""

from __future__ import annotations

import collections
import logging
import warnings
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ir
from onnx_backend.runtime.settings import EXACT
from tests.zoo import get

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    import torchao.quantization as ao
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

DYNAMIC = ({0: "batch"},)
aten = torch.ops.aten


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        y = (self.second(y) + y).relu()
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1).flatten(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        q, k, v = self.into(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(self.up(x).relu())


def x86_quantizer(dynamic: bool):
    quantizer = x86.X86InductorQuantizer()
    return quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))


def xnnpack_quantizer(per_channel: bool, dynamic: bool = False):
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic)
    return xnnpack.XNNPACKQuantizer().set_global(config)


QUANTIZERS = {
    "x86": lambda: x86_quantizer(False),
    "x86_dynamic": lambda: x86_quantizer(True),
    "tensor": lambda: xnnpack_quantizer(False),
    "channel": lambda: xnnpack_quantizer(True),
    "channel_dynamic": lambda: xnnpack_quantizer(True, True),
}
IMAGES = [torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(n)) for n in (4, 2)]
SEQUENCES = [torch.randn(n, 6, 32, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]


def converted(model: nn.Module, quantizer, inputs: list[torch.Tensor]) -> nn.Module:
    program = torch.export.export(model.eval(), (inputs[0],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    prepared = prepare_pt2e(program.module(), quantizer)
    for x in inputs:
        prepared(x)
    return convert_pt2e(prepared)


def optimised(path: Path) -> collections.Counter[str]:
    """The ops that onnxruntime runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in EXACT.items():
        options.add_session_config_entry(key, value)
    options.optimized_model_filepath = str(path.with_suffix(".run"))
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return collections.Counter(n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node)


def step(graph: ir.Graph) -> float:
    """The size of one step of what was last rounded to steps known beforehand; 0 where nothing is."""
    scales = [n.args["scale"] for n in graph.nodes if n.op == "quantized_decomposed::quantize_per_tensor"]
    return scales[-1] if scales and isinstance(scales[-1], float) else 0.0


class InDouble(TorchDispatchMode):
    """Products and sums in float64, rounded to float32 once: the same on every processor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket not in (aten.conv2d, aten.convolution, aten.linear, aten.addmm, aten.add):
            return func(*args, **(kwargs or {}))
        wide = (a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
        return func(*wide, **(kwargs or {})).float()


def compared(model: nn.Module, inputs: list[torch.Tensor], path: Path, steps: int, opset: int = 20) -> ir.Exported:
    """Export, and compare in a runtime at both batch sizes: to that many steps of the result."""
    graph = ir.capture(model, (inputs[0],), dynamic_shapes=DYNAMIC)
    program = ir.export(graph, target="onnx", path=path, opset=opset)
    onnx.checker.check_model(path, full_check=True)
    for x in inputs:
        with torch.no_grad(), InDouble():
            expected = model(x)
        error = (program(x) - expected).abs()
        rounding = 1e-5 * float(expected.abs().max())
        assert float(error.max()) <= steps * 1.01 * step(graph) + rounding
        assert float(error.mean()) <= steps / 2 * step(graph) + rounding
    return program


@pytest.mark.parametrize(("name", "opset"), [*((name, 20) for name in QUANTIZERS), ("channel", 13), ("channel", 21)])
@pytest.mark.parametrize(("build", "inputs"), [(ConvNet, IMAGES), (Block, SEQUENCES)], ids=["conv", "attention"])
def test_pt2e(build, inputs, name, opset, tmp_path):
    torch.manual_seed(0)
    model = converted(build(), QUANTIZERS[name](), inputs)
    compared(model, inputs, tmp_path / "m.onnx", steps=1, opset=opset)


def test_convolutions_run_in_integers(tmp_path):
    torch.manual_seed(0)
    program = compared(converted(ConvNet(), QUANTIZERS["channel"](), IMAGES), IMAGES, tmp_path / "m.onnx", steps=1)
    ran = optimised(program.path)
    assert (ran["QLinearConv"], ran["QLinearAdd"], ran["QGemm"]) == (2, 1, 1)
    assert not {"Conv", "FusedConv", "Gemm", "MaxPool", "Add", "Relu"} & ran.keys()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_linear_layers_run_in_integers(name, tmp_path):
    torch.manual_seed(0)
    program = compared(converted(Block(), QUANTIZERS[name](), SEQUENCES), SEQUENCES, tmp_path / "m.onnx", steps=1)
    assert optimised(program.path)["MatMulIntegerToFloat"] == 4


def test_resnet(tmp_path):
    """onnxruntime rounds biases and sums to steps; torch's own convolutions differ by up to 4 steps here."""
    zoo = get("resnet18", small=True)
    inputs = [zoo.inputs(sizes)[0][0] for sizes in (zoo.sizes, *zoo.other_sizes)]
    model = zoo.build()
    bytes_float = sum(p.nbytes for p in model.parameters())
    program = compared(converted(model, QUANTIZERS["channel"](), inputs), inputs, tmp_path / "m.onnx", steps=5)
    ran = optimised(program.path)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    assert ran["QLinearConv"] == convolutions and "Conv" not in ran
    assert program.path.stat().st_size < bytes_float * 0.27


@pytest.mark.parametrize("target", ["nnef", "eager"])
def test_other_targets(target):
    torch.manual_seed(0)
    model = converted(Block(), QUANTIZERS["x86"](), SEQUENCES)
    program = ir.export(model, (SEQUENCES[0],), target=target, dynamic_shapes=DYNAMIC, verify=True)
    program.verify((SEQUENCES[1],))


def test_a_pt2_file(tmp_path):
    torch.manual_seed(0)
    model = converted(ConvNet(), QUANTIZERS["tensor"](), IMAGES)
    torch.export.save(torch.export.export(model, (IMAGES[0],)), tmp_path / "m.pt2")
    program = ir.export(tmp_path / "m.pt2", target="onnx")
    program.verify((IMAGES[0],), atol=1.01 * step(program.graph))


# -- weights of a tensor subclass --------------------------------------------------------------------------------------

CONFIGS = {
    "int8": lambda: ao.Int8WeightOnlyConfig(),
    "int8_channel": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=ao.PerAxis(0)),
    "int4_group": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
    "int4_channel": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerAxis(0)),
    "int8_activations": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4_int8_activations": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=ao.PerGroup(32)
    ),
}


def subclassed(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao.quantize_(model, CONFIGS[name]())
    return model


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_of_torchao(name, opset, tmp_path):
    model, x = subclassed(name), torch.randn(3, 5, 128)
    program = ir.export(
        model, (x,), target="onnx", path=tmp_path / "m.onnx", dynamic_shapes=DYNAMIC, opset=opset, verify=True
    )
    program.verify((torch.randn(2, 5, 128),))
    stored = {i.data_type for i in onnx.load(program.path).graph.initializer if torch.Size(i.dims).numel() > 2000}
    four = "int4" in name and opset >= 21
    assert stored == {onnx.TensorProto.INT4 if four else onnx.TensorProto.INT8}
    if four and "activations" not in name:
        assert optimised(program.path)["MatMulNBits"] == 2


@pytest.mark.parametrize("target", ["nnef", "eager"])
@pytest.mark.parametrize("name", ["int8", "int4_group"])
def test_weights_of_torchao_elsewhere(name, target):
    ir.export(subclassed(name), (torch.randn(3, 5, 128),), target=target, verify=True)
