"""`ir reduce` of programs with branches and loops."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn

import ir
from tests.faults import wrapped


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return torch.cond(x.sum() > 0, lambda a: torch.softmax(a * 2, 1), lambda a: a.sin(), (y,)) + 1


class Loop(nn.Module):
    def forward(self, x):
        def step(i, a):
            return i + 1, torch.softmax(a, 1) * 2

        return torch._higher_order_ops.while_loop(lambda i, a: i < 3, step, (torch.tensor(0), x))[1]


class Scan(nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.scan(lambda c, r: (c + r, torch.softmax(c * r, 0)), x[0], x)[1]


def captured(model: nn.Module) -> ir.Graph:
    torch.manual_seed(0)
    return ir.capture(model, (torch.rand(3, 8) + 0.1,), dynamic_shapes=({0: "batch"},))


USUAL = {(Branches, "nnef")}


@pytest.mark.parametrize(
    ("model", "target"),
    [
        pytest.param(*way, marks=() if way in USUAL else pytest.mark.slow)
        for way in itertools.product((Branches, Loop, Scan), ("onnx", "nnef", "eager"))
    ],
)
def test_a_fault_within_is_reduced_to_the_node_alone(model, target, tmp_path):
    handlers = wrapped(target, "aten::softmax.int", lambda a: a | {"dim": 1 - a["dim"] if model is not Scan else 0})
    if model is Scan:
        handlers = wrapped(target, "aten::mul.Tensor", lambda a: a | {"other": a["self"]})
    found = ir.debug.reduce(captured(model()), target=target, handlers=handlers, path=tmp_path / "reduced.py")
    assert len(found.nodes) == 1 and found.verdict.kind == "mismatch" and "higher_order" not in found.nodes[0]
    done = subprocess.run([sys.executable, "reduced.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "not close" in done.stderr, done.stderr


def swapped(arguments):
    return arguments | {"true_graph": arguments["false_graph"], "false_graph": arguments["true_graph"]}


def unchanged(arguments):
    body = arguments["body_graph"]
    return arguments | {"body_graph": body.replace(outputs=(body.outputs[0], body.inputs[1]))}


@pytest.mark.parametrize(
    ("model", "op", "change"),
    [
        pytest.param(Branches, "higher_order::cond", swapped, marks=pytest.mark.slow),
        pytest.param(Loop, "higher_order::while_loop", unchanged, marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_the_branch_itself_is_a_script_with_it(model, op, change, tmp_path):
    graph = captured(model())
    found = ir.debug.reduce(graph, target="onnx", handlers=wrapped("onnx", op, change), path=tmp_path / "reduced.py")
    assert found.nodes[-1] == op
    done = subprocess.run([sys.executable, "reduced.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "not close" in done.stderr, done.stderr
    through_ir = subprocess.run([sys.executable, "reduced_ir.py"], capture_output=True, text=True, cwd=tmp_path)
    assert through_ir.returncode == 0, through_ir.stderr  # the fault was planted in this process alone


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8) + 1)

    def forward(self, x):
        return torch._higher_order_ops.map(lambda row, s: torch.softmax(row * s, 0), x, self.scale) + 1


def carried(arguments):
    inner = arguments["combine_graph"]
    return arguments | {"combine_graph": inner.replace(outputs=(inner.outputs[0], inner.inputs[0]))}


def as_it_is(arguments):
    inner = arguments["graph"]
    return arguments | {"graph": inner.replace(outputs=(inner.inputs[0],))}


@pytest.mark.parametrize(
    ("model", "op", "change", "targets"),
    [
        pytest.param(Scan, "higher_order::scan", carried, ("onnx", "nnef"), marks=pytest.mark.slow),
        pytest.param(Mapped, "higher_order::map_impl", as_it_is, ("nnef",), marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_a_loop_over_rows_is_a_script_with_it(model, op, change, targets, tmp_path):
    for target in targets:
        path = tmp_path / target / "reduced.py"
        path.parent.mkdir()
        found = ir.debug.reduce(captured(model()), target=target, handlers=wrapped(target, op, change), path=path)
        assert found.nodes[-1] == op and "higher_order" in found.script, found
        done = subprocess.run([sys.executable, path.name], capture_output=True, text=True, cwd=path.parent)
        assert done.returncode == 1 and "not close" in done.stderr, done.stderr
        through_ir = subprocess.run([sys.executable, "reduced_ir.py"], capture_output=True, text=True, cwd=path.parent)
        assert through_ir.returncode == 0, through_ir.stderr  # the fault was planted in this process alone
