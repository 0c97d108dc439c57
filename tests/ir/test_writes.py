"""Writes through views, interpreted: what the graph computes is what torch leaves in the tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ir
from ir.conditions import Conditions
from tests.ir.interpret import run


def numbered(view: Tensor) -> Tensor:
    """Numbers of the view's shape, no two alike."""
    return torch.arange(view.numel(), dtype=view.dtype).reshape(view.shape) + 100


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "permute": lambda y: y.permute(2, 0, 1),
    "permute of a slice": lambda y: y[:, 1:].permute(1, 2, 0),
    "slice of a permute": lambda y: y.permute(2, 0, 1)[1:, :, ::2],
    "transpose": lambda y: y.transpose(0, 2),
    "steps": lambda y: y[1:, ::2, 1:3],
    "view": lambda y: y.view(6, 4)[2:],
    "flatten of a slice": lambda y: y[1].flatten()[3:9],
    "unsqueeze": lambda y: y.unsqueeze(1)[:, 0, 1:],
    "select": lambda y: y.select(1, -1),
    "diagonal": lambda y: y.diagonal(1, 0, 2),
    "split": lambda y: y.split([1, 2], 1)[1],
    "unbind": lambda y: y.unbind(2)[1],
    "unflatten": lambda y: y.unflatten(2, (2, 2))[..., 1, :],
    "narrow of movedim": lambda y: y.movedim(0, 2).narrow(0, 1, 2),
    "as_strided": lambda y: y.as_strided((2, 3), (12, 4), 1),
    "squeeze": lambda y: y[:, :1].squeeze(1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_write_through_a_view(view):
    def fn(x):
        y = x.clone()
        older = y[1:]
        view(y).copy_(numbered(view(y)))
        view(y).mul_(2)
        return y, older, view(y) + 1

    x = torch.randn(2, 3, 4)
    graph = ir.check(ir.capture(fn, (x,)))
    for ours, theirs in zip(run(graph, x), fn(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_size_without_room_for_what_is_written_is_refused():
    def fn(x):
        y = x.clone()
        y[:2] = 1.0
        return y

    graph = ir.capture(fn, (torch.randn(5),), dynamic_shapes=({0: "n"},))
    conditions = [n for n in graph.nodes if n.op == "ir::require"]
    assert [str(n.args["condition"]) for n in conditions] == ["(-n + 2) <= 0"]
    with pytest.raises(ir.RefusedError, match="has a place for what is written only where"):
        Conditions(graph).check([torch.ones(1)])
    Conditions(graph).check([torch.ones(2)])
    assert not any(n.op == "ir::require" for n in ir.capture(fn, (torch.randn(5),)).nodes)
