"""A model with rotary embeddings, with one node for each or written out, by opset."""

from __future__ import annotations

import collections

import onnx
import pytest

import ir
from onnx_backend.building.kernels import HIGHEST
from tests.zoo import get
from tests.zoo.measure import captured


@pytest.mark.parametrize("opset", [20, 23, HIGHEST])
def test_rotary_embedding(opset, tmp_path):
    model, graph = captured(get, "llama", True)
    program = ir.export(graph, target="onnx", path=tmp_path / "m.onnx", opset=opset)
    ops = collections.Counter(n.op_type for n in onnx.load(program.path).graph.node)
    assert ops["RotaryEmbedding"] == (4 if opset >= 23 else 0) and ops["Neg"] == (0 if opset >= 23 else 4)
    for sizes in (model.sizes, *model.other_sizes):
        program.verify(*model.inputs(sizes))
