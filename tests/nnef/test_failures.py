"""What a run says that stops: the condition and the line, or which of the model's operations tract failed in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ir
from ir.opening import open_artifact
from nnef_backend.runtime.failures import Failures

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")


class Positive(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "x is to be positive")
        return x * 2


class Number(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.abs().item()  # what is asked of an input itself is looked at before tract has it
        torch._check(k >= 2)
        torch._check(k <= 4)
        return x * k


X = torch.tensor([1.0, 2.0, 3.0])
DATA = {
    "tensor": (Positive, (X,), (-X,), "x is to be positive"),
    "number": (Number, (X, torch.tensor(3)), (X, torch.tensor(7)), "u0 <= 4"),
}


@pytest.mark.parametrize("naming", ["raw", "numeric"])
@pytest.mark.parametrize("name", DATA)
def test_a_condition_on_data_is_told(name, naming):
    model, good, bad, said = DATA[name]
    program = ir.export(model(), good, target="nnef", naming=naming)
    torch.testing.assert_close(program(*good), model()(*good))
    with pytest.raises(ir.RefusedError, match=rf"stopped the run: .*{said}.*\n  at .*test_failures\.py:\d+"):
        program(*bad)


def test_a_condition_on_data_ends_no_process(tmp_path):
    """Whoever runs the file has an error, and the process that tract is in goes on."""
    ir.export(Positive(), (X,), target="nnef", path=tmp_path / "model.nnef")
    opened = open_artifact(tmp_path / "model.nnef")
    with pytest.raises(ir.ExportError, match="mul_where0_holds stops the run: what the model asks") as caught:
        opened(-X)
    assert not getattr(caught.value, "crashed", False)
    torch.testing.assert_close(opened(X)[0], X * 2)


def test_the_operation_that_fails_is_named_and_not_the_small_batch(tmp_path):
    """Nothing in this model is another at a size of 1: that is not said to be the cause."""

    def model(x, i):
        return x[:, i.long()] * 2

    args = (torch.randn(3, 4), torch.tensor([1.0, 2]))
    program = ir.export(model, args, target="nnef", dynamic_shapes=({0: "b"}, {}))
    with pytest.raises(ir.ExportError) as caught:
        program(torch.randn(1, 4), torch.tensor([1.0, 9]))
    assert "b=1" not in str(caught.value) and "aten::index.Tensor at" in str(caught.value)


def test_a_size_that_torch_found_to_be_another_is_told(tmp_path):
    """Where no line of the model's asked for it; the run of a file stops where the two meet."""

    def model(x, y):
        return torch.cat([x, y[::2]], 1)

    shapes = ({0: "n"}, {0: "m"})
    path = tmp_path / "m.nnef.tgz"
    program = ir.export(model, (torch.randn(4, 3), torch.randn(8, 2)), target="nnef", dynamic_shapes=shapes, path=path)
    with pytest.raises(ir.RefusedError, match=r"does not compute cat at n=4, m=6: Sizes of tensors must match"):
        program(torch.randn(4, 3), torch.randn(6, 2))
    with pytest.raises(ir.ExportError, match=r"Invalid range"):
        open_artifact(path)(torch.randn(4, 3), torch.randn(6, 2))


def test_a_branch_that_is_not_taken_asks_nothing():
    """tract computes both; torch's own refuses a source of another size where it is written, and there alone."""

    def model(x, y, p):
        def written(x, y):
            return x.slice_scatter(y, 0, 1, 3)

        return torch.cond(p.sum() > 0, written, lambda x, y: x.clone(), (x, y))

    one, x = torch.ones(1), torch.randn(6)
    shapes = ({0: "a"}, {0: "b"}, {})
    program = ir.export(model, (x, torch.randn(2), one), target="nnef", dynamic_shapes=shapes)
    for size in (1, 3):
        assert torch.equal(program(x, torch.randn(size), -one), x)
        with pytest.raises(ir.RefusedError, match=r"slice_scatter takes operands of these sizes"):
            program(x, torch.randn(size), one)


def test_sizes_that_tract_cannot_tell_to_be_one_are_refused_with_the_line():
    def model(x):
        return torch.where(x.narrow(0, 0, x.shape[0] // 2) > 2, x, 1).diagonal(0, 0, 1).diagonal(0, 0, 1)

    program = ir.export(model, torch.ones(3, 5, 2), target="nnef", dynamic_shapes=({0: "B"},))
    with pytest.raises(
        ir.RefusedError, match=r"(?s)tract cannot tell that the sizes .* are one.*at .*test_failures.py:\d+"
    ):
        program(torch.ones(3, 5, 2))


def test_numbers_that_differ_are_no_refusal():
    """A document whose numbers contradict each other is wrong, and is not to be told as a limit of tract."""
    failures = Failures(ir.export(torch.nn.ReLU(), torch.ones(2), target="nnef").artifact)
    assert failures.unlike_sizes(RuntimeError("output_facts: 5*n should be equal to 5")) != ""
    assert failures.unlike_sizes(RuntimeError("output_facts: 4 should be equal to 5")) == ""
