"""A write that fails or is killed leaves the old files whole and no half ones; large models need no second copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ir

X = torch.randn(1, 64)
OPTIONS = [{"external_data": False}, {"external_data": True}, {"functions": True}]
ids = ["embedded", "external", "functions"]
KILLED = [pytest.param(o, marks=() if o.get("external_data") else pytest.mark.slow) for o in OPTIONS]


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def child(folder, code, **options):
    """A process that exports another model to the same place; what `code` does comes before."""
    script = f"""
import os, signal, sys, time, torch, ir
from tests.onnx.test_faults import X, model
graph = ir.capture(model(1), (X,))
{code}
ir.export(graph, target="onnx", path={str(folder / "m.onnx")!r}, **{options!r})
"""
    command = [sys.executable, "-B", "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
HANG = """
import onnx_backend.format.writer as w
write = w._write_data
def hang(tensor, file):
    write(tensor, file)
    file.flush()
    if file.tell() > 20000:
        print("writing", flush=True)
        time.sleep(600)
w._write_data = hang
"""
BETWEEN = """
replace = os.replace
def hang(a, b):
    replace(a, b)
    print("writing", flush=True)
    time.sleep(600)
os.replace = hang
"""


@pytest.mark.parametrize("options", OPTIONS[2:], ids=ids[2:])  # the others: tests/integration/test_full_disk.py
def test_a_full_disk(tmp_path, options):
    ir.export(model(0), (X,), target="onnx", path=tmp_path / "m.onnx", **options)
    before = files(tmp_path)
    process = child(tmp_path, FULL, **options)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1 and "File too large" in errors
    assert files(tmp_path) == before and len(os.listdir(tmp_path)) == len(before)


@pytest.mark.parametrize("options", KILLED, ids=ids)
def test_killed_in_the_middle(tmp_path, options):
    program = ir.export(model(0), (X,), target="onnx", path=tmp_path / "m.onnx", **options)
    before = files(tmp_path)
    kill(child(tmp_path, HANG, **options))
    assert files(tmp_path) == before
    (left,) = set(os.listdir(tmp_path)) - set(before)
    assert left.startswith(".m.onnx.") and left.endswith(".partial")
    program.verify()
    ir.export(model(1), (X,), target="onnx", path=tmp_path / "m.onnx", verify=True, **options)
    assert left not in os.listdir(tmp_path)  # the next export takes it away


def test_killed_between_the_two_files_of_a_pair(tmp_path):
    """The new data has its place, the new model not yet: the old model still finds its own data."""
    program = ir.export(model(0), (X,), target="onnx", path=tmp_path / "m.onnx", external_data=True)
    before = files(tmp_path)
    kill(child(tmp_path, BETWEEN, external_data=True))
    after = files(tmp_path)
    assert after.keys() - before.keys() == {"m.onnx.1.data"} and {n: after[n] for n in before} == before
    program.verify()
    (tmp_path / "m.onnx.2.data").write_bytes(b"somebody else's")
    again = ir.export(model(1), (X,), target="onnx", path=tmp_path / "m.onnx", external_data=True, verify=True)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.2.data"]
    again.verify()


def test_a_file_that_took_the_place_of_a_killed_process_s_is_left_alone(tmp_path):
    ir.export(model(0), (X,), target="onnx", path=tmp_path / "m.onnx", external_data=True)
    kill(child(tmp_path, BETWEEN, external_data=True))
    (tmp_path / "other").write_bytes(b"somebody else's")  # made while the orphan is there, so it is another file
    os.replace(tmp_path / "other", tmp_path / "m.onnx.1.data")
    ir.export(model(1), (X,), target="onnx", path=tmp_path / "m.onnx", external_data=True, verify=True)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.2.data"]
    assert (tmp_path / "m.onnx.1.data").read_bytes() == b"somebody else's"


def kill(process):
    assert process.stdout.readline() == "writing\n", process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def test_another_process_that_is_still_writing_is_left_alone(tmp_path):
    process = child(tmp_path, HANG)
    assert process.stdout.readline() == "writing\n", process.stderr.read()
    ir.export(model(0), (X,), target="onnx", path=tmp_path / "m.onnx", verify=True)
    assert len(list(tmp_path.glob(".m.onnx.*.partial"))) == 1
    kill_now(process)


def kill_now(process):
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize("options", OPTIONS, ids=ids)
def test_an_error_in_the_middle(tmp_path, options, monkeypatch):
    path = tmp_path / "m.onnx"
    ir.export(model(0), (X,), target="onnx", path=path, **options)
    before = files(tmp_path)
    written = []

    def fails(tensor, file):
        written.append(tensor)
        if len(written) > 1:
            raise OSError(28, "No space left on device")
        file.write(tensor.tobytes())

    monkeypatch.setattr("onnx_backend.format.writer._write_data", fails)
    with pytest.raises(OSError, match="No space left"):
        ir.export(model(1), (X,), target="onnx", path=path, **options)
    assert files(tmp_path) == before and len(os.listdir(tmp_path)) == len(before)


# -- memory ------------------------------------------------------------------------------------------------------------

MEMORY = """
import sys, torch, ir
from pathlib import Path
from torch import nn
folder, count, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def status(field):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) * 1024
ir.export(nn.Linear(4, 4), (torch.randn(1, 4),), target="onnx", path=folder / "warm.onnx")
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))
x = torch.randn(1, width)
graph = ir.capture(model, (x,))
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
program = ir.export(graph, target="onnx", path=folder / "m.onnx", external_data=True)
weights = sum(p.numel() * 4 for p in model.parameters())
print((status("VmHWM") - before) / weights, flush=True)
expected = model(x).detach().numpy()
del model, graph, program
import numpy, onnxruntime
session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
assert numpy.abs(actual - expected).max() <= 1e-4 * numpy.abs(expected).max()
"""


def peak(folder: Path, count: int, width: int) -> float:
    """Peak memory of the export above the loaded model, as a part of the weights; the file runs and equals torch."""
    arguments = [sys.executable, "-c", MEMORY, str(folder), str(count), str(width)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return float(done.stdout.splitlines()[-1])


def test_an_export_needs_no_second_copy_of_the_weights(tmp_path):
    assert peak(tmp_path, 8, 2048) < 0.15  # 134 MB


@pytest.mark.slow
def test_a_model_of_more_than_4_gb(tmp_path):
    assert peak(tmp_path, 65, 4096) < 0.1  # 4.36 GB
    assert (tmp_path / "m.onnx.data").stat().st_size > 4 * 2**30
