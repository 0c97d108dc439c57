"""The child process of tract: interrupts at any moment, processes that are stopped, forks. No answer is another's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ir
from ir.temporary import sweep
from nnef_backend.errors import TractTimeout
from nnef_backend.format import archive
from nnef_backend.format.document import Document, Expr, Operation
from nnef_backend.runtime import tract as runtime
from nnef_backend.runtime.child import Process, Watchdog

INTERRUPTS = """
import os, random, signal, sys, threading, time
import numpy as np
from nnef_backend.runtime import tract as runtime
paths, count = sys.argv[1:3], int(sys.argv[3])
signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
random.seed(7)
worker = runtime.Worker()
programs, hits, calls = {}, 0, 0

def call(factor, path):
    global calls
    value = float(random.randrange(1000))
    if path not in programs:
        programs[path] = worker.load(path)
    (got,) = programs[path].run([np.full(random.randrange(1, 60_000), value, np.float32)])
    assert (got == factor * value).all(), f"{got[0]} for {factor * value}"
    calls += 1

while hits < count:
    if hits % 2:  # where a start takes longer than a second calls are met too, and none has the answer of another
        call(2, paths[0])
    # after most interrupts the process starts anew, which takes about as long
    timer = threading.Timer(random.random(), os.kill, (os.getpid(), signal.SIGINT))
    until = time.monotonic() + 10  # Python drops an interrupt that meets a finalizer: then there is another
    try:
        timer.start()
        while time.monotonic() < until:
            for factor, path in zip((2, 3), paths):
                call(factor, path)
    except KeyboardInterrupt:
        hits += 1
    timer.join()
print(hits, calls, worker.generation)
"""


def scaled(factor: float) -> Document:
    document = Document(extensions=["tract_registry tract_core", "tract_symbol S"], inputs=["x"], outputs=["y"])
    shape = {"shape": [Expr("S")], "datum_type": "f32"}
    document.operations.append(Operation(("x",), "tract_core_external", (), shape))
    document.operations.append(Operation(("y",), "mul", ("x", factor)))
    return document


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    return archive.write(scaled(2.0), tmp_path / "doubled")


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_no_interrupt_gives_the_answer_of_another_call(tmp_path: Path, doubled: Path, count: int) -> None:
    tripled = archive.write(scaled(3.0), tmp_path / "tripled.tgz")
    arguments = [sys.executable, "-c", INTERRUPTS, str(doubled), str(tripled), str(count)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    hits, calls, starts = map(int, done.stdout.split())
    assert hits == count and starts > count // 4 and calls >= count // 2


def test_an_interrupt_while_the_process_starts(doubled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process says that it is ready; whoever does not hear it must not take that for an answer."""
    from nnef_backend.runtime import child

    read, heard = child.protocol.read_frame, []

    def interrupted(stream):
        heard.append(stream)
        if len(heard) == 1:
            raise KeyboardInterrupt
        return read(stream)

    monkeypatch.setattr(child.protocol, "read_frame", interrupted)
    with runtime.Worker() as worker:
        with pytest.raises(KeyboardInterrupt):
            worker.load(doubled)
        assert not worker.alive
        program = worker.load(doubled)
        for value in range(5):
            assert program.run([np.float32([value])])[0].tolist() == [2 * value]


def test_a_process_that_is_stopped_is_given_up_and_said_so(doubled: Path) -> None:
    with runtime.Worker() as worker:
        program = worker.load(doubled)
        program.timeout = 0.5
        assert worker._process is not None
        worker._process.send_signal(signal.SIGSTOP)
        with pytest.raises(TractTimeout, match=r"took more than 0\.5 s.*timeout="):
            program.run([np.float32([1])])
        program.timeout = 60
        assert program.run([np.float32([1])])[0].tolist() == [2]
    assert runtime.load(doubled).timeout == 600


def waiting() -> Process:
    return Process([sys.executable, "-c", "input()"], None, os.environ)


def test_the_watchdog_lets_those_in_time_go_on() -> None:
    watchdog = Watchdog()
    processes = [waiting() for _ in range(2)]
    watchdog.arm(processes[0], 60)
    watchdog.disarm()
    watchdog.arm(processes[1], 0.1)  # sooner than what its thread sleeps for
    assert processes[1].wait() == -signal.SIGKILL
    watchdog.disarm()
    assert watchdog.expired
    watchdog.arm(processes[0], None)
    assert processes[0].alive and not watchdog.expired
    processes[0].stdin.close()
    assert processes[0].wait() == 1


def test_an_interrupt_leaves_no_lock_taken() -> None:
    """Once at each step that Python's own code takes in the main thread: what comes next neither waits nor misses."""
    watchdog, process = Watchdog(), waiting()

    def use() -> None:
        watchdog.arm(process, 60)
        assert process.alive
        watchdog.disarm()
        watchdog.arm(process, 30)
        watchdog.disarm()

    step = 0
    while interrupted_at(step, use):
        step += 1
    assert step > 20
    watchdog.arm(process, 0.01)
    assert process.wait() == -signal.SIGKILL


def interrupted_at(step: int, work: Callable[[], None]) -> bool:
    """Do the work with a KeyboardInterrupt at the given one of its lines, calls and returns; False if it has fewer."""
    left = [step]

    def trace(frame: Any, event: str, arg: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def _in_a_fork(program, value, pipe) -> None:
    pipe.send(program.run([np.float32([value])])[0].tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_starts_one_of_its_own(doubled: Path) -> None:
    program = runtime.load(doubled)
    assert program.run([np.float32([1])])[0].tolist() == [2]
    ends = []
    context = multiprocessing.get_context("fork")
    held = threading.Event()
    done = threading.Event()

    def hold() -> None:  # a thread that is in the middle of a call when the process forks
        with program.worker.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    for value in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=_in_a_fork, args=(program, value, theirs))
        process.start()
        ends.append((process, ours, value))
    done.set()
    thread.join()
    assert program.run([np.float32([50])])[0].tolist() == [100]
    for process, ours, value in ends:
        assert ours.poll(60) and ours.recv() == [2 * value]
        process.join(60)
        assert process.exitcode == 0
    assert program.run([np.float32([7])])[0].tolist() == [14]


OPEN = """
import time, torch, ir
program = ir.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),), target="nnef")
program.runner
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_a_killed_process_leaves_its_folder_to_the_next(number: str, tmp_path: Path, monkeypatch) -> None:
    """What bears such a name and is not surely left by a process of this machine that is gone stays as it is."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        for _ in range(2)
    ]
    try:
        assert [p.stdout.readline() for p in processes] == [b"ready\n"] * 2
        killed, lives = processes
        killed.send_signal(getattr(signal, number))
        killed.wait()
        (left,) = (f for f in tmp_path.glob("nnef-*") if (f / ".ir.lock").read_text().startswith(f"{killed.pid} "))
        (kept,) = set(tmp_path.glob("nnef-*")) - {left}
        others = [tmp_path / f"nnef-{n}" for n in ("a1b2c3d4", *(f"{i:016x}" for i in range(4)))]
        notes = [None, None, "", f"{killed.pid} another machine\n", "my notes"]
        for folder, note in zip(others, notes, strict=True):
            folder.mkdir()
            if note is not None:
                (folder / ".ir.lock").write_text(note)
        sweep.cache_clear()
        program = ir.export(torch.nn.ReLU(), (torch.ones(2),), target="nnef")
        assert program.runner and set(tmp_path.glob("nnef-*")) == {kept, *others, program.runner._folder.path}
        assert (kept / "model" / "graph.nnef").is_file() and lives.poll() is None
    finally:
        for process in processes:
            process.kill()
            process.communicate()
