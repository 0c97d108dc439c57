"""What is written for servers beside an artifact."""

from __future__ import annotations

import pytest
import torch

import ir


def test_triton_puts_rows_together(tmp_path):
    path = tmp_path / "detector" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)

    def model(image, weight):
        return image.mean((2, 3)), weight * 2

    args, shapes = (torch.randn(2, 3, 8, 8), torch.randn(2)), ({0: "batch", 2: "height"}, {0: "batch"})
    ir.export(model, args, path=path, dynamic_shapes=shapes, output_names=["mean", "double"], deploy="triton")
    assert (
        (tmp_path / "detector" / "config.pbtxt").read_text()
        == """\
name: "detector"
backend: "onnxruntime"
max_batch_size: 64
input [
  { name: "image", data_type: TYPE_FP32, dims: [ 3, -1, 8 ] },
  { name: "weight", data_type: TYPE_FP32, dims: [ 1 ], reshape: { shape: [ ] } }
]
output [
  { name: "mean", data_type: TYPE_FP32, dims: [ 3 ] },
  { name: "double", data_type: TYPE_FP32, dims: [ 1 ], reshape: { shape: [ ] } }
]
dynamic_batching { }
"""
    )


def test_triton_runs_fixed_sizes_one_by_one(tmp_path):
    path = tmp_path / "adder" / "3" / "model.onnx"
    path.parent.mkdir(parents=True)
    ir.export(lambda x: x + 1, (torch.zeros(2, 3, dtype=torch.int64),), path=path, deploy="triton")
    text = (tmp_path / "adder" / "config.pbtxt").read_text()
    assert "max_batch_size: 0" in text and "data_type: TYPE_INT64, dims: [ 2, 3 ] }" in text
    assert "dynamic_batching" not in text


def test_an_edited_configuration_stays(tmp_path):
    """What export wrote is written again; what somebody changed is not."""
    path = tmp_path / "adder" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    config = tmp_path / "adder" / "config.pbtxt"
    for shape in ((2, 3), (4,)):
        ir.export(lambda x: x + 1, (torch.zeros(shape),), path=path, deploy="triton")
    edited = config.read_text() + "instance_group [ { count: 2 } ]\n"
    config.write_text(edited)
    before = path.read_bytes()
    with pytest.raises(ir.OutputError, match="holds what no export wrote"):
        ir.export(lambda x: x + 2, (torch.zeros(5),), path=path, deploy="triton")
    assert config.read_text() == edited and path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": "model.onnx"}, ir.ExportError, "the path is REPOSITORY/NAME/VERSION/model.onnx"),
        ({}, ir.ExportError, "the path is REPOSITORY/NAME/VERSION/model.onnx"),
        ({"path": "m/1/model.onnx", "target": "nnef"}, ir.ExportError, "is for files of target 'onnx', not 'nnef'"),
        ({"path": "m/1/model.onnx", "deploy": "other"}, ValueError, "deploy='other': triton"),
    ],
)
def test_refusals(tmp_path, monkeypatch, options, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        ir.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), **{"deploy": "triton", **options})
