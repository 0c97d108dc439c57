"""What a file holds beside its numbers: names, metadata, dimensions, constants."""

from __future__ import annotations

import onnx
import torch
from onnx import TensorProto, helper
from torch import nn

import ir
from tests.onnx.scan import findings


class Attention(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return torch.softmax(self.query(x) @ self.key(x).mT, -1) @ x


class Model(nn.Module):
    def __init__(self, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first or nn.Identity()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x) + 1.0
        return torch.cat([x, x, x[:, :1]], 1) + 1.0


X = torch.randn(2, 3, 4)


def exported(model, folder, *args, **options):
    options = {"dynamic_shapes": ({0: "batch", 1: "s"},), **options}
    return onnx.load(ir.export(model, args or (X,), target="onnx", path=folder / "m.onnx", verify=True, **options).path)


def test_node_names_say_the_module_and_do_not_depend_on_others(tmp_path):
    names = [n.name for n in exported(Model(), tmp_path).graph.node]
    assert "/layers.0/query/linear" in names and "/layers.1/softmax" in names and "/cat" in names
    assert len(set(names)) == len(names)
    more = [n.name for n in exported(Model(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))), tmp_path).graph.node]
    assert [n for n in more if not n.startswith("/first")] == names
    assert {"/first/0/linear", "/first/1/softmax"} <= set(more)


def test_a_module_that_is_called_twice_has_two_sets_of_names(tmp_path):
    shared = nn.Linear(4, 4)
    names = [n.name for n in exported(nn.Sequential(shared, nn.Tanh(), shared), tmp_path).graph.node]
    assert len(set(names)) == len(names) and "/0/linear" in names


def test_nodes_are_bare_without_metadata(tmp_path):
    model = exported(Model(), tmp_path)
    assert not any(n.metadata_props or n.doc_string for n in model.graph.node) and not model.graph.value_info


def test_metadata_names_module_source_and_overload(tmp_path):
    model = exported(Model(), tmp_path, metadata=True)
    node = next(n for n in model.graph.node if n.name == "/layers.0/query/linear")
    found = {p.key: p.value for p in node.metadata_props}
    assert found["namespace"] == "layers.0/query" and found["op"] == "aten::linear" and found["value"] == "linear"
    assert found["source"].startswith("tests/onnx/test_file.py:")
    assert all(n.metadata_props for n in model.graph.node) and model.ir_version >= 10
    assert findings(model) == []


def test_dimensions_keep_their_names_and_expressions(tmp_path):
    model = exported(Model(), tmp_path)
    shape = lambda v: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]  # noqa: E731
    assert shape(model.graph.input[0]) == ["batch", "s", 4]
    assert shape(model.graph.output[0]) == ["batch", "2*s + 1", 4]


def test_equal_constants_are_shared(tmp_path):
    model = exported(Model(), tmp_path)
    assert len([i for i in model.graph.initializer if not i.dims]) == 1  # the 1.0 that is added three times


def test_tied_weights_are_written_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 4), nn.Linear(4, 50, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("again", self.embed.weight.detach())

        def forward(self, x):
            return self.embed(x) @ self.again.mT + self.head(self.embed(x)), self.again + x.sum()

    model = exported(Tied(), tmp_path, torch.tensor([[1, 2]]), dynamic_shapes=None)
    assert sum(list(i.dims) == [50, 4] for i in model.graph.initializer) == 1


def test_a_sum_that_begins_with_zero_loses_it_unless_that_changes_a_sign(tmp_path):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 3, padding=1)

        def forward(self, x):
            return (0 + self.left(x)) + (0 + self.right(x)), (x + 0).reciprocal()

    x = torch.zeros(2, 3, 4).neg()
    program = ir.export(Branches(), (x,), target="onnx")
    assert [n.op_type for n in program.artifact.graph] == ["Conv", "Conv", "Add", "Add", "Reciprocal"]
    assert torch.equal(program(x)[1], torch.full_like(x, torch.inf))


def test_the_scan_finds_what_does_nothing():
    """The scan itself, on a file with one of each."""
    f, sizes = TensorProto.FLOAT, helper.make_tensor("sizes", TensorProto.INT64, [2], [2, 3])
    value = lambda name: helper.make_tensor_value_info(name, f, [2, 3])  # noqa: E731
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="1"), helper.make_node("Cast", ["a"], ["b"], name="2", to=f),
        helper.make_node("Reshape", ["b", "sizes"], ["c"], name="3"),
        helper.make_node("Expand", ["c", "sizes"], ["d"], name="4"),
        helper.make_node("Transpose", ["d"], ["e"], name="5", perm=[0, 1]),
        helper.make_node("Transpose", ["e"], ["g"], name="6", perm=[1, 0]),
        helper.make_node("Relu", ["g"], ["h"], name="6"), helper.make_node("Relu", ["g"], ["y"], name="8"),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [sizes], value_info=list(map(value, "abcde")))
    found = "\n".join(findings(helper.make_model(graph)))
    for what in ("1 (Identity)", "2 (Cast)", "3 (Reshape)", "4 (Expand)", "5 (Transpose)", "6 (Relu)",
                 "6 (Transpose) follows", "'6' names two"):  # fmt: skip
        assert what in found


def test_transforms_of_one_length_share_their_tables():
    def model(x):
        for _ in range(3):
            x = torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=16, norm="ortho")
        return x, torch.fft.fft(x)

    program = ir.export(model, (torch.randn(2, 16),), target="onnx", verify=True)
    tables = [v.const_value.numpy() for v in program.artifact.graph.initializers.values()]
    tables = [(t.dtype, t.shape, t.tobytes()) for t in tables if t.size > 16]
    assert len(tables) == len(set(tables)) > 2
