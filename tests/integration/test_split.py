"""`ir.split`: the stages of a model, on every target, equal to the whole."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.plan import Plan

TARGETS = ("onnx", "nnef", "eager")
X = torch.randn(6, 4)


class Blocks(torch.nn.Module):
    """Repeated blocks, a skip over all of them, a size that the end reads, a number among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(5)])
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x, scale):
        h = start = self.first(x)
        for block in self.blocks:
            h = torch.relu_(block(h)) + h
        return {"logits": self.last(h + start) * scale, "rows": x.shape[0] * 2, "input": scale}


class Counting(torch.nn.Module):
    """State in each of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.BatchNorm1d(4) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + 1
        return x


class Shared(torch.nn.Module):
    """State that the first layer reads and the last one writes, or the other way round."""

    def __init__(self, writes_first: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.register_buffer("seen", torch.zeros(4))
        self.writes_first = writes_first

    def forward(self, x):
        x = self.layers[0](x)
        if self.writes_first:
            self.seen.add_(x.mean(0))
            return self.layers[2](self.layers[1](x)) + self.seen
        x = self.layers[2](self.layers[1](x + self.seen))
        self.seen.add_(x.mean(0))
        return x


def captured(model, *args, shapes=None):
    torch.manual_seed(0)
    return ir.capture(model, args, dynamic_shapes=shapes)


def blocks():
    return captured(Blocks().eval(), torch.randn(5, 4), torch.randn(3), shapes=({0: "batch"}, None))


CUTS = (
    {"at": ["blocks.0"]}, {"at": ["blocks", "blocks.2", "last"]}, {"stages": 2}, {"stages": 4},
    {"stages": 3, "balance": "time"},
)  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_stages_are_equal_to_the_whole(tmp_path, cut, target):
    graph = blocks()
    pipeline = ir.split(graph, **cut)
    suffix = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}[target]
    paths = [tmp_path / f"{k}{suffix}" for k in range(len(pipeline))]
    runners = [ir.export(s, target=target, path=p, verify=True).runner for s, p in zip(pipeline, paths, strict=True)]
    plan = Plan.from_json(pipeline.plan.to_json())
    assert plan == pipeline.plan
    whole = ir.export(graph, target=target)
    for rows in (5, 2, 9):
        x, scale = torch.randn(rows, 4), torch.randn(3)
        wanted = whole(x, scale)
        found = plan.run(runners, {"x": x, "scale": scale})
        assert list(found) == ["logits", "rows", "input"]
        torch.testing.assert_close(found["logits"], wanted["logits"])
        assert found["rows"].item() == wanted["rows"] == 2 * rows
        assert torch.equal(found["input"], scale)


def test_sizes_are_read_from_what_comes_anyway():
    pipeline = ir.split(blocks(), at=["blocks.0"])
    assert pipeline.plan.parts[1].inputs == ("scale", "linear")
    assert [str(v.type) for v in pipeline[1].inputs] == ["f32[3]", "f32[batch, 6]"]


def test_weights_lie_in_their_stage():
    pipeline = ir.split(blocks(), at=["blocks.2"])
    names = [{w.name for w in stage.weights.values()} for stage in pipeline]
    assert {n for n in names[0] if n.startswith("blocks")} == {
        f"blocks.{i}.{p}" for i in (0, 1) for p in ("weight", "bias")
    }
    assert names[0].isdisjoint(names[1])


@pytest.mark.parametrize("target", TARGETS)
def test_state_stays_with_its_stage(target):
    graph = captured(Counting().train(), torch.randn(6, 4))
    pipeline = ir.split(graph, at=["layers.1"])
    assert [len(s.updates) for s in pipeline] == [3, 3]
    runners = [ir.export(s, target=target).runner for s in pipeline]
    whole = ir.export(graph, target=target)
    for _ in range(2):
        x = torch.randn(6, 4)
        output, updates = whole.run(x)
        found = pipeline.plan.run(runners, {"x": x})
        torch.testing.assert_close(found.pop("output"), output)
        assert found.keys() == {f"{n}_updated" for n in updates}
        for name, tensor in updates.items():
            torch.testing.assert_close(found[f"{name}_updated"], tensor)


def test_new_state_goes_on_as_a_tensor():
    graph = captured(Shared(writes_first=True), torch.randn(6, 4))
    pipeline, whole = ir.split(graph, at=["layers.1"]), ir.export(graph, target="eager")
    runners = [ir.export(s, target="eager").runner for s in pipeline]
    for _ in range(3):
        x = torch.randn(6, 4)
        output, updates = whole.run(x)
        found = pipeline.plan.run(runners, {"x": x})
        torch.testing.assert_close(found["output"], output)
        torch.testing.assert_close(found["seen_updated"], updates["seen"])


def test_an_integer_argument_and_a_number_out_of_a_tensor():
    class Sized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x, count, n):
            x = self.a(x) * n
            k = count.item()
            torch._check(k >= 2)
            torch._check(k <= 6)
            return self.b(x) + torch.ones(k, 1, 4) * n

    args = (torch.randn(3, 4), torch.tensor(4), 7)
    graph = ir.capture(Sized(), args, dynamic_shapes=(None, None, torch.export.Dim.DYNAMIC))
    pipeline = ir.split(graph, at=["b"])
    assert pipeline.plan.parts[1].inputs == ("count", "n", "mul")
    wanted = ir.export(graph, target="eager")(*args)
    for target in ("onnx", "eager"):
        runners = [ir.export(s, target=target, verify=True).runner for s in pipeline]
        given = {"x": args[0], "count": args[1], "n": torch.tensor(7)}
        torch.testing.assert_close(pipeline.plan.run(runners, given)["output"], wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": ["none"]}, "no module 'none' runs in this program; there are first, blocks, blocks.0"),
        ({"at": ["blocks.2", "blocks.1"]}, "do not begin one after another"),
        ({"at": ["first"]}, "'first' is where the program begins"),
        ({"stages": 40}, "too few modules for 40 stages"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ir.CaptureError, match=message):
        ir.split(blocks(), **options)


def test_state_over_a_border_is_refused():
    graph = captured(Shared(writes_first=False), torch.randn(6, 4))
    with pytest.raises(ir.CaptureError, match="seen is written in stage 1 and read in stage 0: cut elsewhere"):
        ir.split(graph, at=["layers.1"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cut", [{"at": ["blocks.2"]}, {"stages": 3}], ids=str)
def test_a_file_is_split(tmp_path, cut, target, monkeypatch):
    live, path = blocks(), tmp_path / "model.pt2"
    torch.export.save(live.context.program, path)
    monkeypatch.setattr(torch.export, "load", None)  # nothing of the file is unpickled
    graph = ir.capture(path, dynamic_shapes=({0: "batch"}, None))
    pipeline, wanted = ir.split(graph, **cut), ir.split(live, **cut)
    assert pipeline.plan == wanted.plan
    for stage, other in zip(pipeline, wanted, strict=True):
        assert [str(v.type) for v in stage.inputs] == [str(v.type) for v in other.inputs]
        assert [(n.op, n.origin.line) for n in stage.nodes] == [(n.op, n.origin.line) for n in other.nodes]
        assert {w.name for w in stage.weights.values()} == {w.name for w in other.weights.values()}
    runners = [ir.export(s, target=target).runner for s in pipeline]
    whole = ir.export(live, target=target)
    for rows in (5, 2):
        x, scale = torch.randn(rows, 4), torch.randn(3)
        found = pipeline.plan.run(runners, {"x": x, "scale": scale})
        torch.testing.assert_close(found["logits"], whole(x, scale)["logits"])
    with pytest.raises(ir.CaptureError, match="no example inputs; give args= to verify"):
        ir.export(pipeline[1], target=target, verify=True)


@pytest.mark.parametrize("target", TARGETS)
def test_state_of_a_file_stays_with_its_stage(tmp_path, target):
    live, path = captured(Counting().train(), torch.randn(6, 4)), tmp_path / "model.pt2"
    torch.export.save(live.context.program, path)
    pipeline = ir.split(ir.capture(path), at=["layers.1"])
    assert [sorted(s.updates) for s in pipeline] == [sorted(s.updates) for s in ir.split(live, at=["layers.1"])]
    runners, whole, x = [ir.export(s, target=target).runner for s in pipeline], ir.export(live, target=target), X
    output, updates = whole.run(x)
    found = pipeline.plan.run(runners, {"x": x})
    torch.testing.assert_close(found.pop("output"), output)
    for name, tensor in updates.items():
        torch.testing.assert_close(found[f"{name}_updated"], tensor)


def test_a_file_whose_names_are_no_names_is_not_split(tmp_path):
    path = tmp_path / "model.pt2"
    model = torch.nn.Sequential()
    model.add_module("a-b", torch.nn.Linear(4, 4))
    model.add_module("class", torch.nn.Linear(4, 4))
    torch.export.save(torch.export.export(model, (X,)), path)
    with pytest.raises(ir.CaptureError, match=r"is split or verified, and '.*' is no plain one"):
        ir.split(ir.capture(path), stages=2)


def test_a_file_with_a_hyphen_in_a_name_is_split(tmp_path):
    model = torch.nn.Sequential()
    model.add_module("a-b", torch.nn.Linear(4, 4))
    model.add_module("2", torch.nn.Linear(4, 4))
    torch.export.save(torch.export.export(model, (X,)), tmp_path / "model.pt2")
    pipeline = ir.split(ir.capture(tmp_path / "model.pt2"), stages=2)
    assert len(list(pipeline)) == 2


def test_a_missing_input_is_told():
    pipeline = ir.split(blocks(), stages=2)
    with pytest.raises(ir.ExportError, match="takes x, scale, and 'scale' is missing"):
        pipeline.plan.run([None, None], {"x": torch.zeros(1, 4)})


def test_an_argument_with_the_name_of_a_builtin():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    split = ir.split(ir.capture(model, torch.randn(2, 4)), at=["1"])
    assert str(split).startswith("stage 0: input -> ")
