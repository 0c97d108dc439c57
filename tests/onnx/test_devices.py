"""Annotations for several devices: written, accepted by the checker, ignored by onnxruntime."""

from __future__ import annotations

import onnx
import pytest
import torch

import ir
from onnx_backend import Devices, Onnx


class Blocks(torch.nn.Module):
    """Four layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + 1
        return x


def export(path, devices, **options):
    torch.manual_seed(0)
    target = Onnx(devices=devices, **options)
    ir.export(Blocks().eval(), (torch.randn(2, 8),), target=target, path=path, verify=True)
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(path)


def test_stages(tmp_path):
    model = export(tmp_path / "m.onnx", Devices(("cuda:0", "cuda:1", "cpu"), stages=("layers.1", "layers.3")))
    assert model.ir_version == 11
    (configuration,) = model.configuration
    assert configuration.num_devices == 3 and list(configuration.device) == ["cuda:0", "cuda:1", "cpu"]
    stages = [n.device_configurations[0].pipeline_stage for n in model.graph.node]
    assert stages == sorted(stages) and {*stages} == {0, 1, 2}
    products = [s for n, s in zip(model.graph.node, stages, strict=True) if n.op_type in ("Gemm", "MatMul")]
    assert products == [0, 1, 1, 2]


def test_cut_weights(tmp_path):
    model = export(
        tmp_path / "m.onnx", Devices(("cuda:0", "cuda:1"), sharded={"layers.0.weight": 0, "layers.1.weight": 1})
    )
    specs = [s for n in model.graph.node for c in n.device_configurations for s in c.sharding_spec]
    found = {s.tensor_name: (s.sharded_dim[0].axis, s.sharded_dim[0].simple_sharding[0].num_shards) for s in specs}
    assert found == {"layers.0.weight": (0, 2), "layers.1.weight": (1, 2)}
    assert all(list(s.device) == [0, 1] for s in specs)


def test_a_plain_model_has_none(tmp_path):
    model = export(tmp_path / "m.onnx", None)
    assert model.ir_version < 11 and not model.configuration


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="3 stages lie on as many devices, and 2 are named"):
        Devices(("a", "b"), stages=("layers.1", "layers.2"))
    with pytest.raises(ir.RefusedError, match=r"no node of the model lies in 'layers\.9'"):
        export(tmp_path / "m.onnx", Devices(("a", "b"), stages=("layers.9",)))
    with pytest.raises(ir.RefusedError, match="the file has no weight 'none'"):
        export(tmp_path / "m.onnx", Devices(("a", "b"), sharded={"none": 0}))
    with pytest.raises(ir.RefusedError, match="no weight of this model is a DTensor"):
        Devices.of(Blocks())
