"""`ir diff`: models and artifacts of any target, by structure and numbers."""

from __future__ import annotations

import json

import pytest
import torch

import ir
from ir.cli import main

MODELS = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=4, relu=True, bias=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, width)
        with torch.no_grad():
            self.linear.bias += bias
        self.relu = relu

    def forward(self, x):
        y = self.linear(x)
        return y.relu() if self.relu else y.tanh().relu()

def net():
    return Net().eval()

def tanh():
    return Net(relu=False).eval()

def shifted():
    return Net(bias=0.5).eval()

def wide():
    return Net(width=5).eval()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("diff")
    (place / "diff_models.py").write_text(MODELS)
    names = {}
    exec(MODELS, names)
    given, dynamic = (torch.randn(2, 4),), ({0: "batch"},)
    for target, suffix in (("onnx", "onnx"), ("nnef", "nnef.tgz"), ("eager", "pt2")):
        for model in ("net", "tanh", "shifted", "wide"):
            if target == "onnx" or model == "net":
                path = place / f"{model}.{suffix}"
                ir.export(names[model](), given, target=target, path=path, dynamic_shapes=dynamic)
    ir.export(names["net"](), given, target="onnx", path=place / "static.onnx")
    ir.export(torch.nn.Linear(3, 4), (torch.randn(2, 3),), target="onnx", path=place / "other.onnx")
    return place


@pytest.fixture
def call(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def run(line):
        with pytest.raises(SystemExit) as end:
            main(line.split())
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize("other", ["net.onnx", "net.nnef.tgz", "net.pt2"])
def test_files_of_any_targets_compute_the_same(call, other):
    code, out, _ = call(f"diff net.onnx {other} --size batch=3")
    assert code == 0 and "numbers: output float32[3, 4] at batch=3" in out


def test_a_model_beside_its_file(call):
    code, out, _ = call("diff diff_models:net net.nnef.tgz -i x=float32[batch,4]")
    assert code == 0 and "max error" in out and "which are not compared" in out
    code, out, _ = call("diff net.pt2 diff_models:net -i x=float32[2,4]")
    assert code == 1 and "the input x is float32[batch, 4] and float32[2, 4]" in out
    assert "float32[2, 4]: the same" in out


def test_other_operations(call):
    code, out, _ = call("diff net.onnx tanh.onnx")
    assert code == 1 and "operations: Tanh: 0 in the first, 1 in the second" in out and "elements differ" in out


def test_other_nodes_and_weights_of_two_graphs(call):
    code, out, _ = call("diff diff_models:net diff_models:tanh -i x=float32[batch,4]")
    assert code == 1 and "+(top): tanh() f32[batch, 4]" in out and "weights:" not in out
    code, out, _ = call("diff diff_models:net diff_models:shifted -i x=float32[batch,4]")
    assert code == 1 and "weights: linear.bias f32[4] differs by 0.5 at most" in out and "operations" not in out


def test_other_numbers_within_a_tolerance(call):
    code, out, _ = call("diff net.onnx shifted.onnx --json")
    found = json.loads(out)
    assert code == 1 and found["different"] and found["operators"] == {} and found["numbers"][0]["error"] > 0.1
    assert call("diff net.onnx shifted.onnx --atol 1")[0] == 0


def test_other_outputs_and_inputs(call):
    code, out, _ = call("diff net.onnx wide.onnx")
    assert code == 1 and "the output output is float32[batch, 4] and float32[batch, 5]" in out
    code, out, _ = call("diff net.onnx static.onnx")
    assert code == 1 and "the input x is float32[batch, 4] and float32[2, 4]" in out and "output float32[2, 4]" in out
    code, out, _ = call("diff net.onnx other.onnx")
    assert code == 1 and "not compared, since they take different inputs" in out


def test_a_named_size_of_an_input_is_the_fixed_one_of_a_file(call):
    code, out, _ = call("diff static.onnx diff_models:net --input x=float32[batch,4]")
    assert code == 1 and "numbers: output float32[2, 4]: " in out


def test_a_size_that_an_input_says_beside_a_name_is_taken(call):
    _, out, _ = call("run net.onnx --input x=float32[rows:5,4]")
    assert "float32[5, 4]" in out
    code, _, err = call("run static.onnx --input x=float32[rows:5,4]")
    assert code == 2 and "--input x is float32[5, 4], and the file takes float32[2, 4]" in err
    code, _, err = call("run net.onnx --input x=float32[rows]")
    assert code == 2 and "--input x has 1 size, and the file takes float32[batch, 4]" in err


WRONG = {
    "diff net.onnx": (2, "Missing argument 'SECOND'"),
    "diff net.onnx nowhere.onnx": (2, "nowhere.onnx: no such file; give an artifact"),
    "diff net.onnx diff_models:nothing": (2, "diff_models has no 'nothing'"),
    "diff net.onnx diff_models:net": (2, "say them: --input"),
    "diff net.onnx net.onnx --size b=2": (2, "the file's dynamic dimensions are batch"),
    "diff net.onnx net.onnx --atol=-1": (2, "--atol"),
    "diff net.onnx diff_models.py": (1, "no installed target reads files of this name"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_told_in_one_message(call, line):
    code, out, err = call(line)
    wanted, text = WRONG[line]
    assert (code, out) == (wanted, "") and text in err and "Traceback" not in err


@pytest.mark.parametrize("pair", ["spectrum.onnx spectrum.pt2", "spectrum.pt2 spectrum.nnef.tgz"])
def test_complex_numbers_are_pairs_in_some_files(call, folder, pair):
    class Spectrum(torch.nn.Module):
        def forward(self, z):
            return z * (1 + 2j), z.abs()

    for suffix in pair.split():
        target = {"onnx": "onnx", "pt2": "eager", "tgz": "nnef"}[suffix.rpartition(".")[2]]
        given = (torch.randn(2, 4, dtype=torch.complex64),)
        ir.export(Spectrum(), given, target=target, path=folder / suffix, dynamic_shapes=({0: "b"},))
    code, out, err = call(f"diff {pair}")
    assert (code, err) == (0, "") and "interface" not in out
    assert "numbers: output_0 complex64[1, 4] at b=1: " in out


def test_names_of_dynamic_sizes_make_no_node_differ(tmp_path, capsys):
    class Flat(torch.nn.Module):
        def forward(self, x):
            return x.relu().reshape(x.shape[0] * 2, -1)

    for name in ("batch", "rows"):
        path = tmp_path / f"{name}.pt2"
        ir.export(Flat(), (torch.randn(3, 4),), target="eager", dynamic_shapes=({0: name},), path=path)
    with pytest.raises(SystemExit) as done:
        main(["diff", str(tmp_path / "batch.pt2"), str(tmp_path / "rows.pt2"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert done.value.code == 0 and not found["nodes"]
