"""Sizes that are less than 0 in the trace, at sizes of the inputs that torch.export does not trace for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir

TARGETS = ["onnx", "nnef", "eager"]
X = torch.randn(12, 2)


def of_a_slice(x: Tensor) -> Any:
    return x * 2, x[1:].shape[0]


def of_a_slice_in_a_sum(x: Tensor) -> Any:
    return x.sum() + x[:-1].shape[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [of_a_slice, of_a_slice_in_a_sum])
def test_the_size_of_a_slice_of_nothing_is_0(model: Callable[[Tensor], Any], target: str) -> None:
    """In the trace it is `n - 1`."""
    with pytest.warns(UserWarning, match=r"the program refuses these\n  n - 1 >= 0 is True"):
        program = ir.export(model, X, target=target, dynamic_shapes=({0: "n"},), verify=True)
    torch.testing.assert_close(program(X[:1]), model(X[:1]))
    with pytest.raises(ir.RefusedError, match=r"where n - 1 >= 0 is True .*, and does something else"):
        program(X[:0])


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_a_number_of_the_model_may_be_less_than_0(target: str) -> None:
    def model(x: Tensor) -> Any:
        return x[1:] * 2, x.shape[0] - 1

    program = ir.export(model, X, target=target, dynamic_shapes=({0: "n"},), verify=True)
    torch.testing.assert_close(program(X[:0]), model(X[:0]))


@pytest.mark.parametrize("target", TARGETS)
def test_torch_makes_no_tensor_of_such_a_size(target: str) -> None:
    def model(x: Tensor) -> Tensor:
        return x.new_zeros(2 * x.shape[0] - 7)

    program = ir.export(model, X, target=target, dynamic_shapes=({0: "n"},))
    assert program(X[:4]).shape == (1,)
    for n in (0, 1, 3):
        with pytest.raises(RuntimeError if target == "eager" else ir.RefusedError, match=r"negative dimension"):
            program(X[:n])


def test_an_axis_that_is_expanded_to_one_less_than_0() -> None:
    """-1 keeps the axis in torch; a number of the same expression is what it is."""

    def model(x: Tensor) -> Any:
        n = 2 * x.shape[0] - 1
        return x.sum().reshape(1, 1).expand(n, 1), n

    program = ir.export(model, X, target="onnx", dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(X[:1]), model(X[:1]))
    with pytest.raises(ir.RefusedError, match=r"expand does not hold at n=0, where a size is less than 0\n  at "):
        program(X[:0])


def test_an_eager_step_that_fails_at_a_small_size_is_torchs_own_program() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        filled = torch.ldexp(torch.ones(3), x)  # in memory of three elements, of which none are left
        filled.as_strided((2,), (1,)).fill_(1.0)
        return filled

    args = torch.ones(4, 3, dtype=torch.int64), torch.zeros(2)
    program = ir.export(model, args, target="eager", dynamic_shapes=({0: "n"}, None))
    written = torch.zeros(2)
    assert program(args[0][:0], written).shape == (0, 3)
    assert written.tolist() == [1, 1]


def test_nothing_is_repeated_a_number_of_times_below_0() -> None:
    """tract counts down from it without end."""

    def model(x: Tensor) -> Tensor:
        return x.repeat(x.shape[0] - 1, 1)

    program = ir.export(model, X, target="nnef", dynamic_shapes=({0: "n"},), verify=True)
    assert program(X[:0]).shape == (0, 2)
    torch.testing.assert_close(program(X[:3]), model(X[:3]))


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_number_that_is_no_size(target: str) -> None:
    """torch asserts that there are at most so many times 2**63 of them."""

    def model(x: Tensor) -> Tensor:
        return x[x.sum(1) > 0].nonzero()

    program = ir.export(model, X, target=target, dynamic_shapes=({0: "n"},))
    assert torch.equal(program(X), model(X))
