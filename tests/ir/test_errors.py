"""Errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ir.errors import causes
from ir.importer.refusals import in_transform
from ir.words import near_ops


def test_what_errors_came_from_may_be_a_circle():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert list(causes(first)) == [first, second] and list(causes(None)) == []


def test_names_of_ops_are_proposed_that_are_near():
    known = ["aten::conv_transpose3d", "aten::softmax", "mine::gelu_fast"]
    assert near_ops("aten::cross_entropy_loss", known) == ()
    assert near_ops("aten::sofmax", known) == ("aten::softmax",)
    assert near_ops("other::gelu_fast", known) == ("mine::gelu_fast",)


def failing(*_: Any) -> Any:
    raise ValueError("of the model")


class Failing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return failing(x)


X = torch.ones(2)
TRANSFORMS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: getattr(torch.func, name)(failing)(X) for name in  # type: ignore[misc]
       ("grad", "grad_and_value", "vmap", "jacrev", "jacfwd", "hessian", "functionalize")},
    "vjp": lambda: torch.func.vjp(failing, X),
    "jvp": lambda: torch.func.jvp(failing, (X,), (X,)),
    "linearize": lambda: torch.func.linearize(failing, X),
}  # fmt: skip
# They run nothing, or a module as it is.
OTHERS = {"functional_call", "stack_module_state", "replace_all_batch_norm_modules_", "rearrange", "debug_unwrap"}


def test_every_transform_of_torch_is_tried() -> None:
    public = {n for n in torch.func.__all__ if callable(getattr(torch.func, n))}
    assert TRANSFORMS.keys() == public - OTHERS


@pytest.mark.parametrize("name", TRANSFORMS)
def test_an_error_in_a_transform_is_told_from_others(name: str) -> None:
    with pytest.raises(ValueError, match="of the model") as raised:
        TRANSFORMS[name]()
    assert in_transform(raised.value)


def test_an_error_of_a_module_that_is_called_is_in_no_transform() -> None:
    with pytest.raises(ValueError, match="of the model") as raised:
        torch.func.functional_call(Failing(), {}, (X,))
    assert not in_transform(raised.value)
