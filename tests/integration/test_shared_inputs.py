"""Inputs that share memory, where the model writes to one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ir


class Added(torch.nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b


class Read(torch.nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


SHARED: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "one_tensor": lambda x: (x[0], x[0]),
    "another_name": lambda x: (x[0], x[0].view(2, 3)),
    "some_elements": lambda x: (x.view(-1)[:6].view(2, 3), x.view(-1)[3:9].view(2, 3)),
}
APART: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "rows": lambda x: (x[0], x[1]),
    "every_second": lambda x: (x.view(2, 3, 2)[..., 0], x.view(2, 3, 2)[..., 1]),
    "a_copy": lambda x: (x[0], x[0].clone()),
}


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_write_to_shared_memory_is_refused(target: str) -> None:
    program = ir.export(Added(), (torch.ones(2, 3), torch.ones(2, 3)), target=target)
    for make in SHARED.values():
        with pytest.raises(ir.RefusedError, match="the inputs a and b share memory, and the model writes to a"):
            program(*make(torch.ones(2, 2, 3)))
    for make in APART.values():
        torch.testing.assert_close(program(*make(torch.ones(2, 2, 3))), torch.full((2, 3), 2.0))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_what_is_only_read_may_be_shared(target: str) -> None:
    program = ir.export(Read(), (torch.ones(2, 3), torch.ones(2, 3)), target=target)
    for make in (*SHARED.values(), *APART.values()):
        torch.testing.assert_close(program(*make(torch.ones(2, 2, 3))), torch.ones(2, 3))
