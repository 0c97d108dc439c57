"""What `verify=True` runs on every target, beside the example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir

TARGETS = ("onnx", "nnef", "eager")


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_size_is_found(target):
    """A handler that is right at the traced size alone."""

    op = {"onnx": "Mul", "nnef": "mul", "eager": torch.mul}[target]

    def doubled(h, self, other):
        return h.emit(op, self, 2.0)

    def model(x):
        return x * x.shape[0]

    args, shapes = (torch.randn(2, 3),), ({0: "n"},)
    ir.export(model, args, target=target, dynamic_shapes=shapes, verify=True)
    with pytest.raises(ir.MismatchError, match=r"output at n=3: .*MISMATCH"):
        ir.export(model, args, target=target, dynamic_shapes=shapes, verify=True, handlers={"aten::mul": doubled})


NORMS = {
    "batch_norm": (nn.BatchNorm1d(4), torch.randn(3, 4, 5)),
    "of_a_matrix": (nn.BatchNorm1d(4), torch.randn(3, 4)),
    "without_weights": (nn.BatchNorm2d(4, affine=False), torch.randn(3, 4, 2, 2)),
    "instance_norm": (nn.InstanceNorm1d(4, track_running_stats=True), torch.randn(3, 4, 5)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NORMS)
def test_an_empty_batch_changes_no_statistics(target, name):
    model, x = NORMS[name]
    report = ir.export(model.train(), (x,), target=target, dynamic_shapes=({0: "n"},), verify=True).report
    assert {r.name for r in report.rows if r.sizes == "n=0"} >= {"running_mean_updated", "running_var_updated"}
    assert "captured in training mode" in str(report)
