"""Outlining: modules become calls, the same call the same graph, and what cannot be a call stays."""

from __future__ import annotations

import torch
from torch import nn

import ir
from ir.graph import Node, Origin, Value
from ir.passes.checks import drop_checks
from ir.passes.outline import outline
from tests.ir.interpret import run


class Block(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), scale

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale + x


def calls(graph):
    return [n for n in graph.nodes if n.op == "ir::call"]


def outlined(model, *inputs, classes=None, **options):
    graph = ir.capture(model, inputs, **options)
    made = ir.check(outline(graph, classes))
    for a, b in zip(run(graph, *inputs), run(made, *inputs), strict=True):
        assert torch.equal(a, b)
    return made


X = torch.randn(3, 4)


def test_blocks_of_one_class_share_a_graph_with_the_weights_as_operands():
    made = outlined(nn.Sequential(Block(), Block(), Block(3.0)), X)
    first, second, third = calls(made)
    assert len(made.nodes) == 3
    assert first.args["graph"] is second.args["graph"] is not third.args["graph"]
    assert first.args["graph"].name == "tests.ir::Block"
    assert [v.name for v in first.args["graph"].inputs] == ["input", "linear.weight", "linear.bias"]
    assert [n.op for n in first.args["graph"].nodes] == ["ir::call", "aten::relu", "aten::mul", "aten::add"]


def test_negative_zero_and_zero_are_different_constants():
    made = outlined(nn.Sequential(Block(0.0), Block(-0.0)), X)
    assert len({n.args["graph"] for n in calls(made)}) == 2


def test_only_some_classes():
    made = outlined(nn.Sequential(Block(), nn.Tanh()), X, classes=["Block"])
    assert [n.op for n in made.nodes] == ["ir::call", "aten::tanh"]
    assert len(calls(calls(made)[0].args["graph"])) == 0


def test_a_module_called_again_is_two_calls_of_one_graph():
    block = Block()
    made = outlined(nn.Sequential(block, nn.Tanh(), block), X, classes=["Block"])
    assert len({n.args["graph"] for n in calls(made)}) == 1 and len(calls(made)) == 2


def test_a_call_whose_nodes_stand_apart_stays():
    graph = ir.capture(nn.Sequential(Block(), nn.Tanh()), (X,))
    top = dict([next(iter(graph.nodes[0].origin.modules.items()))])
    alien = Node("aten::tanh", {"self": graph.inputs[0]}, (Value("alien", graph.inputs[0].type),), Origin("", "", top))
    apart = graph.replace(nodes=(*graph.nodes[:2], alien, *graph.nodes[2:]))  # as a pass might leave it
    made = ir.check(outline(apart))
    assert [n.op for n in made.nodes][:5] == ["ir::call", "aten::relu", "aten::tanh", "aten::mul", "aten::add"]


def test_a_node_without_a_place_belongs_to_its_neighbours():
    class Writes(nn.Module):
        def forward(self, x):
            y = x * 2
            y[:, 0] = 1.0  # the importer puts in the scatter
            return y + 1

    made = outlined(nn.Sequential(Writes(), nn.Tanh()), X)
    assert [n.args["graph"].name for n in calls(made)] == [
        "tests.ir.test_passes_outline::Writes",
        "torch.nn.modules::Tanh",
    ]


def test_a_call_that_finds_out_a_size_stays():
    class Nonzero(nn.Module):
        def forward(self, x):
            return torch.nonzero(x > 0)

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.find, self.linear = Nonzero(), nn.Linear(2, 3)

        def forward(self, x):
            return self.linear(self.find(x) * 1.0)

    graph = ir.check(outline(drop_checks(ir.capture(Uses(), (X,)))))
    assert [n.op for n in graph.nodes] == ["aten::gt", "aten::nonzero", "aten::mul", "ir::call"]


def test_mutated_buffers_come_out_of_the_call():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(x.sum())
            return x * self.count

    made = outlined(nn.Sequential(Counter(), Block()), X)
    assert len(calls(made)) == 2 and list(made.updates) == ["0.count"]
    assert set(made.updates.values()) <= set(calls(made)[0].outputs)
