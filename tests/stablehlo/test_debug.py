"""A verification that fails names the node, as on the targets whose runtimes are everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir


def test_verify_names_the_node():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    graph = ir.capture(model, (torch.randn(3, 8),), dynamic_shapes=({0: "batch"},))
    wrong = {"aten::relu": lambda h, self: self}
    with pytest.raises(ir.MismatchError, match="the node with the largest error of its own") as told:
        ir.export(graph, target="stablehlo", verify=True, handlers=wrong)
    assert "%relu = aten::relu in 1" in str(told.value) and "own error: " in str(told.value)
    found = ir.debug.reduce(graph, target="stablehlo", handlers=wrong)
    assert found.nodes == ("aten::relu",) and found.ir_script and "no script without ir" in str(found)
    with pytest.raises(ir.ExportError, match="'stablehlo' has no profiler"):
        ir.debug.profile(graph, target="stablehlo")
