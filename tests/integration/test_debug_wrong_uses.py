"""The debugger called with what it cannot work on: a message that says what to give, at once, and no node accused."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import ir
from ir.cli import main

X = torch.randn(2, 3)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x, scale=None):
        return self.linear(x) if scale is None else self.linear(x) * scale


@pytest.mark.parametrize("call", [ir.debug, ir.debug.reduce, ir.debug.ranges, ir.debug.profile])
def test_a_model_without_arguments_names_them_at_once(call, monkeypatch):
    monkeypatch.setattr(sys.modules["ir.debug.reduce"], "Trials", None)  # no process is started for it
    with pytest.raises(ir.ExportError, match=r"the model takes \(x, scale=None\): missing a required argument: 'x'"):
        call(Scaled())


@pytest.mark.parametrize("call", [ir.debug, ir.debug.reduce])
def test_too_many_arguments_and_shapes_without_names(call):
    with pytest.raises(ir.ExportError, match="too many positional arguments"):
        call(Scaled(), (X, X, X))
    with pytest.raises(ir.ExportError, match="dynamic_shapes names 'y'"):
        call(Scaled(), (X,), dynamic_shapes={"y": {0: "batch"}})


def test_what_torch_itself_fails_on_is_no_refusal_of_torch_export(tmp_path):
    with pytest.raises(ir.ExportError, match="torch itself fails on these arguments: RuntimeError: mat1 and mat2"):
        ir.debug.reduce(Scaled(), (torch.randn(2, 5),), path=tmp_path / "reduced.py")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [ir.debug, ir.debug.reduce])
@pytest.mark.parametrize(
    "given, said",
    [
        (torch.randn(5, 3), r"takes input as float32\[2, 3\], and is given float32\[5, 3\]"),
        (torch.ones(2, 3, dtype=torch.int64), r"is given int64\[2, 3\]"),
        (torch.randn(3), r"is given float32\[3\]"),
    ],
    ids=["size", "type", "rank"],
)
def test_tensors_of_another_shape_are_no_fault_of_a_node(call, given, said):
    program = ir.export(nn.Linear(3, 4), (X,), target="onnx")
    with pytest.raises(ir.ExportError, match=said):
        call(program, (given,))


def test_batches_of_ranges_are_tensors_of_the_program():
    program = ir.export(nn.Linear(3, 4), (X,), target="onnx")
    with pytest.raises(ir.ExportError, match=r"and is given float32\[2, 7\]"):
        ir.debug.ranges(program, [X, torch.randn(2, 7)])
    with pytest.raises(ir.ExportError, match="batches: a list"):
        ir.debug.ranges(program, [{"input": X}])
    with pytest.raises(ValueError, match="'int4' is none of float16, bfloat16"):
        ir.debug.ranges(program).overflows("int4")


@pytest.mark.parametrize(
    "size, said",
    [(-3, "batch=-3 is no size of this program: batch is from 3 to 8"), (9, "from 3 to 8"), ("3", "give an integer")],
)
def test_sizes_out_of_range(size, said):
    args = (torch.randn(4, 3),)
    graph = ir.capture(nn.Linear(3, 4), args, dynamic_shapes=({0: torch.export.Dim("batch", min=3, max=8)},))
    with pytest.raises(ir.ExportError, match=said):
        ir.debug(graph, target="eager", sizes={"batch": size})
    if isinstance(size, int) and size > 0:
        with pytest.raises(ir.ExportError, match=said):
            ir.debug(graph, (torch.randn(size, 3),), target="eager")
    assert ir.debug(graph, (torch.randn(5, 3),), target="eager").ok


def test_names_of_one_size():
    graph = ir.capture(lambda x, y: x + y, (X, X.clone()), dynamic_shapes=({0: "batch"}, {0: "batch"}))
    with pytest.raises(ir.ExportError, match=r"and is given float32\[|one size"):
        ir.debug(graph, (torch.randn(4, 3), torch.randn(5, 3)), target="eager")


@pytest.mark.parametrize("call", [ir.debug, ir.debug.reduce])
@pytest.mark.parametrize("limit", ["a lot", -1, float("nan")])
def test_a_bound_is_a_number(call, limit):
    with pytest.raises(ValueError, match="max_error="):
        call(nn.Linear(3, 4), (X,), max_error=limit)


def test_a_row_that_is_not_there():
    with pytest.raises(KeyError, match="no row of this table has the value 'there'"):
        ir.debug(nn.Linear(3, 4), (X,), target="eager").row("there")


def broken() -> ir.Graph:
    return ir.capture(lambda x: torch.softmax(x, 1) + 1, (X,))


WRONG = {"aten::softmax": lambda h, self, dim, dtype=None: h.emit("Softmax", self, axis=0)}


def test_a_script_takes_the_place_of_no_other_file(tmp_path, monkeypatch):
    model = tmp_path / "model.py"
    model.write_text("# the model itself\n")
    found = ir.debug.reduce(broken(), target="onnx", handlers=WRONG, path=tmp_path / "reduced.py")
    assert len(found.paths) == 2
    again = ir.debug.reduce(broken(), target="onnx", handlers=WRONG, path=tmp_path / "reduced.py")
    assert again.paths == found.paths  # its own it does replace
    monkeypatch.setattr(sys.modules["ir.debug.reduce"], "Trials", None)  # the rest is said before any search
    with pytest.raises(ir.OutputError, match=r"model.py is no script of ir reduce and stays as it is"):
        ir.debug.reduce(broken(), target="onnx", handlers=WRONG, path=model)
    assert model.read_text() == "# the model itself\n"
    with pytest.raises(ir.OutputError, match="nothing can be written there"):
        ir.debug.reduce(broken(), target="onnx", handlers=WRONG, path=tmp_path / "there" / "reduced.py")
    with pytest.raises(ir.OutputError, match=r"call it reduced\.py"):
        ir.debug.reduce(broken(), target="onnx", handlers=WRONG, path=tmp_path / "reduced.txt")


def test_node_data_goes_to_a_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_use_model.py").write_text(
        "import torch\n\ndef model():\n    return torch.nn.ReLU(), torch.ones(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["debug", "wrong_use_model:model", "--node-data", "wrong_use_model.py"])
    assert "is a file; the data for Model Explorer goes to a folder" in capsys.readouterr().err


MODEL = """
import torch

def model():
    return torch.nn.Linear(4, 4), (torch.randn(3, 4),), None, {"input": {0: "batch"}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "wrongly_used.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *words: str) -> str:
    with pytest.raises(SystemExit):
        main(list(words))
    return capsys.readouterr().err


def test_a_profile_has_the_sizes_that_were_asked_for(folder, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(
        sys.modules["ir.debug.profile"], "of_runner", lambda runner, name, inputs, *_: given.extend(inputs)
    )
    ir.debug.profile(
        nn.Linear(4, 4), torch.randn(3, 4), dynamic_shapes=({0: "batch"},), target="eager", sizes={"batch": 9}
    )
    assert [t.shape for t in given] == [(9, 4)]
    assert "no dynamic dimension is called 'n'" in said(capsys, "profile", "wrongly_used:model", "--size", "n=3")
    assert "--threads is of files" in said(capsys, "profile", "wrongly_used:model", "--threads", "1")


@pytest.mark.parametrize("command", ["debug", "profile"])
def test_a_page_takes_the_place_of_no_other_file(command, folder, capsys):
    notes = folder / "notes.html"
    notes.write_text("mine")
    assert "stays as it is" in said(capsys, command, "wrongly_used:model", "--html", "notes.html")
    assert "nothing can be written there" in said(capsys, command, "wrongly_used:model", "--html", "there/a.html")
    assert "call it notes.html" in said(capsys, command, "wrongly_used:model", "--html", "notes.txt")
    assert notes.read_text() == "mine"


def test_what_was_written_is_said(folder, capsys):
    place = ("wrongly_used:model", "-t", "eager")
    found = said(capsys, "debug", *place, "--html", "a.html", "--node-data", "data")
    assert [x for x in found.splitlines() if x.startswith("written to ")] == [
        "written to a.html", "written to data/eager-own.json", "written to data/eager-inherited.json"
    ]  # fmt: skip
    assert "written to b.html" in said(capsys, "profile", *place, "-n", "1", "--html", "b.html")


def test_a_page_of_times_is_written_again(folder):
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["profile", "wrongly_used:model", "-t", "eager", "-n", "1", "--html", "times.html"])
        assert not ended.value.code
    assert 'class="chart"' in (folder / "times.html").read_text()


def test_a_file_brings_its_example_inputs(folder, capsys):
    ir.export(nn.Linear(4, 4), torch.randn(3, 4), target="eager", path=folder / "model.pt2")
    assert "does not fail on these arguments" in said(capsys, "reduce", "model.pt2", "-t", "eager")


def test_a_program_without_example_inputs_says_what_it_takes():
    program = torch.export.export(nn.Linear(4, 4), (torch.randn(3, 4),))
    program._example_inputs = None
    for call in (ir.debug, ir.debug.reduce, ir.debug.ranges, ir.debug.profile):
        with pytest.raises(ir.ExportError, match=r"no example inputs with it: give args .*: input=float32\[3, 4\]"):
            call(program)
    assert ir.debug(program, torch.randn(3, 4), target="eager").ok
