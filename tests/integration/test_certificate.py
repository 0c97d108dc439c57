"""Certificates: operators alone, on inputs that models do not see every day."""

from __future__ import annotations

import json
import subprocess
import sys

import onnx
import pytest
import torch
from torch import nn

import ir
from tests.faults import wrapped


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(torch.relu(nn.functional.max_pool2d(self.conv(x), 2))).softmax(-1)


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return ir.capture(Model().eval(), (torch.randn(3, 2, 8, 8),), dynamic_shapes=({0: "batch"},))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_everything_is_tried_once(graph, target):
    first = ir.export(graph, target=target, verify="thorough").certificate
    assert first.ok and len(first.signatures) == 5 and not any(s.cached for s in first.signatures)
    kinds = {t.kind for s in first.signatures for t in s.tried}
    assert kinds == {"random", "ties", "zeros", "nan", "infinities", "extremes", "size 1", "empty"}
    second = ir.export(graph, target=target, verify="thorough").certificate
    assert all(s.cached for s in second.signatures)
    assert [s.tried for s in second.signatures] == [s.tried for s in first.signatures]


def test_a_fault_of_the_runtime_on_odd_numbers_is_listed(graph):
    """onnxruntime's MaxPool skips nan: docs/quirks/onnxruntime.md."""
    found = ir.export(graph, target="onnx", verify="thorough").certificate
    pool = next(s for s in found.signatures if "max_pool2d" in s.text)
    assert next(t for t in pool.tried if t.kind == "nan").differs and "max_pool2d" in str(found)
    assert found.ok and "nan" in pool.differs_at


def test_the_report_says_what_differs_beyond_ordinary_numbers(graph):
    program = ir.export(graph, target="onnx", verify="thorough")
    assert "alone, aten::max_pool2d (%max_pool2d) differs at: nan" in str(program.report)


def test_which_of_equal_numbers_is_no_fault():
    """torch leaves the order of ties open; the numbers themselves are compared."""
    graph = ir.capture(lambda x: torch.topk(x, 2), (torch.randn(4, 16),))
    (found,) = ir.export(graph, target="onnx", verify="thorough").certificate.signatures
    assert "ties" in found.differs_at and found.ok
    wrong = {"aten::sign": lambda h, self: h.emit("Sign", h.emit("Add", self, h.const(1e-20, ir.DType.float32)))}
    signs = ir.capture(torch.sign, (torch.randn(4, 16),))
    with pytest.raises(ir.MismatchError, match="differs at ties"):
        ir.export(signs, target="onnx", verify="thorough", handlers=wrong)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_what_torch_does_not_write_is_not_compared(target):
    """Rows behind the last group are memory as it was, in torch."""
    ends = torch.tensor([1, 2, 4], dtype=torch.int32)
    wrong = {"aten::_grouped_mm": lambda h, **given: given["self"]}

    def model(x, y):
        return torch._grouped_mm(x, y, offs=ends)[:4]

    graph = ir.capture(model, (torch.randn(6, 4), torch.randn(3, 4, 4)))
    assert ir.export(graph, target=target).certify(cached=False).ok
    assert ir.debug(graph, target=target).ok
    assert [r.op for r in ir.debug(graph, target=target, handlers=wrong).wrong] == ["aten::_grouped_mm"]


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_nan_that_torch_computes_is_compared(target):
    """Where a kernel writes nan itself, memory that torch fills with nan is no excuse."""
    graph = ir.capture(lambda x: x.log(), (torch.tensor([-1.0, 2.0, -3.0]),))
    wrong = {"aten::log": lambda h, **given: given["self"]}
    assert ir.debug(graph, target=target).ok
    assert [r.op for r in ir.debug(graph, target=target, handlers=wrong).wrong] == ["aten::log"]


def test_unwritten_memory_that_held_nan_before_is_not_compared():
    ends = torch.tensor([1, 2, 4], dtype=torch.int32)
    graph = ir.capture(lambda x, y: torch._grouped_mm(x, y, offs=ends)[:4], (torch.randn(6, 4), torch.randn(3, 4, 4)))
    for _ in range(5):
        left = [torch.full((n,), torch.nan) for n in (4, 8, 16, 24, 32, 48, 64, 96) for _ in range(20)]
        del left
        assert ir.debug(graph, target="eager").ok


def test_integers_at_the_ends_of_their_type():
    args = (torch.randn(5), torch.tensor([0, 2]))
    graph = ir.capture(lambda x, i: x[i].sum() + i.float().mean() + (i * 2).sum(), args)
    signatures = ir.export(graph, target="eager", verify="thorough").certificate.signatures
    found = {s.node: {t.kind: t for t in s.tried} for s in signatures}
    assert found["mul"]["integers"].error == 0 and "integers" not in found["add"]
    assert found["index"]["integers"].not_tried  # they are no indices


def test_what_was_not_tried_is_said():
    def model(x):
        y = torch.nn.functional.dropout(x, 0.5, True)
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a.sin(), (y,))

    found = ir.export(model, (torch.randn(3),), target="eager").certify(cached=False)
    assert any("dropout: it draws random numbers" in x for x in found.not_tried)
    assert any("cond: it holds graphs of its own" in x for x in found.not_tried) and "not tried: %" in str(found)
    kinds = {t.kind: t.not_tried for t in found.signatures[0].tried}
    assert kinds["size 1"] == kinds["empty"] == "its sizes are fixed"
    assert "not tried at other sizes: 2 of them" in str(found) and "its sizes are fixed" not in str(found)


def test_it_lies_in_the_file_on_request(graph, tmp_path):
    place = tmp_path / "m.onnx"
    program = ir.export(graph, target="onnx", verify="thorough", certificate="metadata", path=place)
    held = {p.key: p.value for p in onnx.load(place).metadata_props}
    assert json.loads(held["ir.certificate"]) == program.certificate.data()
    assert "differs at: nan" in str(program.report) and (tmp_path / "m.onnx.certificate.json").exists()
    with pytest.raises(ir.ExportError, match=r"no place for ir\.certificate"):
        ir.export(graph, target="nnef", verify="thorough", certificate="metadata", path=tmp_path / "m.nnef.tgz")
    with pytest.raises(ValueError, match="thorough"):
        ir.export(graph, target="onnx", certificate="metadata")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.certificate.json", "cache"}


def test_a_file_that_fails_is_not_written(tmp_path):
    graph = ir.capture(nn.ReLU(), (torch.rand(3, 4),))
    for more in ({}, {"certificate": "metadata"}):
        with pytest.raises(ir.MismatchError):
            ir.export(
                graph, target="onnx", verify="thorough", handlers={"aten::relu": lambda h, self: self},
                path=tmp_path / "m.onnx", **more,
            )  # fmt: skip
    assert not list(tmp_path.glob("m.*"))


def test_it_lies_beside_the_file(graph, tmp_path):
    ir.export(graph, target="onnx", verify="thorough", path=tmp_path / "m.onnx")
    said = json.loads((tmp_path / "m.onnx.certificate.json").read_text())
    assert said["ok"] and said["versions"]["torch"] and len(said["signatures"]) == 5


def test_a_fault_that_the_example_does_not_show():
    graph = ir.capture(nn.ReLU(), (torch.rand(3, 4),))
    with pytest.raises(ir.MismatchError, match="relu"):
        ir.export(graph, target="onnx", verify="thorough", handlers={"aten::relu": lambda h, self: self})


def test_own_handlers_are_not_taken_from_the_cache(graph):
    handlers = wrapped("onnx", "aten::relu")
    first = ir.export(graph, target="onnx", verify="thorough", handlers=handlers)
    assert not any(s.cached for s in first.certificate.signatures)


def sign(h, self):
    return h.emit("Sign", self)


def relu(h, self):
    return h.emit("max", self, 0.0)


def amax(h, self, dim=(), keepdim=False):
    return h.emit("ReduceMax", self, h.const(list(dim), ir.DType.int64), keepdims=int(keepdim))


@pytest.mark.parametrize(
    ("target", "model", "handlers"),
    [
        pytest.param("onnx", torch.sign, {"aten::sign": sign}, marks=pytest.mark.slow),  # of nan is nan, in torch 0
        pytest.param("onnx", lambda x: torch.amax(x, 0), {"aten::amax": amax}, marks=pytest.mark.slow),  # skips nan
        ("nnef", torch.relu, {"aten::relu": relu}),  # max drops nan
    ],
)
def test_faults_of_runtimes_that_are_worked_around_are_found_without_that(target, model, handlers, tmp_path):
    """The faults of docs/quirks: the certificate lists them, and a script without ir shows them."""
    graph = ir.capture(model, (torch.randn(4, 16),))
    program = ir.export(graph, target=target, verify=True, handlers=handlers)
    found = program.certify(cached=False).signatures[0]
    assert next(t for t in found.tried if t.kind == "nan").differs
    x = torch.randn(4, 16)
    x[1, ::3] = float("nan")
    reduced = ir.debug.reduce(program, (x,), path=tmp_path / "reduced.py")
    done = subprocess.run([sys.executable, "reduced.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "AssertionError" in done.stderr, done.stderr
    assert len(reduced.script.splitlines()) <= 30 and "nan" in reduced.script
