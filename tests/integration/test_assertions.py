"""What a model asserts of its data: every target raises, with the model's own words or with the condition.

PYTEST_DONT_REWRITE: the models' own assertions are read by torch.
"""

from __future__ import annotations

import pytest
import torch

import ir

X = torch.randn(3)


def called(x):
    torch._assert(x.sum() < 100, "the sum is too large")
    torch._assert((x < 100).all(), "one is too large")
    return x + 1


def stated(x):
    assert x.sum() < 100, "the sum is too large"
    return x + 1


def unsaid(x):
    assert x.sum() < 100
    return x + 1


def checked(x):
    torch._check((x.sum() < 100).item(), lambda: "the sum is too large")
    return x + 1


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (called, "the sum is too large"),
        (stated, "the sum is too large"),
        (unsaid, r"the model checks that sum\(x\) < 100"),
        (checked, r"the model checks that sum\(x\) < 100"),
    ],
)
def test_what_does_not_hold_is_said(model, said, target):
    program = ir.export(model, (X,), target=target, verify=True)
    torch.testing.assert_close(program(X), X + 1)
    with pytest.raises(Exception, match=said):
        program(X.abs() + 1000)


def test_torch_has_its_own_assertion_again():
    own = torch._assert
    ir.capture(called, (X,))
    assert torch._assert is own
