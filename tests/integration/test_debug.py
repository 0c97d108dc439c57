"""The debugger: the node that differs is named, on every target, alone and in the whole program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import ir
from ir.cli import main
from ir.debug.child import in_child
from ir.debug.flame import chart, page
from ir.debug.parts import connected
from ir.debug.script import write_scripts
from ir.debug.search import Verdict
from ir.debug.shrink import fixed
from ir.debug.values import Values
from ir.view.facts import facts
from ir.view.page import page as page_of_graph
from tests.cases import ALL, TRACED
from tests.faults import wrapped
from tests.harness import captured as captured_case

TARGETS = ("onnx", "nnef", "eager")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.norm(self.first(x)))), -1)


def captured(model: nn.Module = None, *args: torch.Tensor, dynamic: bool = True) -> ir.Graph:
    torch.manual_seed(0)
    args = args or (torch.randn(3, 8),)
    return ir.capture(model or Block(), args, dynamic_shapes=({0: "batch"},) if dynamic else None)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_differs(target):
    table = ir.debug(captured(), target=target)
    assert table.ok and len(table.rows) == 5, table
    for row in table.rows:
        assert row.own.relative < 1e-5 and row.inherited.relative < 1e-5 and row.torch_own.relative < 1e-6 and row.ops
    assert {r.module for r in table.rows} == {"", "first", "norm", "second"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_wrong_node_is_first(target):
    handlers = wrapped(target, "aten::softmax.int", lambda a: a | {"dim": 0})
    table = ir.debug(captured(), target=target, handlers=handlers)
    worst = table.ranked[0]
    assert worst.op == "aten::softmax.int" and worst.own.reason and [r.name for r in table.wrong] == [worst.name]
    assert worst.source.startswith("test_debug.py:") and "softmax" in worst.node.origin.code
    assert "softmax" in str(table) and "1 differs by itself" in str(table)
    rows = json.loads(table.json())["rows"]
    assert [r["wrong"] for r in rows] == [False] * 4 + [True]
    assert "<table>" in table._repr_html_()


def test_the_page_of_the_graph_has_the_errors():
    graph = captured()
    tables = [
        ir.debug(graph, target=t, handlers=wrapped(t, "aten::layer_norm", lambda a: a | {"eps": 0.1})) for t in TARGETS
    ]
    text = page_of_graph(graph, facts(graph), "a model", tables)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert list(data["errors"]) == list(TARGETS)
    for found in data["errors"].values():
        (worst,) = found["worst"]
        said = found["nodes"][str(worst)]
        assert data["nodes"][worst]["n"] == "layer_norm" and 0 < said["own"] <= 1 and said["whole"] > 0
        before = found["nodes"]["0"]
        assert data["nodes"][0]["n"] == "linear" and (before["own"], before["whole"]) == (0, 0)
        assert "own error" in said["lines"][0] and "1 differs by itself" in found["head"][0]


def test_model_explorer_takes_the_columns_by_the_names_in_the_files(tmp_path):
    """Its pages colour the nodes whose ids are keys: those of torch's program and of the ONNX file."""
    (tmp_path / "deep.py").write_text(
        "import torch\n\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        values, places = torch.topk(torch.exp(x * 0.5), 2)\n"
        "        return values + places\n\n"
        "def model():\n    return Model(), (torch.arange(8.0).reshape(2, 4),)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "ir", "debug", "deep:model", "-t", "onnx", "--node-data", "data"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(tmp_path))
    try:
        import deep
    finally:
        sys.path.remove(str(tmp_path))
    exported = torch.export.export(*deep.model())
    artifact = ir.export(*deep.model(), target="onnx").artifact
    for column in ("own", "inherited"):
        data = json.loads((tmp_path / "data" / f"onnx-{column}.json").read_text())
        assert {n.name for n in artifact.graph if n.op_type not in ("Constant", "Cast")} <= data["results"].keys()
        assert {"mul", "exp", "topk", "add"} <= data["results"].keys() & {n.name for n in exported.graph.nodes}
        for result in data["results"].values():
            assert set(result) == {"value", "bgColor"} and re.fullmatch("#[0-9a-f]{6}", result["bgColor"])


def test_what_is_inherited_is_no_fault_of_the_node():
    handlers = wrapped("onnx", "aten::linear", lambda a: a | {"bias": None})
    table = ir.debug(captured(), target="onnx", handlers=handlers)
    assert {r.op for r in table.wrong} == {"aten::linear"}
    assert table.row("relu").own.largest == 0 and table.row("relu").inherited.relative > 1e-3


@pytest.mark.parametrize("target", [*TARGETS, "khronos"])
def test_verify_names_the_node(target):
    with pytest.raises(ir.MismatchError) as told:
        graph = captured(dynamic=target != "khronos")
        ir.export(graph, target=target, verify=True, handlers={"aten::relu": lambda h, self: self})
    text = str(told.value)
    assert "%relu = aten::relu" in text and "test_debug.py:" in text and "own error" in text and "whole program" in text


def test_a_fault_between_two_nodes():
    """One that shows in neither alone: the smallest part is named."""

    def relu(h, self):
        made = h.emit("Relu", self)
        return (
            h.emit("Neg", made)
            if any(n.op == "aten::layer_norm" for n in h.graph.nodes) and "given" not in self.name
            else made
        )

    with pytest.raises(ir.MismatchError, match="the smallest part that does") as told:
        ir.export(captured(), target="onnx", verify=True, handlers={"aten::relu": relu})
    assert "%relu" in str(told.value) and "%layer_norm" in str(told.value) and "%softmax" not in str(told.value)


def test_a_node_that_the_target_refuses_is_told():
    def refuses(h, **arguments):
        raise ir.RefusedError("no such thing")

    graph = captured(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    table = ir.debug(graph, target="onnx", handlers={"aten::tanh": refuses})
    assert "no such thing" in table.row("tanh").note and table.row("tanh").wrong


def test_the_first_nan():
    class Overflows(nn.Module):
        def forward(self, x):
            y = torch.exp(x * 100)
            return (y - y).sum(-1) + x.sum(-1)

    table = ir.debug(captured(Overflows(), torch.ones(2, 8)), target="onnx")
    assert table.first_nonfinite.op == "aten::exp" and table.first_nonfinite.makes == "inf"
    assert "makes inf in onnx and inf in torch" in str(table)


def test_sizes_that_data_decides_and_several_results():
    class Picks(nn.Module):
        def forward(self, x):
            found = torch.nonzero(x[:, 0] > 0).squeeze(-1)
            values, places = torch.topk(x[found], 2, dim=-1)
            return values * found.shape[0], places

    table = ir.debug(captured(Picks()), target="onnx")
    assert table.ok and {"topk_0", "nonzero"} <= {r.name for r in table.rows} and table.sizes["batch"] == 3


def test_random_numbers_are_not_compared():
    table = ir.debug(captured(nn.Sequential(nn.Linear(8, 8), nn.Dropout()).train()), target="onnx")
    assert table.ok and "draws random numbers" in table.rows[-1].note


def test_little_memory_makes_more_programs():
    assert ir.debug(captured(), target="nnef", memory=100).ok


def test_a_program_brings_its_target_and_handlers():
    program = ir.export(
        captured(), target="eager", handlers=wrapped("eager", "aten::layer_norm", lambda a: a | {"eps": 0.1})
    )
    table = ir.debug(program)
    assert table.target == "eager" and [r.name for r in table.wrong] == ["layer_norm"]


def test_the_rounding_of_float64_is_not_known():
    """There is nothing wider beside it, and 0 would say that it rounds nothing."""
    graph = ir.capture(torch.special.expm1, (torch.randn(4, dtype=torch.float64),))
    table = ir.debug(graph, target="eager")
    assert table.rows[0].torch_own is None and table.ok and "not known" in str(table.rows[0])


def test_torch_in_float64_tells_rounding():
    graph = captured(dynamic=False)
    values = Values(graph, wide=True).run([torch.randn(3, 8)])
    assert all(t.dtype == torch.float64 for t in values.of.values())


FOLDED = [c for c in ALL if c.name.startswith(("attention/", "recurrent/"))]  # torch folds batches into their products


@pytest.mark.parametrize("case", FOLDED, ids=lambda c: c.name)
def test_the_values_are_those_of_the_module_bit_by_bit(case):
    graph = captured_case(case)
    module = graph.context.program.module(check_guards=False)
    results = []
    inputs = graph.structure.flatten(case.args(TRACED), {})
    for run in (lambda: module(*case.args(TRACED)), lambda: Values(graph).run(inputs)):
        torch.manual_seed(0)
        with torch.no_grad():
            results.append(run())
    expected, values = [t for t in pytree.tree_leaves(results[0]) if isinstance(t, torch.Tensor)], results[1]
    for name, wanted in zip(graph.output_names, expected, strict=True):
        torch.testing.assert_close(values.of[graph.results[name]], wanted, rtol=0, atol=0, equal_nan=True)


# -- reducing ----------------------------------------------------------------------------------------------------------


def run(path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=path.parent)


@pytest.mark.parametrize("target", ["onnx", *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS[1:])])
def test_a_fault_is_reduced_to_a_script_without_ir(target, tmp_path):
    handlers = wrapped(target, "aten::softmax.int", lambda a: a | {"dim": 0})
    found = ir.debug.reduce(captured(), target=target, handlers=handlers, path=tmp_path / "reduced.py")
    assert found.nodes == ("aten::softmax.int",) and found.verdict.kind == "mismatch"
    assert len(found.script.splitlines()) <= 30 and " ir" not in found.script.splitlines()[2]
    done = run(tmp_path / "reduced.py")
    assert done.returncode == 1 and "Tensor-likes are not close" in done.stderr, done.stderr
    assert run(tmp_path / "reduced_ir.py").returncode == 0  # the fault was planted in this process alone


@pytest.mark.parametrize("target", TARGETS)
def test_a_script_of_what_is_right_ends_well(target, tmp_path):
    """Else it would fail for a reason of its own."""
    graph, chosen = captured(dynamic=False), ir.plugins.find_target(target, {})
    part = connected(graph, graph.nodes)
    sample = fixed(part, Values(graph).run([torch.randn(3, 8)]))
    write_scripts(sample, chosen, chosen.registry, Verdict("mismatch"), tmp_path / "right.py")
    done = run(tmp_path / "right.py")
    assert done.returncode == 0, done.stderr


def test_a_refused_export_is_reduced(tmp_path):
    def refuses(h, self):
        raise ir.RefusedError("no such thing")

    graph = captured(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
    found = ir.debug.reduce(graph, target="onnx", handlers={"aten::tanh": refuses}, path=tmp_path / "reduced.py")
    assert found.verdict.kind == "export" and found.nodes == ("aten::tanh",) and not found.script
    assert "torch.ops.aten.tanh.default" in found.ir_script and [p.name for p in found.paths] == ["reduced_ir.py"]


def test_a_crash_and_a_hang_are_verdicts():
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV), 20).same(Verdict("crash", "SIGSEGV"))
    assert in_child(lambda: time.sleep(60), 0.5).kind == "hang"
    assert in_child(lambda: 3, 20) == 3


def test_what_does_not_fail_is_not_reduced():
    with pytest.raises(ir.ExportError, match="does not fail"):
        ir.debug.reduce(captured(), target="onnx")


# -- profiles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_times_by_node_module_and_line(target):
    found = ir.debug.profile(captured(), target=target, runs=3)
    ours = {r.name: r for r in found.rows if r.op}
    assert {"linear", "layer_norm", "softmax"} <= set(ours) and ours["linear"].module == "first"
    assert ours["softmax"].source.startswith("test_debug.py:") and ours["linear"].ops
    share = sum(r.seconds for r in ours.values()) / found.seconds
    assert share > 0.8 and found.call_seconds > 0 and found.modules["norm"] > 0
    assert "layer_norm" in str(found) and json.loads(found.json())["target"] == target


def test_a_flame_chart_has_modules_inside_of_modules():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    found = ir.debug.profile(captured(model), target="eager", runs=3)
    boxes = re.findall(r'left:([\d.]+)%;width:([\d.]+)%;top:(\d+)px" title="([^:]*):', chart(found))
    places = {name: (float(left), float(width), int(top)) for left, width, top, name in boxes}
    assert {"all", "0", "0.0", "1"} <= places.keys()
    outer, inner = places["0"], places["0.0"]
    assert places["all"][1] > 99 and inner[2] > outer[2] > places["all"][2] == 0
    assert outer[0] <= inner[0] and inner[0] + inner[1] <= outer[0] + outer[1] + 0.01
    assert "<table>" in page("a model", [found])


FILES = [
    ("onnx", "m.onnx", {"metadata": True}),
    ("nnef", "m.nnef.tgz", {"metadata": True}),
    ("nnef", "m.nnef", {"metadata": {"licence": "MIT"}}),
    ("eager", "m.pt2", {}),
]


@pytest.mark.parametrize(("target", "name", "options"), FILES)
def test_a_file_tells_modules_and_lines_without_its_model(target, name, options, tmp_path, capsys):
    model = nn.Sequential(Block(), nn.Linear(4, 8))
    program = ir.export(captured(model), target=target, path=tmp_path / name, verify=True, **options)
    with pytest.raises(SystemExit) as done:
        main(["profile", str(tmp_path / name), "--runs", "3", "--json"])
    assert done.value.code == 0
    (found,) = json.loads(capsys.readouterr().out)
    rows = {r["name"]: r for r in found["rows"]}
    assert found["target"] == name and not found["notes"]
    assert rows["softmax"]["op"] == "aten::softmax.int" and rows["layer_norm"]["module"] == "0.norm"
    assert rows["softmax"]["source"].startswith("test_debug.py:") and rows["linear_2"]["module"] == "1"
    by_model = {r.name: r.source for r in ir.debug.profile(program, runs=3).rows if r.op}
    assert by_model.items() <= {n: r["source"] for n, r in rows.items()}.items()


@pytest.mark.parametrize(("target", "name"), [("onnx", "m.onnx"), ("nnef", "m.nnef.tgz")])
def test_a_file_that_tells_no_lines_says_how_it_would(target, name, tmp_path):
    ir.export(captured(), target=target, path=tmp_path / name)
    found = ir.debug.profile(tmp_path / name, torch.randn(3, 8), runs=3)
    assert found.rows and "export it with metadata=True" in str(found)
