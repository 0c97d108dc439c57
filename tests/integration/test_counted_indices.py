"""Indices that the model counts by sizes, beyond the axis at other sizes: torch refuses them, and so do programs."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.opening import open_artifact

TABLE = torch.nn.Embedding(10, 4)
X, Y = torch.randn(6, 3), torch.randn(2, 5)
READS = {  # of x and y, and the number of rows of y at which the axis has too few
    "embedding": (lambda x, y: TABLE(torch.arange(y.shape[0])), 11),
    "embedding_of_rows": (lambda x, y: TABLE(torch.arange(y.shape[0]).unsqueeze(0).expand(x.shape[0], -1)), 11),
    "embedding_behind_a_cache": (lambda x, y: TABLE(torch.arange(x.shape[0], x.shape[0] + y.shape[0])), 5),
    "embedding_with_padding": (lambda x, y: TABLE(torch.arange(y.shape[0], dtype=torch.int32).long() + 2), 9),
    "index": (lambda x, y: x[torch.arange(y.shape[0])], 7),
    "index_by_steps": (lambda x, y: x[torch.arange(0, 2 * y.shape[0], 2)], 4),
    "index_of_columns": (lambda x, y: x[:, torch.arange(y.shape[0])], 4),
    "index_put": (lambda x, y: x.index_put((torch.arange(y.shape[0]),), torch.tensor(1.0)), 7),
    "index_select": (lambda x, y: x.index_select(0, torch.arange(y.shape[0])), 7),
    "before_the_first": (lambda x, y: x.index_select(0, torch.arange(x.shape[0] - y.shape[0], x.shape[0])), 7),
    "counted_from_the_end": (lambda x, y: x[torch.arange(-1, -1 - y.shape[0], -1)], 7),
}


@pytest.fixture(autouse=True)
def _iree(request):
    if "stablehlo" in request.node.name:
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has


def model(function):
    return type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager", "stablehlo"])
@pytest.mark.parametrize("name", READS)
def test_a_count_beyond_the_axis(name, target):
    function, rows = READS[name]
    columns = 6 if name == "index_of_columns" else 5
    program = ir.export(
        model(function), (X, Y), target=target, dynamic_shapes=({0: "a", 1: "b"}, {0: "n", 1: "m"}), verify=True
    )
    program.verify((X, torch.randn(rows - 1, columns)))
    y = torch.randn(rows, columns)
    with pytest.raises((IndexError, RuntimeError)):
        function(X, y)
    with pytest.raises((RuntimeError, ir.ExportError), match="has all the places that the model counts only where"):
        program(X, y)


def test_a_file_holds_the_condition(tmp_path):
    function, rows = READS["index"]
    path = tmp_path / "model.onnx"
    ir.export(model(function), (X, Y), target="onnx", dynamic_shapes=({0: "a"}, {0: "n"}), path=path)
    opened = open_artifact(path)
    assert torch.equal(opened(X, torch.randn(6, 5))[0], X)
    with pytest.raises(ir.ExportError, match="n <= a"):
        opened(X, torch.randn(rows, 5))


def test_no_condition_where_ranges_show_it():
    n = torch.export.Dim("n", max=10)
    graph = ir.capture(model(lambda x: TABLE(torch.arange(x.shape[0]))), (X,), dynamic_shapes=({0: n},))
    assert "ir::require" not in {node.op for node in graph.nodes}


def test_a_part_of_a_count_is_not_all_of_it():
    program = ir.export(
        model(lambda x: TABLE(torch.arange(x.shape[0])[2:5])), (X,), dynamic_shapes=({0: "n"},), target="onnx"
    )
    program.verify((torch.randn(20, 3),))
