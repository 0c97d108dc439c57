"""What `verify=True` runs on every target, beside the example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from ir.trial import Trial

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


@pytest.mark.parametrize("target", TARGETS)
def test_the_ends_of_the_ranges_are_run(target):
    shapes = ({0: torch.export.Dim("n", min=3, max=12), 1: torch.export.Dim("m", min=4, max=4096)},)
    report = ir.export(nn.ReLU(), (torch.randn(7, 5),), target=target, dynamic_shapes=shapes, verify=True).report
    assert {r.sizes for r in report.rows} == {"m=5, n=7", "m=6, n=9", "m=4, n=3", "m=5, n=12"}


def test_numbers_that_equal_a_size_are_listed(tmp_path):
    def model(x):
        return x.reshape(-1, 5).sum(0) / 7, x[:7].exp(), x + torch.tensor([7, 1]).sum(), x.softmax(1)

    report = tmp_path / "report.md"
    graph = ir.capture(model, (torch.randn(7, 5),), dynamic_shapes=({0: "n"},))
    table = ir.debug(graph, target="eager")
    assert [x.where for x in table.literals] == ["div", "slice_1", "lifted_tensor_0"]
    assert "%div other=7 equals n=7 (test_verified_sizes.py:" in str(table)
    ir.export(graph, target="eager", report=report)
    text = report.read_text()
    assert "## Numbers that equal a size of the example" in text and "| `slice_1` | `end=7` | n |" in text
    fixed = ir.capture(model, (torch.randn(7, 5),))
    ir.export(fixed, target="eager", report=report)
    assert "Numbers that equal" not in report.read_text()


def test_a_kernel_that_returns_no_elements_as_they_came_is_a_note():
    """What has neither that shape nor the one of torch's rules is found all the same."""
    args, shapes = (torch.randn(2, 1, 6, 6),), ({0: "n"},)

    def model(x):
        return torch.pixel_unshuffle(x, 2)

    for target in TARGETS:
        report = ir.export(model, args, target=target, dynamic_shapes=shapes, verify=True).report
        assert not any(r.skipped for r in report.rows if r.sizes != "n=0")
    report = ir.export(model, args, target="onnx", dynamic_shapes=shapes, verify=True).report
    (row,) = [r for r in report.rows if r.sizes == "n=0"]
    assert row.shape == (0, 4, 3, 3) and "torch's kernel gives [0, 1, 6, 6] here" in row.skipped

    program = ir.export(model, args, target="onnx", dynamic_shapes=shapes)
    wrong = Trial(program.graph, program.target, lambda x: [torch.zeros(0, 4, 2, 3)])
    assert [r.ok for r in wrong.run((args[0][:0],), {}, others=False).rows] == [False]
