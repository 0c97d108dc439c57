"""Certificates: operators alone, on inputs that models do not see every day."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import ir
from tests.faults import wrapped


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(torch.relu(nn.functional.max_pool2d(self.conv(x), 2))).softmax(-1)


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return ir.capture(Model().eval(), (torch.randn(3, 2, 8, 8),), dynamic_shapes=({0: "batch"},))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_everything_is_tried_once(graph, target):
    first = ir.export(graph, target=target, verify="thorough").certificate
    assert first.ok and len(first.signatures) == 5 and not any(s.cached for s in first.signatures)
    kinds = {t.kind for s in first.signatures for t in s.tried}
    assert kinds == {"random", "ties", "zeros", "nan", "infinities", "extremes", "size 1", "empty"}
    second = ir.export(graph, target=target, verify="thorough").certificate
    assert all(s.cached for s in second.signatures)
    assert [s.tried for s in second.signatures] == [s.tried for s in first.signatures]


def test_a_fault_of_the_runtime_on_odd_numbers_is_listed(graph):
    """onnxruntime's MaxPool skips nan: docs/quirks/onnxruntime.md."""
    found = ir.export(graph, target="onnx", verify="thorough").certificate
    pool = next(s for s in found.signatures if "max_pool2d" in s.text)
    assert next(t for t in pool.tried if t.kind == "nan").differs and "max_pool2d" in str(found)


def test_it_lies_beside_the_file(graph, tmp_path):
    ir.export(graph, target="onnx", verify="thorough", path=tmp_path / "m.onnx")
    said = json.loads((tmp_path / "m.onnx.certificate.json").read_text())
    assert said["ok"] and said["versions"]["torch"] and len(said["signatures"]) == 5


def test_a_fault_that_the_example_does_not_show():
    graph = ir.capture(nn.ReLU(), (torch.rand(3, 4),))
    with pytest.raises(ir.MismatchError, match="relu"):
        ir.export(graph, target="onnx", verify="thorough", handlers={"aten::relu": lambda h, self: self})


def test_own_handlers_are_not_taken_from_the_cache(graph):
    handlers = wrapped("onnx", "aten::relu")
    first = ir.export(graph, target="onnx", verify="thorough", handlers=handlers)
    assert not any(s.cached for s in first.certificate.signatures)


def sign(h, self):
    return h.emit("Sign", self)


def relu(h, self):
    return h.emit("max", self, 0.0)


def amax(h, self, dim=(), keepdim=False):
    return h.emit("ReduceMax", self, h.const(list(dim), ir.DType.int64), keepdims=int(keepdim))


@pytest.mark.parametrize(
    ("target", "model", "handlers"),
    [
        ("onnx", torch.sign, {"aten::sign": sign}),  # Sign of nan is nan, in torch 0
        ("onnx", lambda x: torch.amax(x, 0), {"aten::amax": amax}),  # ReduceMax skips nan on some axes
        ("nnef", torch.relu, {"aten::relu": relu}),  # max drops nan
    ],
)
def test_faults_of_runtimes_that_are_worked_around_are_found_without_that(target, model, handlers, tmp_path):
    """The faults of docs/quirks: the certificate lists them, and a script without ir shows them."""
    graph = ir.capture(model, (torch.randn(4, 16),))
    program = ir.export(graph, target=target, verify=True, handlers=handlers)
    found = program.certify(cached=False).signatures[0]
    assert next(t for t in found.tried if t.kind == "nan").differs
    x = torch.randn(4, 16)
    x[1, ::3] = float("nan")
    reduced = ir.debug.reduce(program, (x,), path=tmp_path / "reduced.py")
    done = subprocess.run([sys.executable, "reduced.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "AssertionError" in done.stderr, done.stderr
    assert len(reduced.script.splitlines()) <= 30 and "nan" in reduced.script
