"""Sizes that give another rank, or another number of results, than the graph has: torch's own program runs there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ir
from eager_backend import Eager

DYNAMIC = ({0: "n"},)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.squeeze(),
        lambda x: x.squeeze(0).sum(-1) + 1,
        lambda x: x.squeeze((0, 1)).view(x.shape[0], 4) * 2,
        lambda x: (x[:, None].squeeze(), x.shape[0], None, x.squeeze().relu() + x.exp()),
        lambda x: x.chunk(3)[0],
        lambda x: torch.split(x, 2)[1],
        lambda x: torch.cat([x, x[:1]]).view(-1) + 1,
        lambda x: x[-2:][:-1].reshape(-1) * 2,
        lambda x: torch.cat([x, x, x[:1]]).chunk(3)[1].squeeze() * 2,
        lambda x: (y := x[:, :1] * 2, y.diagonal().fill_(1))[0],
        lambda x: (y := x[:, :3] * 2, y.mT.ravel().mul_(3))[0],
        lambda x: x[:, :1].diagonal().chunk(2)[0] * 2,
    ],
    ids=["all", "one", "view", "results", "chunk", "split", "first", "last", "pieces", "diagonal", "ravel", "of none"],
)
def test_as_torch(fn):
    program = ir.export(fn, (torch.randn(5, 4),), target="eager", dynamic_shapes=DYNAMIC)
    module = program.graph.context.program.module()
    for size in (1, 5, 2, 0, 7):
        x = torch.randn(size, 4)
        try:
            expected = module(x)
        except Exception:  # torch's own program has no such piece
            continue
        torch.testing.assert_close(program(x), expected, rtol=0, atol=0, check_stride=True)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, x, y):
        self.total.add_(x.sum(0))
        self.calls.add_(1)
        y.mul_(2)
        return self.linear(x).squeeze(0), self.total


def test_writes_and_new_weights_are_the_program_s_own():
    model = Counted().eval()
    shapes = ({0: "n"}, {})
    program = ir.export(model, (torch.randn(5, 4), torch.ones(3)), target="eager", dynamic_shapes=shapes)
    twin = copy.deepcopy(model)
    twin.linear.weight.data.mul_(3)
    program.artifact.load_state_dict(twin.state_dict())
    for size in (5, 1, 2, 1):
        x, y, z = torch.randn(size, 4), torch.ones(3), torch.ones(3)
        (result, total), updates = program.run(x, y)
        expected = twin(x, z)
        torch.testing.assert_close((result, total, y), (*expected, z), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(updates, {"total": twin.total, "calls": twin.calls, "y": z})
        total.zero_()  # a result is nobody's state
    assert not model.total.any()


def test_another_element_type_is_refused_there():
    program = ir.export(
        lambda x: x.squeeze(), (torch.randn(5, 4),), target=Eager(dtype="bfloat16"), dynamic_shapes=DYNAMIC
    )
    assert program(torch.randn(2, 4)).shape == (2, 4)
    with pytest.raises(ir.RefusedError, match="capture the model anew"):
        program(torch.randn(1, 4))


def _chunks(x):
    return x.chunk(3, 0)


def _first(x, n):
    i = n.item()
    torch._check(i >= 0)
    torch._check(i <= x.shape[0])
    return x[:i] + 1


def _few(x):
    n = int((x > 0).sum())
    torch._check(n <= 3)
    return x.flatten()[:n]


AUTO = {0: torch.export.Dim.AUTO}
TOLD = {
    "pieces": (_chunks, (torch.ones(6, 2),), (torch.ones(4, 2),), r"s0 == 0\); .*; here s0 is axis 0 of the input x\n"),
    "a number": (
        _first, (torch.ones(8, 2), torch.tensor(3)), (torch.ones(2, 2), torch.tensor(3)),
        "only where u0 <= s0; .*; here s0 is axis 0 of the input x and u0 is the input n\n",
    ),
    "data": (
        _few, (torch.eye(2),), (torch.ones(3, 2),),
        r"only where u0 <= 3; .*; here u0 is the result of aten::sum at .*test_other_ranks.py:\d+\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_condition_is_told_in_the_graphs_names_with_its_line_and_what_they_stand_for(name):
    model, example, other, said = TOLD[name]
    program = ir.export(model, example, target="eager", dynamic_shapes=(AUTO, None)[: len(example)])
    with pytest.raises(ir.RefusedError, match=rf"{said}  at .*test_other_ranks.py:\d+  `") as caught:
        program(*other)
    assert "Runtime assertion" not in str(caught.value) and " on node " not in str(caught.value)


def test_a_name_of_the_users_needs_no_more_words():
    program = ir.export(_chunks, (torch.ones(6, 2),), target="eager", dynamic_shapes=({0: "rows"},))
    with pytest.raises(ir.RefusedError, match=r"rows == 0\); capture the model anew for other sizes\n  at .*`return x"):
        program(torch.ones(4, 2))
