"""`ir reduce` of what ends its process or does not end: each trial is a process of its own, forked or started anew."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import ir
from ir.debug import child, spawned
from ir.debug.child import Trials
from ir.debug.search import Verdict


def aborts(h, self):
    os.abort()


def hangs(h, self):
    while True:
        time.sleep(1)


def wrong(h, self):
    return h.emit("Neg", self)


def ends(code: int) -> None:
    os._exit(code)


def model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(2, 4),)


@pytest.fixture(params=["forked", "started anew"])
def way(request, monkeypatch):
    monkeypatch.setattr(child, "FORKS", request.param == "forked")


def test_a_handler_that_ends_the_process(tmp_path):
    path = tmp_path / "reduced.py"
    found = ir.debug.reduce(ir.capture(*model()), target="onnx", handlers={"aten::tanh": aborts}, path=path)
    assert (found.verdict.kind, found.verdict.what, found.nodes) == ("crash", "SIGABRT", ("aten::tanh",)), found
    assert [p.name for p in found.paths] == ["reduced_ir.py"] and "tanh" in found.ir_script


def test_a_handler_that_does_not_end():
    start = time.monotonic()
    found = ir.debug.reduce(ir.capture(*model()), target="onnx", handlers={"aten::tanh": hangs}, seconds=24)
    assert (found.verdict.kind, found.nodes) == ("hang", ("aten::tanh",)) and not found.script, found
    assert time.monotonic() - start < 60


def test_a_runtime_that_ends_the_process(tmp_path):
    """onnxruntime takes the lowest integer modulo -1: its process gets SIGFPE, and so does the script's."""

    def divides(h, self):
        none = h.cast(h.emit("Sub", self, self), ir.DType.int64)
        lowest, minus_one = (h.emit("Add", none, h.const(n, ir.DType.int64)) for n in (-(2**63), -1))
        return h.cast(h.emit("Mod", lowest, minus_one), ir.DType.float32)

    graph = ir.capture(*model())
    path = tmp_path / "reduced.py"
    found = ir.debug.reduce(graph, target="onnx", handlers={"aten::tanh": divides}, path=path, seconds=30)
    assert (found.verdict.kind, found.verdict.what, found.nodes) == ("crash", "SIGFPE", ("aten::tanh",)), found
    done = subprocess.run([sys.executable, path], capture_output=True)
    assert done.returncode == -8 and "Mod" in found.script and not found.note


def test_a_document_on_which_tract_aborts(tmp_path):
    """tract panics at an integer by zero: its process gets SIGABRT, and so does the script's."""

    def divides(h, self):
        none = h.cast(h.emit("sub", self, self), ir.DType.int64)
        return h.cast(h.emit("div", none, none), ir.DType.float32)

    graph, path = ir.capture(*model()), tmp_path / "reduced.py"
    found = ir.debug.reduce(
        graph, target="nnef", handlers={"aten::tanh": divides}, metadata=True, path=path, seconds=30
    )
    assert (found.verdict.kind, found.verdict.what, found.nodes) == ("crash", "SIGABRT", ("aten::tanh",)), found
    assert "divide by zero" in found.verdict.text and "div(" in found.script and not found.note
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == -6 and "divide by zero" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_wrong_number_where_processes_are_started_anew(monkeypatch):
    monkeypatch.setattr(child, "FORKS", False)
    graph = ir.capture(*model())
    found = ir.debug.reduce(graph, target="onnx", handlers={"aten::tanh": wrong})
    assert found.verdict.kind == "mismatch" and found.nodes == ("aten::tanh",) and "Neg" in found.script
    with pytest.raises(ir.ExportError, match="functions of a module that can be imported"):
        ir.debug.reduce(graph, target="onnx", handlers={"aten::tanh": lambda h, self: self})


def test_a_process_answers_until_it_ends(way):
    trials = Trials({"shared": 3})
    assert trials.run(60, len, trials.shared[0]) == 1
    assert trials.run(60, ends, 9).same(Verdict("crash", "exit code 9"))
    assert trials.run(0.5, time.sleep, 60).kind == "hang"
    assert trials.run(60, int, "x").same(Verdict("error", "ValueError"))
    assert trials.run(60, int, "3") == 3 and trials.count == 5
    trials.close()


class Stuck(nn.Module):
    def forward(self, x):
        while torch.compiler.is_exporting():
            time.sleep(0.1)
        return torch.relu(x)


@pytest.mark.slow
def test_what_lies_beside_is_not_run_where_processes_are_started_anew(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    worker = spawned.Worker(())
    assert worker.ask(60, abs, -1) == 1 and not (tmp_path / "ran").exists()
    worker.end()


def test_a_model_that_torch_export_does_not_finish(tmp_path):
    block = nn.Sequential(nn.Linear(4, 4), Stuck())
    start = time.monotonic()
    found = ir.debug.reduce(
        nn.Sequential(nn.Linear(4, 4), block), (torch.randn(2, 4),), path=tmp_path / "r.py", seconds=6
    )
    assert found.verdict.kind == "hang" and found.module == "1.1" and "Stuck" in found.note
    assert "torch.export.export" in found.script and time.monotonic() - start < 120
