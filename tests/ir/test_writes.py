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


def test_a_write_through_one_row_of_an_expanded_tensor():
    """All rows lie in one place, so that the write goes there and not into a row of its own."""

    def fn(x):
        y = x.clone()
        rows = y.expand(3, 4)
        rows[2].add_(1)
        return y, rows * 2

    x = torch.randn(4)
    for ours, theirs in zip(run(ir.check(ir.capture(fn, (x,))), x), fn(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_nothing_reads_again_is_not_put_back():
    def write(x, read):
        y = x * 2
        y[0].add_(1)
        return y if read else x + 1

    graphs = [ir.capture(lambda x, read=read: write(x, read), (torch.ones(3, 2),)) for read in (True, False)]
    assert [sum(n.op == "aten::select_scatter" for n in g.nodes) for g in graphs] == [1, 0]


def test_a_size_without_room_for_what_is_written_is_refused():
    def fn(x):
        y = x.clone()
        y[:2] = 1.0
        return y

    graph = ir.capture(fn, (torch.randn(5),), dynamic_shapes=({0: "n"},))
    conditions = [n for n in graph.nodes if n.op == "ir::require"]
    assert [str(n.args["condition"]) for n in conditions] == ["2 <= n"]
    with pytest.raises(ir.RefusedError, match="writes inside of the tensor only where"):
        Conditions(graph).check([torch.ones(1)])
    Conditions(graph).check([torch.ones(2)])
    assert not any(n.op == "ir::require" for n in ir.capture(fn, (torch.randn(5),)).nodes)


def test_a_size_that_torch_takes_for_one_may_be_none():
    """torch.export fixes the piece at 1; of no rows it is empty, and torch's own program runs on."""

    def square(x):
        piece = torch.tensor_split(x, (1, 2))[0]
        return piece @ piece.mT

    def fill(x):
        piece = torch.diag_embed(x[: x.shape[0] // 2, 0])
        piece.diagonal().fill_(2.0)
        return piece + 1

    graph = ir.check(ir.capture(square, (torch.randn(3, 1),), dynamic_shapes=({0: "n"},)))
    assert graph.outputs[0].type.shape == (1, 1)
    for x in (torch.randn(3, 1), torch.randn(0, 1)):
        torch.testing.assert_close(run(graph, x), [square(x)], rtol=0, atol=0)
    for sizes, op in ((({0: "n"},), "aten::diagonal_scatter"), (None, "aten::reshape")):
        graph = ir.capture(fill, (torch.randn(3, 1),), dynamic_shapes=sizes)
        assert [n.op for n in graph.nodes][-2:] == [op, "aten::add"]


class Unseen(torch.nn.Module):
    """Writes that nobody else sees: in place on what an op has just made."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.act, self.drop = torch.nn.Hardswish(inplace=inplace), torch.nn.Dropout(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.conv(x)))
        y = torch.nn.functional.relu(self.norm(y) + y, inplace=self.act.inplace)
        return self.drop(y.flatten(1))


@pytest.mark.parametrize("saved", [False, True])
def test_what_nobody_else_sees_is_not_observed(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("ir.importer.fx_importer.observe", None)
    x, graphs = torch.randn(2, 3, 8, 8), []
    for inplace in (True, False):
        shapes = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},)}
        torch.manual_seed(0)
        program = torch.export.export(Unseen(inplace).eval(), (x,), **shapes)
        if saved:
            torch.export.save(program, tmp_path / "m.pt2")
        graph = ir.capture(tmp_path / "m.pt2" if saved else program)
        nodes = [n for n in graph.nodes if n.op != "aten::_assert_scalar"]  # what torch noted of sizes differs
        graphs.append([(n.op, {k: v for k, v in n.args.items() if k != "self"}.keys()) for n in nodes])
        if not saved:  # the sizes that a file asserts are not interpreted
            torch.testing.assert_close(run(graph, x)[0], program.module()(x), rtol=1e-5, atol=1e-6)
    assert graphs[0] == graphs[1]


SEEN: dict[str, Callable[[Tensor], object]] = {
    "read again": lambda x: ((y := x * 2).relu_(), y + 1),
    "read by its old name": lambda x: (y := x * 2, y.relu_(), y * 1)[2],
    "a view from before": lambda x: (y := x * 2, v := y[1:], y.relu_(), v * 1)[3],
    "a view of its result": lambda x: (y := (x * 2).relu_(), v := y.view(-1), v.add_(1), y * 1)[3],
    "an input": lambda x: x.relu_() + 1,
    "an input's view": lambda x: x.view(-1).relu_() + 1,
    "another type": lambda x: (x * 2).gt_(0.5),
    "a wider operand": lambda x: (x * 2).add_(x.double()),
    "another order": lambda x: x.mul(2).t().contiguous().t().contiguous().add_(x).view(-1),
    "strides of the operand": lambda x: torch.empty_like(x.t()).fill_(1).t().mul_(x.t().contiguous().t()).view(-1),
    "strides of the result": lambda x: (x.t() * 2).cumsum_(0).as_strided((12,), (1,), 0),
    "itself": lambda x: (y := x * 2).mul_(y),
    "its own view": lambda x: (y := x + 2).sub_(y.flip(0)),
    "a chain": lambda x: (x * 2).relu_().add_(1).mul_(x),
    "in one branch of two": lambda x: (x.exp().neg_(), (y := x.exp()) + y.relu_()),
}


@pytest.mark.parametrize("fn", SEEN.values(), ids=SEEN)
def test_who_sees_a_write(fn):
    x = torch.randn(3, 4)
    graph = ir.check(ir.capture(fn, (x.clone(),)))
    results = [t for t in torch.utils._pytree.tree_leaves(fn(x.clone())) if isinstance(t, Tensor)]
    for ours, theirs in zip(run(graph, x.clone()), results, strict=False):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_who_reads_the_old_name_sees_the_write():
    """torch gives a tensor the name of the last write to it; another maker of graphs need not."""
    x = torch.randn(3, 4)

    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).relu_() + 1

    program = torch.export.export(Twice(), (x,))
    made, _, read = (n for n in program.graph.nodes if n.op == "call_function")
    read.args = (made, 1)
    torch.testing.assert_close(run(ir.capture(program), x)[0], Twice()(x), rtol=0, atol=0)


def test_a_conjugate_is_not_what_it_is_of():
    x = torch.randn(3, dtype=torch.complex64)
    graph = ir.capture(lambda x: torch.conj_physical(x) * 2, (x,))
    torch.testing.assert_close(run(graph, x)[0], x.conj() * 2)
