"""`ir show`: the summary, the listing of 80 columns, and the page without a browser."""

from __future__ import annotations

import json
import re

import pytest
import torch

import ir
from ir.cli import main
from ir.plugins import find_target
from ir.view.facts import facts, short
from ir.view.listing import listing
from ir.view.page import page
from tests.browser.models import small

SOURCE = "tests.browser.models:small"


@pytest.fixture(scope="module")
def graph():
    model, args, _, shapes = small()
    return ir.capture(model.eval(), args, dynamic_shapes=shapes)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(line):
        with pytest.raises(SystemExit) as end:
            main(line.split())
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


def test_the_summary_says_what_goes_in_and_what_each_target_does(call):
    code, out, err = call(f"show {SOURCE}")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    for text in ("f32[batch, length, 16]", "dynamic: batch from 0", "largest weights", "FLOP at batch=2, length=7"):
        assert text in out
    assert re.search(r"linear +16 +[\d.]+ K +native +native", out) and re.search(r"polar.* body", out)


def test_the_listing_has_80_columns_and_leaves_defaults_out(graph):
    lines = listing(graph)
    assert max(map(len, lines)) <= 80
    assert any(line == "stages.0.blocks.0.norm  LayerNorm" for line in lines)
    norm = lines[lines.index("stages.0.blocks.0.norm  LayerNorm") + 1]
    assert "layer_norm(input=x, normalized_shape=[16]," in norm
    assert not any("alpha=" in line for line in lines)


def test_the_listing_by_module_and_op(call):
    code, out, _ = call(f"show {SOURCE} --module stages.1.blocks.0 --op linear")
    assert code == 0 and out.count("= linear(") == 3 and "stages.0" not in out
    assert call(f"show {SOURCE} --module stages.*.head")[1].count("= linear(") == 2
    assert call(f"show {SOURCE} --op aten::mul.Tensor")[1].count("= mul(") == 8
    assert call(f"show {SOURCE} --op silu --no-source")[1].count(".py:") == 0


def test_facts_as_data(call, graph):
    found = json.loads(call(f"show {SOURCE} --json -t onnx")[1])
    linear = next(o for o in found["ops"] if o["op"] == "aten::linear")
    assert linear["ways"] == {"onnx": "native"} and found["nodes"] == len(graph.nodes)
    rows = 2 * 7  # of the example
    width = 16
    assert linear["flops"] == 2 * rows * (4 * 3 * width * 2 * width + 2 * width * width + 2 * width * 4)
    assert found["weights"][0]["bytes"] == 4 * sum(p.numel() for p in small()[0].parameters())


def test_the_whole_graph_as_text(call, graph):
    assert "aten::silu(self=%linear)" in call(f"show {SOURCE} --text")[1]


def test_the_page_holds_everything(call, tmp_path, graph):
    code, _, err = call(f"show {SOURCE} --html graph.html")
    text = (tmp_path / "graph.html").read_text()
    assert code == 0 and "written to graph.html" in err
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [n["o"] for n in data["nodes"]] == [n.overload for n in graph.nodes]
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org)", text)
    held = [p for s in data["scopes"] for p in s["parts"] if p >= 0]
    assert sorted(held) == list(range(len(graph.nodes)))
    assert call(f"show {SOURCE} --html graph.html")[0] == 0  # one page takes the place of another


def test_a_page_of_hostile_names():
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1

    graph = ir.capture(Net(), (torch.ones(2),), input_names=["</script><b>"])
    text = page(graph, facts(graph, [find_target("onnx", {})]), "<b>&")
    assert text.count("</script>") == 2 and "<title>&lt;b&gt;&amp;</title>" in text


WRONG = {
    f"show {SOURCE} --module stage": (1, "no node lies in the module 'stage'; the nearest are stages.1"),
    f"show {SOURCE} --op linea": (1, "no node is of the op 'linea'; the nearest are linear"),
    f"show {SOURCE} --op polar --module stages.0": (1, "no node of the op 'polar' lies in the module 'stages.0'"),
    f"show {SOURCE} --html graph.txt": (2, "call it graph.html"),
    f"show {SOURCE} --html mine.html": (2, "is no page of ir show and stays as it is"),
    f"show {SOURCE} -t onx": (2, "there is no target 'onx'; did you mean onnx?"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_told_in_one_message(call, tmp_path, line):
    (tmp_path / "mine.html").write_text("mine")
    code, out, err = call(line)
    wanted, text = WRONG[line]
    assert (code, out) == (wanted, "") and text in err and "Traceback" not in err
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "number, text", [(0, "0"), (999, "999"), (999.6, "1 K"), (11_689_512, "11.7 M"), (7e15, "7 P")]
)
def test_short_numbers(number, text):
    assert short(number) == text


class Halves(torch.nn.Module):
    """The export of half an axis holds a check of data."""

    def forward(self, x):
        return x[:, : x.shape[1] // 2].sum(-1)


class AsComplex(torch.nn.Module):
    """Targets without complex numbers get other ops for these two."""

    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x) * 2j)


@pytest.mark.parametrize(("model", "x"), [(Halves(), torch.randn(2, 8)), (AsComplex(), torch.randn(3, 2))])
def test_show_says_what_ops_and_an_export_say(call, tmp_path, model, x):
    axes = dict.fromkeys(range(2), torch.export.Dim.AUTO) if isinstance(model, Halves) else None
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=(axes,)), tmp_path / "model.pt2")
    for target in ("onnx", "nnef", "khronos"):
        code, out, _ = call(f"show model.pt2 -t {target}")
        assert code == 0 and "MISSING" not in out and "lacks" not in out
        assert (": check" in out or " check" in out) == isinstance(model, Halves)
        assert call(f"ops model.pt2 --target {target}")[0] == 0
    assert call("export model.pt2 -t onnx -o .")[0] == 0
    ways = {o["op"]: o["ways"]["onnx"] for o in json.loads(call("show model.pt2 --json -t onnx")[1])["ops"]}
    assert ways == {op: ways[op] for op in ways if ways[op] in ("native", "body", "check")}


ORDERS = "l\x1b[31m\x1b]0;owned\x07\u202e"  # colour, the window's title, a bell, text from right to left


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(ORDERS, torch.nn.Linear(4, 4))

    def forward(self, x):
        return self._modules[ORDERS](x)


LINES = ("show m.pt2", "show --graph m.pt2", "show --text m.pt2", "ops m.pt2", "export m.pt2 -o m.onnx", "debug m.pt2",
         "profile m.pt2", "run m.onnx", "diff m.onnx m.pt2", f"export {ORDERS}:x", f"show {ORDERS}.pt2")  # fmt: skip


def test_names_of_a_file_do_not_steer_the_terminal(call, tmp_path):
    torch.export.save(torch.export.export(Named(), (torch.randn(2, 4),)), tmp_path / "m.pt2")
    shown = ""
    for line in LINES:
        _, out, err = call(line)
        assert (out + err).replace("\n", "").isprintable(), line
        shown += out + err
    assert r"\x1b[31m\x1b]0;owned\x07\u202e" in shown


def test_a_report_holds_no_orders_for_a_terminal(tmp_path):
    ir.export(Named(), (torch.randn(2, 4),), target="onnx", report=tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text().replace("\n", "").isprintable()
