"""The names of dimensions in a .pt2 file: written beside torch's own records, read as data."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch

import ir
from ir.opening import open_artifact


@pytest.fixture
def path(tmp_path):
    shapes = ({0: "batch", 1: "width"},)
    program = ir.export(torch.nn.ReLU(), torch.randn(2, 3), target="eager", dynamic_shapes=shapes)
    return program.save(tmp_path / "model.pt2")


def edited(path, text):
    """The file with another record of names."""
    other = path.with_name("edited.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            data = text.encode() if name.endswith("ir_dimensions.json") else source.read(name)
            target.writestr(name, data)
    return other


def test_a_file_keeps_them(path):
    assert str(ir.capture(path).inputs[0].type) == "f32[batch, width]"
    assert [p.shape for p in open_artifact(path).inputs] == [("batch", "width")]
    torch.export.load(path)


def test_what_is_asked_for_comes_first(path):
    graph = ir.capture(path, dynamic_shapes=({0: "rows"},))
    assert str(graph.inputs[0].type) == "f32[rows, width]"
    graph = ir.capture(path, dynamic_shapes=({1: "batch"},))  # one name is one size
    assert graph.inputs[0].type.shape[0] != graph.inputs[0].type.shape[1]


def test_a_file_that_is_written_anew_keeps_them(path, tmp_path):
    again = ir.export(path, target="eager").save(tmp_path / "again.pt2")
    assert str(ir.capture(again).inputs[0].type) == "f32[batch, width]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[1]", "no names"),
        (json.dumps({"s0": "import os; os.remove('x')"}), "no names"),
        (json.dumps({"s0": 3}), "no names"),
        (json.dumps({"s0": "x" * 2**20}), "larger than"),
    ],
)
def test_a_record_of_something_else_is_refused(path, text, said):
    with pytest.raises(ir.CaptureError, match=f"names of dimensions are {said}"):
        ir.capture(edited(path, text))
