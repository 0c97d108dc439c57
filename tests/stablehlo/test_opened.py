"""Files of the target opened by what they declare."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.opened import Port
from ir.types import DType
from stablehlo_backend import StableHLO


@pytest.mark.parametrize("suffix", ["mlir", "vmfb"])
def test_a_file_runs_without_its_model(tmp_path, suffix):
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    path = tmp_path / f"model.{suffix}"
    ir.export(model, (x,), target=StableHLO(), path=path, dynamic_shapes=({0: "batch"},))
    program = StableHLO().open(path)
    assert program.inputs == [Port("input", DType.float32, ("batch", 4))]
    assert [p.shape for p in program.outputs] == [("batch", 3)]
    x = torch.randn(5, 4)
    assert torch.allclose(program(x)[0], model(x), atol=1e-5)
    assert ("stablehlo.dot_general" in program.operators) is (suffix == "mlir")
