"""Wrong uses from Python, each told in one sentence with the way out; the command line's stand in test_cli*.py."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ir
from onnx_backend import Onnx


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale=None, *, flag=True):
        y = self.linear(x)
        return y if scale is None else y * scale


M = Net().eval()
X = torch.randn(2, 4)
S = torch.randn(2, 1)

# What is written, the error's class, and its sentence.
EXPORTS = {
    "a class for a model": (lambda: ir.export(Net, (X,)), ir.CaptureError, "Net is a class: give an instance of it"),
    "a state dict": (lambda: ir.export(M.state_dict(), (X,)), ir.CaptureError, "load it by model.load_state_dict"),
    "a number for a model": (lambda: ir.export(3, (X,)), ir.CaptureError, "cannot capture an int: give an nn.Module"),
    "a file that is not there": (lambda: ir.export("no.pt2", (X,)), ir.CaptureError, "no.pt2: no such file"),
    "no arguments": (lambda: ir.export(M), ir.CaptureError, "takes (x, scale=None, *, flag=True): missing a required"),
    "an argument's name": (lambda: ir.export(M, (X,), {"scal": S}), ir.CaptureError, "'scal'; did you mean scale?"),
    "too many arguments": (lambda: ir.export(M, (X, X, X)), ir.CaptureError, "too many positional arguments"),
    "an array": (lambda: ir.export(M, (X.numpy(),)), ir.CaptureError, "numpy array: give torch.from_numpy(x)"),
    "a dict of arguments": (lambda: ir.export(M, {"x": X}), TypeError, "give a tensor, or the arguments as a tuple"),
    "a path for kwargs": (lambda: ir.export(M, (X,), "x.onnx"), TypeError, "a file is named by path="),
    "a size that does not fit": (lambda: ir.export(M, (S,)), ir.CaptureError, "must have same reduction dim"),
    "axes without an argument": (
        lambda: ir.export(M, (X,), dynamic_shapes={0: "b"}), ir.CaptureError, "give {'x': {0: 'b'}}"),
    "an axis as text": (
        lambda: ir.export(M, (X,), dynamic_shapes={"x": {"0": "b"}}), ir.CaptureError, "give its number, {0: 'batch'}"),
    "a name of a size that is no word": (
        lambda: ir.export(M, (X,), dynamic_shapes={"x": {0: "my batch"}}), ir.CaptureError, "write a word, 'my_batch'"),
    "an axis that is not there": (
        lambda: ir.export(M, (X,), dynamic_shapes={"x": {7: "b"}}), ir.CaptureError, "whose axes are 0 to 1"),
    "another argument's shape": (
        lambda: ir.export(M, (X,), dynamic_shapes={"xs": {0: "b"}}), ir.CaptureError, "did you mean x?"),
    "torch.onnx's list of axes": (
        lambda: ir.export(M, (X,), dynamic_shapes={"x": [0, 1]}), ir.CaptureError, "name them, x={0: 'x_0', 1: 'x_1'}"),
    "a name for all shapes": (
        lambda: ir.export(M, (X,), dynamic_shapes="batch"), ir.CaptureError, "give a dict by argument"),
    "a size that the code fixes": (
        lambda: ir.export(M, (X,), dynamic_shapes=({1: "n"},)), ir.CaptureError, "the axis 1 of x is 4 whatever comes"),
    "an option's name": (lambda: ir.export(M, (X,), opst=18), TypeError, "did you mean opset?"),
    "another target's option": (
        lambda: ir.export(M, (X,), target="nnef", opset=18), TypeError, "neither ir.export nor its target 'nnef'"),
    "torch.onnx's f": (lambda: ir.export(M, (X,), f="x.onnx"), TypeError, "give path="),
    "torch.onnx's dynamic_axes": (
        lambda: ir.export(M, (X,), dynamic_axes={"x": [0]}), TypeError, "give dynamic_shapes="),
    "a target's name": (lambda: ir.export(M, (X,), target="onx"), ir.PluginError, "did you mean onnx?"),
    "a target in capitals": (lambda: ir.export(M, (X,), target="ONNX"), ir.PluginError, "did you mean onnx?"),
    "a runtime for a target": (lambda: ir.export(M, (X,), target="tract"), ir.PluginError, "did you mean nnef?"),
    "several targets": (
        lambda: ir.export(M, (X,), target=["onnx", "nnef"]), ir.PluginError, "ir.export(graph, target=...) for each"),
    "Ultralytics' half": (lambda: ir.export(M, (X,), half=True), TypeError, "give dtype='float16'"),
    "Optimum's atol": (lambda: ir.export(M, (X,), atol=1e-3), TypeError, "program.verify(atol=...)"),
    "torch-to-nnef's path": (lambda: ir.export(M, (X,), file_path_export="x.tgz"), TypeError, "give path="),
    "a word for external data": (
        lambda: ir.export(M, (X,), external_data="yes"), ValueError, "True, False, None or 'reference'"),
    "a function that is elsewhere": (lambda: ir.load("x.onnx"), AttributeError, "ir.opening.open_artifact(path)"),
    "a function's name": (lambda: ir.exprot(M, (X,)), AttributeError, "did you mean export?"),
    "an op without a namespace of its own": (
        lambda: ir.custom_op("swish")(lambda x: x), ValueError, "write 'namespace::name'"),
    "a target's class": (lambda: ir.export(M, (X,), target=Onnx), TypeError, "Onnx is a class: give one of it"),
    "verify as a word": (lambda: ir.export(M, (X,), verify="yes"), ValueError, """verify='yes': True, False or"""),
    "an old opset": (lambda: ir.export(M, (X,), opset=9), ValueError, "opset 9: 13 to"),
    "an opset as text": (lambda: ir.export(M, (X,), opset="18"), TypeError, "give a whole number, 13 to"),
    "an op's name in handlers": (
        lambda: ir.export(M, (X,), handlers={"aten::liner": print}), ValueError, "did you mean aten::linear"),
    "a handler that is none": (
        lambda: ir.export(M, (X,), handlers={"aten::linear": 3}), TypeError, "give a function (h, *arguments)"),
    "an op without a namespace": (
        lambda: ir.export(M, (X,), handlers={"linear": print}), ValueError, "write 'namespace::name'"),
    "a plugin's name": (
        lambda: ir.export(M, (X,), plugins=["no_such_plugin"]), ir.PluginError,
        "plugin no_such_plugin (explicit) could not be imported"),
    "one plugin without a list": (lambda: ir.export(M, (X,), plugins="mine"), ir.PluginError, "give a list of modules"),
    "too many names": (
        lambda: ir.export(M, (X,), input_names=["a", "b"]), ir.CaptureError, "2 names for 1 of the model's tensors"),
    "one name without a list": (lambda: ir.export(M, (X,), input_names="x"), ir.CaptureError, "give a list of names"),
    "a file's name": (lambda: ir.export(M, (X,), path="net.txt"), ir.OutputError, "call it net.onnx"),
    "a folder that is not there": (lambda: ir.export(M, (X,), path="no/net.onnx"), ir.OutputError, "no"),
    "a report without a name": (lambda: ir.export(M, (X,), report=True), TypeError, "report='report.md'"),
    "a report's name": (lambda: ir.export(M, (X,), report="report.txt"), ir.OutputError, "call it report.md"),
    "somebody's file for a report": (
        lambda: ir.export(M, (X,), report="mine.md"), ir.OutputError, "is no report of an export and stays as it is"),
}  # fmt: skip


@pytest.mark.parametrize("use", EXPORTS)
def test_a_wrong_export(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.md").write_text("mine")
    call, kind, text = EXPORTS[use]
    with pytest.raises(kind, match=re.escape(text)):
        call()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]


CALLS = {
    "nothing": (lambda p: p(), "x and scale are missing"),
    "one too few": (lambda p: p(X), "scale is missing"),
    "one too many": (lambda p: p(X, X, scale=S), "it takes 1 by position, scale by name"),
    "another name": (lambda p: p(X, scal=S), "it has no argument 'scal'; did you mean scale?"),
    "by name what was by position": (lambda p: p(x=X, scale=S), "x is given by position, as at the capture"),
    "a list for a tensor": (lambda p: p([X], scale=S), "made for (*, scale=*) and is called with ([*], scale=*)"),
    "None for a tensor": (lambda p: p(None, scale=S), "stands where the model was captured with a tensor"),
    "another type": (lambda p: p(X.double(), scale=S), "the input x is float64[2, 4]"),
    "another size": (lambda p: p(torch.randn(2, 5), scale=S), "the input x is float32[2, 5]"),
    "text": (lambda p: p("x", scale=S), "the argument 'x' stands where"),
}


@pytest.fixture(scope="module")
def program():
    return ir.export(M, (X,), {"scale": S}, dynamic_shapes={"x": {0: "b"}, "scale": {0: "b"}})


@pytest.mark.parametrize("use", CALLS)
def test_a_wrong_call_of_a_program(program, use):
    call, text = CALLS[use]
    with pytest.raises(ir.ExportError, match=re.escape(text)) as caught:
        call(program)
    assert len(str(caught.value).splitlines()) == 1
    assert np.isfinite(program(X, scale=S).numpy()).all()


def test_a_report_says_what_was_done(tmp_path):
    place = tmp_path / "report.md"
    ir.export(M, (X,), path=tmp_path / "net.onnx", verify=True, report=place, opset=18, dynamic_shapes=({0: "batch"},))
    text = place.read_text()
    said = ("options opset=18: done", "captured by torch.export, non-strict", "`batch`: from 0", "`aten::linear`")
    for part in (*said, "| float32 | 2 | 15 | 60 B |", "## Compared with torch", "| torch |", "| onnxruntime |"):
        assert part in text, part


def test_a_report_says_what_was_refused(tmp_path):
    place = tmp_path / "report.md"
    for _ in range(2):  # the second takes the first one's place
        with pytest.raises(ir.UnsupportedOpsError):
            ir.export(torch.linalg.eigvals, (torch.randn(3, 3),), path=tmp_path / "net.onnx", report=place)
    text = place.read_text()
    assert "options none: refused." in text and "| `aten::linalg_eigvals` | 1 |  | missing |" in text
    assert "UnsupportedOpsError: target 'onnx' cannot express" in text and "## Versions" in text
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]


def test_notebooks_show_tables(program):
    report = program.verify()._repr_html_()
    assert "<td>b=2</td><td>float32[2, 3]</td>" in report and "captured by torch.export" in report
    shown = ir.export(M, (X,), {"scale": S}, dynamic_shapes={"x": {0: "b"}, "scale": {0: "b"}})._repr_html_()
    assert "<td>aten::linear</td>" in shown and "not compared with torch" in shown
    assert "<td>f32[b, 4]</td>" in program.graph._repr_html_()
