"""The debugger on models that are not like others: custom ops, random numbers, loops, complex numbers, other sizes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._higher_order_ops import while_loop

import ir
from tests.faults import wrapped

TARGETS = ("onnx", "nnef", "eager")


@ir.custom_op("odd_models::twice_softmax")
def twice_softmax(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.softmax(x * scale, -1) + x


@pytest.mark.parametrize("target", TARGETS)
def test_a_custom_op_tells_its_target_ops(target):
    graph = ir.capture(lambda x: twice_softmax(twice_softmax(x)).relu(), (torch.randn(2, 4),))
    first, second, _ = ir.debug(graph, target=target).rows
    assert first.ops[0] == second.ops[0] == "odd_models::twice_softmax"


@ir.custom_op("odd_models::outer")
def outer(x: torch.Tensor) -> torch.Tensor:
    return twice_softmax(x.sin()) + 1


def test_each_call_of_a_custom_op_has_its_own_time(tmp_path):
    def model(x):
        return twice_softmax(outer(twice_softmax(twice_softmax(x) + 1)).exp())

    graph = ir.capture(model, (torch.randn(2, 4),))
    for options in ({}, {"path": tmp_path / "m.onnx", "metadata": True}):
        program = ir.export(graph, target="onnx", **options)
        timed = ir.debug.profile(*((options["path"], torch.randn(2, 4)) if options else (program,)))
        rows = {r.name: r for r in timed.rows}
        calls = [n.name for n in graph.nodes if n.op.startswith("odd_models::")]
        assert len(calls) == 4 and set(calls) <= set(rows) and not [n for n in rows if n.startswith("_inlfunc")]
        assert "Sin" in rows["outer"].ops and all("Softmax" in rows[c].ops for c in calls), rows
        assert all(rows[c].source.startswith("test_debug_odd_models.py:") for c in calls)


def test_nodes_in_a_branch_have_times_of_their_own(tmp_path):
    def model(x):
        y = twice_softmax(x)
        y = torch.cond(x.sum() > 0, lambda y: outer(y) + 1, lambda y: y.cos() - 1, (y,))
        return twice_softmax(y)

    x = torch.ones(2, 4)
    graph = ir.capture(model, (x,))
    program = ir.export(graph, target="onnx", path=tmp_path / "m.onnx", metadata=True)
    found = ir.debug.profile(program)
    ops = {r.name: r.ops for r in found.rows}
    assert {"twice_softmax", "sum_1", "gt", "cond_0", "cond_0/outer", "cond_0/add", "twice_softmax_1"} == ops.keys()
    assert "Sin" in ops["cond_0/outer"] and ops["cond_0"] == ("If",) and "Softmax" in ops["twice_softmax_1"], ops
    assert all(r.source.startswith("test_debug_odd_models.py:") for r in found.rows if r.name != "cond_0"), found
    assert {r.op for r in ir.debug.profile(tmp_path / "m.onnx", x).rows} == {r.op for r in found.rows}


def test_nodes_of_one_name_in_a_branch_and_outside_are_two_in_tract():
    def model(x):
        y = x.exp() + 1
        y = torch.cond(x.sum() > 0, lambda y: y.sin() + 2, lambda y: (y + 3).exp(), (y,))
        return y.exp() + 4

    found = ir.debug.profile(ir.capture(model, (torch.ones(2, 4),)), target="nnef")
    ops = {r.name: r.op for r in found.rows if "/" in r.name or r.name.startswith(("exp", "add"))}
    outside = {"exp": "aten::exp", "add": "aten::add.Tensor", "exp_1": "aten::exp", "add_1": "aten::add.Tensor"}
    assert ops == outside | {"cond_0/sin": "aten::sin", "cond_0/add_1": "aten::add.Tensor", "cond_0/exp": "aten::exp"}


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin().tanh() + 1, lambda x: x.cos(), (x,)).relu()


def loop(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.tanh() + 0.5), (torch.tensor(0), x))


@pytest.mark.parametrize(
    ("model", "holder", "target"),
    [*((branch, "cond_0", t) for t in TARGETS), *((loop, "while_loop_0", t) for t in ("onnx", "eager"))],
)
def test_the_table_names_the_node_in_a_branch_or_a_loop(model, holder, target):
    graph = ir.capture(model, (torch.ones(2, 4),))
    table = ir.debug(graph, target=target, handlers={"aten::tanh": lambda h, self: self})
    assert [r.name for r in table.wrong] == [f"{holder}/tanh"] and table.ranked[0] is table.wrong[0], table
    assert table.row(f"{holder}/tanh").source.startswith("test_debug_odd_models.py:") and "1 differs" in str(table)
    assert table.row(holder).own.reason and not table.row(holder).wrong and table.first.name == f"{holder}/tanh"
    assert [r.name for r in ir.debug(graph, target=target).rows if "/" in r.name] == []


def test_a_loop_that_a_target_refuses_is_said_to_be_refused():
    graph = ir.capture(loop, (torch.ones(2, 4),))
    table = ir.debug(graph, target="nnef", handlers={"aten::tanh": lambda h, self: self})
    assert [r.name for r in table.wrong] == ["while_loop_0"] and "while_loop" in table.wrong[0].note, table


def test_the_time_of_a_loop_is_its_own():
    """onnxruntime counts what runs in it a second time."""
    graph = ir.capture(
        lambda x: while_loop(lambda i, x: i < 9, lambda i, x: (i + 1, x.sin().exp()), (torch.tensor(0), x)),
        (torch.randn(300, 300),),
    )
    rows = {r.name: r for r in ir.debug.profile(graph, target="onnx").rows}
    assert rows.keys() == {f"while_loop_0{n}" for n in ("", "/lt", "/add", "/sin", "/exp")}
    assert rows["while_loop_0"].seconds < rows["while_loop_0/sin"].seconds + rows["while_loop_0/exp"].seconds


def test_the_function_of_a_module_is_no_single_node():
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2)))
    program = ir.export(model, torch.randn(2, 4), target="onnx", functions=True)
    assert all("FusedGemm" not in r.ops for r in ir.debug.profile(program).rows if r.op == "aten::tanh")


def test_a_custom_op_is_its_body_in_a_script(tmp_path):
    """A process of its own has never heard of it."""
    graph = ir.capture(lambda x: twice_softmax(x).relu(), (torch.randn(2, 4),))
    wrong = {"odd_models::twice_softmax": lambda h, x, scale: h.emit("Softmax", x, axis=-1)}
    path = tmp_path / "reduced.py"
    found = ir.debug.reduce(graph, target="onnx", handlers=wrong, path=path)
    assert found.nodes == ("odd_models::twice_softmax",) and not found.note and "odd_models" not in found.script
    assert "import ir, tests.integration.test_debug_odd_models, torch" in found.ir_script
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 1 and "AssertionError" in done.stderr, done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_complex_numbers(target):
    graph = ir.capture(lambda x: torch.fft.ifft(torch.fft.fft(x) * (1 + 2j)).abs(), (torch.randn(2, 8),))
    table = ir.debug(graph, target=target)
    assert table.ok and all(r.ops for r in table.rows) and all(r.own.ulps < 1e4 for r in table.rows), table


def test_random_numbers_are_no_fault_to_reduce():
    graph = ir.capture(lambda x: torch.relu(x + torch.rand_like(x)) * 2, (torch.randn(2, 8),))
    with pytest.raises(ir.ExportError, match="does not fail"):
        ir.debug.reduce(graph, target="onnx")
    wrong = wrapped("onnx", "aten::mul.Tensor", lambda a: a | {"other": 3})
    assert ir.debug.reduce(graph, target="onnx", handlers=wrong).nodes == ("aten::mul.Tensor",)


def test_a_fault_at_another_size_only():
    graph = ir.capture(
        lambda x: torch.softmax(x, -1) * x.shape[0], (torch.randn(3, 4),), dynamic_shapes=({0: "batch"},)
    )
    fixed = wrapped("onnx", "aten::mul.Tensor", lambda a: a | {"other": 3})
    assert ir.debug(graph, target="onnx", handlers=fixed).ok
    table = ir.debug(graph, target="onnx", handlers=fixed, sizes={"batch": 5})
    assert [r.op for r in table.wrong] == ["aten::mul.Tensor"] and table.sizes == {"batch": 5}
    found = ir.debug.reduce(graph, target="onnx", handlers=fixed)
    assert found.nodes == ("aten::mul.Tensor",) and found.sizes == "batch=4" and "mismatch at batch=4" in str(found)
    with pytest.raises(ir.ExportError, match="no dynamic dimension is called 'width': batch"):
        ir.debug(graph, target="onnx", sizes={"width": 5})


def test_a_fault_at_one_size_that_is_named():
    graph = ir.capture(lambda x: torch.softmax(x, -1) * 2, (torch.randn(3, 4),), dynamic_shapes=({0: "batch"},))

    def wrong_at_7(h, self, other):
        seven = h.emit("Equal", h.emit("Shape", self, start=0, end=1), h.constant(np.array([7])))
        return h.emit("Add", h.emit("Mul", self, h.constant(np.float32(2))), h.cast(seven, ir.DType.float32))

    given = {"target": "onnx", "handlers": {"aten::mul.Tensor": wrong_at_7}}
    with pytest.raises(ir.ExportError, match="on these arguments or at the other sizes that verify runs"):
        ir.debug.reduce(graph, **given)
    found = ir.debug.reduce(graph, **given, sizes={"batch": 7})
    assert found.nodes == ("aten::mul.Tensor",) and found.sizes == "batch=7" and "[7, " in found.script
    with pytest.raises(ir.ExportError, match="no dynamic dimension is called 'width': batch"):
        ir.debug.reduce(graph, **given, sizes={"width": 7})


def test_a_branch_has_the_line_of_the_model():
    graph = ir.capture(lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)), (torch.randn(3),))
    assert all(r.source.startswith("test_debug_odd_models.py:") for r in ir.debug(graph, target="onnx").rows)


def test_a_file_in_the_place_of_its_model(tmp_path):
    ir.export(torch.relu, (torch.randn(3),), target="onnx", path=tmp_path / "m.onnx")
    with pytest.raises(ir.ExportError, match="give the model, or what"):
        ir.debug(tmp_path / "m.onnx")
    assert ir.debug.profile(tmp_path / "m.onnx", torch.randn(3), runs=3).rows
    with pytest.raises(ir.ExportError, match="takes 1 tensor"):
        ir.debug.profile(tmp_path / "m.onnx", runs=3)


def test_batches_of_ranges():
    batches = [torch.randn(2, 4), torch.full((2, 4), 1e6)]
    found = ir.debug.ranges(torch.nn.ReLU(), batches)
    assert found.batches == 2 and found.overflows("float16")[0].name == "relu"
    with pytest.raises(ir.ExportError, match="batches: a list"):
        ir.debug.ranges(torch.nn.ReLU(), torch.randn(2, 4))
