"""`ir run` and `ir bench`: every target's files, from arrays or from their own signatures."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import ir
from ir.cli import main
from ir.opened import Port, extent
from ir.opening import open_artifact
from ir.types import DType

FILES = {"onnx": "net.onnx", "nnef": "net.nnef.tgz", "khronos": "net.tar", "eager": "net.pt2"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(2, 4)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, ids, x):
        return self.linear(self.words(ids) + x), x.sum()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One model as a file of each target, and what it computes."""
    folder = tmp_path_factory.mktemp("run")
    net, args = Net().eval(), (torch.tensor([[0, 1, 1]]), torch.randn(1, 3, 4))
    dynamic = {"ids": {1: "length"}, "x": {1: "length"}}
    for target, name in FILES.items():
        static = target == "khronos"
        model = torch.nn.Linear(4, 3) if static else net  # the standard has no words to look up
        given = (torch.randn(2, 4),) if static else args
        ir.export(model, given, target=target, path=folder / name, dynamic_shapes=None if static else dynamic)
    np.save(folder / "x.npy", args[1].numpy())
    np.savez(folder / "all.npz", ids=args[0].numpy(), x=args[1].numpy())
    np.save(folder / "wide.npy", args[1].double().numpy())
    (folder / "text.npy").write_text("mine")
    with torch.no_grad():
        return folder, net(*args)


@pytest.fixture
def call(files, monkeypatch, capsys):
    monkeypatch.chdir(files[0])
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        with pytest.raises(SystemExit) as end:
            main(line.split())
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_file_runs_on_arrays(call, files, tmp_path, target):
    _, (expected, total) = files
    code, out, err = call(f"run {FILES[target]} --input all.npz -o {tmp_path / 'out.npz'}")
    assert (code, err) == (0, "") and "float32[1, 3, 3]" in out
    with np.load(tmp_path / "out.npz") as made:
        first, second = (made[name] for name in made.files)
    assert np.allclose(first, expected, atol=1e-5) and np.allclose(second, total, atol=1e-5)


def test_what_a_run_reads_is_not_written_over(call, files, tmp_path):
    """By whatever name, and before it runs: the sizes that are given do not fit."""
    source = files[0] / "all.npz"
    before, kept = source.read_bytes(), (files[0] / "net.pt2").read_bytes()
    (tmp_path / "link.npz").symlink_to(source)
    (tmp_path / "hard.npz").hardlink_to(source)
    (tmp_path / "file.npz").hardlink_to(files[0] / "net.pt2")
    for output in ("all.npz", "./all.npz", *(str(tmp_path / n) for n in ("link.npz", "hard.npz", "file.npz"))):
        code, out, err = call(f"run net.pt2 --input all.npz --size none=3 -o {output}")
        assert (code, out) == (2, "") and "is read by this run" in err and err.count("\n") == 1
    assert call("run net.pt2 --input x=x.npy -o x.npy")[0] == 2
    assert (source.read_bytes(), (files[0] / "net.pt2").read_bytes()) == (before, kept)
    assert (tmp_path / "link.npz").is_symlink()


@pytest.mark.parametrize("target", FILES)
def test_a_file_runs_on_random_inputs_of_its_signature(call, target):
    code, out, _ = call(f"run {FILES[target]} --json" + (" -t khronos" if target == "khronos" else ""))
    found = json.loads(out)
    assert code == 0 and all(o["min"] <= o["mean"] <= o["max"] for o in found["outputs"])
    assert call(f"run {FILES[target]} --json --seed 0" + (" -t khronos" if target == "khronos" else ""))[1] == out


def test_sizes_of_random_inputs(call):
    code, out, _ = call("run net.onnx --size length=5 -i x=float32[1,length,4]")
    assert code == 0 and "float32[1, 5, 3]" in out and "length=5" in out


def test_files_are_timed_in_turns(call):
    code, out, _ = call("bench net.onnx net.nnef.tgz net.pt2 --runs 5 --warm-up 1 --threads 1 --size length=4 --json")
    found = json.loads(out)
    assert code == 0 and [t["file"] for t in found] == ["net.onnx", "net.nnef.tgz", "net.pt2"]
    assert all(t["calls"] == 5 and 0 < t["p50"] <= t["p90"] <= t["p99"] and t["threads"] == 1 for t in found)
    assert all(4 in t["sizes"].values() for t in found)
    code, out, _ = call("bench net.onnx --runs 2")
    assert code == 0 and "p99" in out and "length=16" in out


WRONG = {
    "run": (2, "Missing argument 'ARTIFACT'"),
    "run nowhere.onnx": (2, "nowhere.onnx: no such file"),
    "run text.npy": (2, "no installed target reads files of this name"),
    "run net.onnx -t onx": (2, "there is no target 'onx'; did you mean onnx?"),
    "run net.pt2 -t onnx": (1, "onnxruntime does not load"),
    "run net.onnx -i nowhere.npy": (2, "nowhere.npy: no such file"),
    "run net.onnx -i text.npy": (2, "write it with numpy.save"),
    "run net.onnx -i x": (2, "write [NAME=]FILE.npy"),
    "run net.onnx -i x=wide.npy": (2, "x is float64[1, 3, 4], and the file takes float32[1, length, 4]"),
    "run net.onnx -i y=x.npy": (2, "the file takes ids, x"),
    "run net.onnx -i x=x.npy -i x=x.npy": (2, "'x' is given twice"),
    "run net.onnx -i x.npy -i x.npy -i x.npy": (2, "3 are given, and the file takes ids, x"),
    "run net.onnx --size l=3": (2, "the file's dynamic dimensions are length"),
    "run net.onnx --size length": (2, "write NAME=NUMBER"),
    "run net.onnx -o out.txt": (2, "call it out.npz"),
    "run net.onnx -o text.npz": (2, "is no .npz and stays as it is"),
    "run net.onnx --threads 0": (2, "--threads"),
    "bench": (2, "Missing argument 'ARTIFACTS...'"),
    "bench net.onnx --runs 0": (2, "--runs"),
    "bench net.onnx nowhere.onnx": (2, "nowhere.onnx: no such file"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_told_in_one_message(call, files, line):
    (files[0] / "text.npz").write_text("mine")
    before = {p.name: p.stat().st_mtime_ns for p in files[0].iterdir()}
    code, out, err = call(line)
    wanted, text = WRONG[line]
    assert (code, out) == (wanted, "") and text in err and "Traceback" not in err
    assert {p.name: p.stat().st_mtime_ns for p in files[0].iterdir()} == before


def test_sizes_that_files_declare():
    assert extent("2*batch + 1", {"batch": 3}) == 7 and extent("length//2", {"length": 9}) == 4
    assert Port("x", DType.float32, ("2*b", 3, "c")).symbols == {"b", "c"}
    with pytest.raises(ir.ExportError, match=r"'max\(b, 2\)' cannot be computed"):
        extent("max(b, 2)", {"b": 3})


def test_from_python(files):
    folder, (expected, _) = files
    program = open_artifact(folder / "net.onnx")
    with np.load(folder / "all.npz") as held:
        made = program(*(torch.from_numpy(held[p.name]) for p in program.inputs))
    assert torch.allclose(made[0], expected, atol=1e-5) and str(program.inputs[1]) == "float32[1, length, 4]"


def test_a_target_that_opens_nothing_says_so(tmp_path):
    from tests.ir.toy import Toy

    sys.modules.pop("nothing", None)
    with pytest.raises(ir.ExportError, match="opens no files"):
        Toy().open(tmp_path)
