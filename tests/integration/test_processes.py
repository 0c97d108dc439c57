"""Programs and graphs for other threads and processes: pickle, copies, captures from many threads."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading

import pytest
import torch
from torch import nn

import ir
from ir import locks

FILES = {"onnx": "m.onnx", "nnef": "m.nnef.tgz", "eager": "m.pt2"}


class Model(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.first, self.norm, self.scale = nn.Linear(4, 3), nn.BatchNorm1d(3), scale
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        y = self.norm(torch.relu(self.first(x)))
        y[:, 0] = 0
        return {"y": y * self.scale + self.calls, "sizes": torch.nn.functional.silu(y).sum(1)}


X = torch.randn(2, 4)


def exported(target, path=None):
    model = Model().eval()
    model.norm.running_mean.uniform_(-1, 1)
    return ir.export(model, (X,), target=target, path=path, dynamic_shapes=({0: "batch"},))


def in_threads(work, count):
    """`work(0)`, `work(1)`, ... side by side, to their ends."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(t.is_alive() for t in threads), "a thread waits for ever"


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("other", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy])
def test_programs_are_pickled_and_copied(target, on_disk, other, tmp_path):
    program = exported(target, tmp_path / FILES[target] if on_disk else None)
    again = other(program)
    x = torch.randn(5, 4)
    assert same(again(x), program(x))
    again.verify()
    assert again.graph.symbols == program.graph.symbols
    again.save(tmp_path / f"again.{FILES[target]}")
    again.verify()


def test_a_file_that_is_gone_is_not_missed(tmp_path):
    program = exported("onnx", tmp_path / "m.onnx")
    expected, packed = program(X), pickle.dumps(program)
    (tmp_path / "m.onnx").unlink()
    assert same(pickle.loads(packed)(X), expected)


def test_what_a_call_left_in_an_eager_program_goes_along():
    program = exported("eager")
    program(X)
    assert same(pickle.loads(pickle.dumps(program))(X), program(X))


@pytest.mark.parametrize("other", [lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy])
def test_graphs_are_pickled_and_copied(other):
    graph = ir.capture(Model().eval(), (X,), dynamic_shapes=({0: "batch"},))
    again = other(graph)
    assert str(again) == str(graph)
    for target in FILES:
        ir.export(again, target=target, verify=True)


def test_a_graph_out_of_a_file_is_read_from_it_again(tmp_path):
    program = torch.export.export(Model().eval(), (X,), dynamic_shapes=({0: torch.export.Dim("b")},))
    torch.export.save(program, tmp_path / "model.pt2")
    graph = ir.capture(tmp_path / "model.pt2", dynamic_shapes=({0: "batch"},))
    packed = pickle.dumps(graph)
    assert len(packed) < 100_000 and str(pickle.loads(packed)) == str(graph)
    ir.export(pickle.loads(packed), target="eager", verify=True)
    (tmp_path / "model.pt2").unlink()
    with pytest.raises(ir.CaptureError, match="no such file"):
        pickle.loads(packed)


def test_a_handler_without_a_name_is_told():
    program = ir.export(
        nn.ReLU(), (X,), target="eager", handlers={"aten::relu": lambda h, self: h.emit(torch.relu, self)}
    )
    for use in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="define it at the top of a module"):
            use(program)


def test_eight_threads_capture_and_export_at_once():
    failed = []

    def work(number):
        try:
            target = list(FILES)[number % len(FILES)]
            dynamic = {"dynamic_shapes": ({0: "batch"},)}
            assert ir.export(Model(number).eval(), (X,), target=target, verify=True, **dynamic).report.ok
        except BaseException as error:
            failed.append(error)

    in_threads(work, 8)
    assert not failed, failed


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_threads_share_a_program(target):
    program = ir.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (X,), target=target, dynamic_shapes=({0: "b"},))
    wrong = []

    def work(number):
        for size in range(1, 20):
            x = torch.full((size, 4), float(number))
            if not torch.allclose(program(x), program(x[:1]).expand(size, 4), atol=1e-6):
                wrong.append(number)

    in_threads(work, 6)
    assert not wrong


def in_another_process(pipe, program, x):
    torch.set_num_threads(1)  # as in torch's own workers: its threads do not survive a fork
    pipe.send({name: t.tolist() for name, t in program(x).items()})
    program.verify()
    pipe.send(program.report.ok)


WAYS = [(how, on_disk) for how in ("fork", "spawn") for on_disk in (False, True)]


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize(
    ("how", "on_disk"),
    [
        pytest.param(*way, marks=pytest.mark.slow if way == ("spawn", True) else ())
        for way in WAYS
        if way[0] in multiprocessing.get_all_start_methods()
    ],
)
def test_a_live_program_in_another_process(target, on_disk, how, tmp_path):
    """One that has run in this: the other process has the object, not its threads, its pipes and its memory."""
    program = exported(target, tmp_path / FILES[target] if on_disk else None)
    x = torch.randn(5, 4)
    program(x)
    expected = {name: t.tolist() for name, t in copy.deepcopy(program)(x).items()}
    context = multiprocessing.get_context(how)
    ours, theirs = context.Pipe()
    process = context.Process(target=in_another_process, args=(theirs, program, x), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(120) and ours.recv() == expected
    assert ours.poll(120) and ours.recv()
    process.join(60)
    assert process.exitcode == 0
    assert {name: t.tolist() for name, t in program(x).items()} == expected


def captures(pipe):
    torch.set_num_threads(1)
    try:
        pipe.send(len(ir.capture(nn.ReLU(), (X,)).nodes))
    except ir.ExportError as error:
        pipe.send(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_while_another_thread_captures():
    held, over = threading.Event(), threading.Event()

    def hold():
        with locks._TORCH:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=captures, args=(theirs,), daemon=True)
    process.start()
    over.set()
    thread.join()
    assert ours.poll(60) and ours.recv() == 1
    process.join(60)
