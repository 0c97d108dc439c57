"""What a run says that stops: the condition, or which of the model's operations onnxruntime failed in, and its line."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.opening import open_artifact

X = torch.randn(6)


def positive(x):
    torch._assert_async((x > 0).all(), "x is to be positive")
    return x * 2


FAILING = {  # what is said of the second arguments
    "aten::index.Tensor": (lambda x, i: x[i.long()], (X, torch.tensor([1.0, 2])), (X[:1], torch.tensor([1.0, 2]))),
    "aten::topk": (lambda x, y: x.topk(y.shape[0])[0], (X, X[:3]), (X, X.repeat(2))),
    "aten::masked_scatter": (lambda x, v: x.masked_scatter(x > -9, v), (X, X + 1), (X, X[:3])),
    "aten::index_put": (lambda x, v: x.index_put((x > 0,), v), (torch.tensor([1.0, -1, 2]), X[:2]), (X.abs(), X[:2])),
}


def exported(function, example, **options):
    sizes = tuple({0: f"n{i}"} for i, _ in enumerate(example))
    return ir.export(function, example, target="onnx", dynamic_shapes=sizes, **options)


@pytest.mark.parametrize("op", FAILING)
def test_the_operation_that_fails_is_named_and_not_a_small_size(op, tmp_path):
    """Nothing in these models is another at a size of 1: that is not said to be the cause."""
    function, good, bad = FAILING[op]
    path = tmp_path / "model.onnx"
    program = exported(function, good, path=path, metadata=True)
    torch.testing.assert_close(program(*good), function(*good))
    line = rf"\n  in {op} at .*test_failures\.py:\d+"
    with pytest.raises(ir.ExportError, match=line) as caught:
        program(*bad)
    assert "sizes from 2 on" not in str(caught.value)
    with pytest.raises(ir.ExportError, match=line):
        open_artifact(path)(*bad)


def test_what_is_asserted_has_its_line():
    with pytest.raises(ir.RefusedError, match=r"x is to be positive\n  at .*test_failures\.py:\d+"):
        exported(positive, (X.abs(),))(-X.abs())


def test_a_condition_without_a_line_says_nothing_of_it():
    def longer(x, y):
        torch._check(x.shape[0] > y.shape[0])
        return x.sum() + y

    with pytest.raises(ir.RefusedError, match="n0 > n1") as caught:
        exported(longer, (X, X[:3]))(X, X)
    assert "unknown" not in str(caught.value)
