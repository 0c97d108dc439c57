"""Composite functions of torch's that read their operands themselves are not run on what a .pt2 file holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ir
from ir.importer import without_storage
from ir.importer.checked import Checked, UncheckedError, verifying
from tests.ir import pt2_files
from tests.ir.unchecked_kernels import A, Model, ints, lines_of, survives

PROBE = "tests.ir.probe_composites"
INPUTS = [torch.randn(5, 3), ints(), torch.randn(1, 3, 4), torch.randn(4, 3), torch.randn(4, 4)]


@pytest.mark.parametrize("where", ["verified", "kernels", "meta"])
def test_no_composite_function_ends_the_process(where: str) -> None:
    assert lines_of(PROBE, where) == []


def test_those_that_trust_more_than_numbers_are_known() -> None:
    assert {*lines_of(PROBE, "unchecked")} == without_storage.UNCHECKED


CALLS = {
    "padding": lambda n: A._pad_packed_sequence.default(INPUTS[0], n, False, 0.0, 10),
    "packed": lambda n: A.rnn_tanh.data(INPUTS[0], n, INPUTS[2], INPUTS[3:], False, 1, 0.0, False, False),
    "parameters": lambda n: A.choose_qparams_optimized.default(n.float(), n.numel(), 200, 0.16, 8),
}


@pytest.mark.parametrize("block", [Checked, verifying])
@pytest.mark.parametrize("numbers", [ints(3, -1, 3), ints(3, 2), torch.tensor([], dtype=torch.int64)])
@pytest.mark.parametrize("name", CALLS)
def test_what_reads_its_operands_itself_is_refused(name: str, numbers: torch.Tensor, block: Any) -> None:
    def run() -> None:
        with torch.no_grad(), block(), pytest.raises(UncheckedError, match="is not run"):
            CALLS[name](numbers)
        raise SystemExit  # what a child that fails does not reach

    assert survives(run) == ""
    with pytest.raises(SystemExit):
        run()


@pytest.mark.parametrize("call", [
    lambda: A._weight_norm.default(torch.ones(4, 3), torch.ones(4, 1), 0), lambda: A.item.default(torch.tensor([1.5])),
    lambda: A.cross_entropy_loss.default(torch.ones(4, 3), ints(0, 1, 2, 0)),
    lambda: A.type_as.default(ints(1), torch.ones(1)),
    lambda: A.rnn_tanh.input(torch.ones(5, 3, 4), torch.ones(1, 3, 4), [torch.ones(4, 4)] * 2, False, 1, 0.0, False,
                             False, False)[0],
])  # fmt: skip
@pytest.mark.parametrize("block", [Checked, verifying])
def test_what_calls_others_alone_is_run(call: Any, block: Any) -> None:
    with torch.no_grad():
        with block():
            made = call()
        assert not isinstance(made, without_storage.WithoutStorage)
        torch.testing.assert_close(made, call())


def _numbers(*sizes: int) -> list[dict[str, int]]:
    return [{"as_int": size} for size in sizes]


def _as(document: Any, target: str, more: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
    """Make the first node, `max`, another call of the same inputs; a list takes those that are left."""
    graph = document["graph_module"]["graph"]
    node, names = graph["nodes"][0], [i["as_tensor"]["name"] for i in graph["inputs"]]
    given = [{"as_tensor": {"name": n}} for n in names[: 2 if len(shapes) == 1 else 3]]
    given += [{"as_tensors": [{"name": n} for n in names[3:]]}] if len(names) > 3 else []
    keys = ["data", "batch_sizes", "hx", "params"]
    node["target"] = target
    node["inputs"] = [{"name": k, "arg": a, "kind": 1} for k, a in (*zip(keys, given, strict=False), *more.items())]
    for output, shape in zip(node["outputs"], shapes, strict=False):
        value = graph["tensor_values"][output["as_tensor"]["name"]]
        strides = [torch.Size(shape[i + 1 :]).numel() for i in range(len(shape))]
        value.update(sizes=_numbers(*shape), strides=_numbers(*strides), dtype=7)


def _file(path: Path, inputs: list[torch.Tensor], *change: Any) -> Path:
    def edit(document: Any) -> None:
        _as(document, *change)

    model = Model(lambda: None)
    model.forward = lambda *args: A.max.dim(args[0], 0)  # type: ignore[method-assign]
    torch.export.save(torch.export.export(model, tuple(inputs), strict=False), path)
    return pt2_files.write(path, pt2_files.edited(pt2_files.parts(path), pt2_files.MODEL, edit))


RUN = """
import sys, ir
try:
    graph = ir.capture(sys.argv[1])
    graph.context.reference(graph, *graph.context.example())
except ir.ExportError as error:
    print(error)
"""


def _said(path: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


FLAGS: dict[str, Any] = {
    "has_biases": {"as_bool": False}, "num_layers": {"as_int": 1}, "dropout": {"as_float": 0.0},
    "train": {"as_bool": False}, "bidirectional": {"as_bool": False},
}  # fmt: skip


def test_a_file_of_packed_steps_is_refused_where_they_are_none(tmp_path: Path) -> None:
    change = "torch.ops.aten.rnn_tanh.data", FLAGS, [(5, 4), (1, 3, 4)]
    path = _file(tmp_path / "rnn.pt2", INPUTS, *change)
    assert "rnn_tanh.data, which does not look at what it is given here" in _said(path)


def test_a_file_of_packed_steps_is_read_and_not_verified(tmp_path: Path) -> None:
    change = "torch.ops.aten.rnn_tanh.data", FLAGS, [(5, 4), (1, 3, 4)]
    path = _file(tmp_path / "rnn.pt2", [INPUTS[0], ints(3, 2), *INPUTS[2:]], *change)
    assert "rnn_tanh.data reads numbers itself" in _said(path)
    more = {"batch_first": {"as_bool": False}, "padding_value": {"as_float": 0.0}, "total_length": {"as_int": 10}}
    change = "torch.ops.aten._pad_packed_sequence.default", more, [(10, 3, 3)]
    path = _file(tmp_path / "pad.pt2", [INPUTS[0], ints(3, -1, 3)], *change)
    assert "_pad_packed_sequence.default reads numbers itself" in _said(path)


NETS = torch.nn.LSTM(4, 5, 2), torch.nn.GRU(4, 5), torch.nn.RNN(4, 5), torch.nn.utils.weight_norm(torch.nn.Linear(4, 2))


@pytest.mark.parametrize("net", NETS, ids=lambda n: type(n).__name__)
def test_a_file_of_modules_that_call_them_is_verified(net: torch.nn.Module, tmp_path: Path) -> None:
    for x in (torch.randn(3, 2, 4), torch.randn(3, 0, 4)):
        path = tmp_path / f"{x.shape[1]}.pt2"
        torch.export.save(torch.export.export(net.eval(), (x,), strict=False), path)
        graph = ir.capture(path)
        assert graph.context.reference(graph, (x,), {})
