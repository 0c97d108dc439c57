"""Modules as model-local functions: equal to torch at every size, one function for what is computed alike."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import nn

import ir
from tests.onnx.scan import findings

S = ({0: "batch", 1: "s"},)


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(torch.relu(self.linear(x)) + x)


def exported(model, folder, x, other=None, **options):
    program = ir.export(
        model, (x,), target="onnx", path=folder / "m.onnx", verify=True, functions=True, dynamic_shapes=S, **options
    )
    if other is not None:
        program.verify((other,))
    loaded = onnx.load(program.path)
    onnx.checker.check_model(loaded)
    assert findings(loaded) == []
    return loaded


def functions(model):
    return {f"{f.domain}::{f.name}" for f in model.functions}


X, Y = torch.randn(2, 3, 4), torch.randn(5, 7, 4)


@pytest.mark.parametrize("opset", [13, 17, 21, 23])
def test_layers_are_one_function_that_calls_those_of_its_modules(tmp_path, opset):
    model = exported(nn.Sequential(*(Block() for _ in range(3))), tmp_path, X, Y, opset=opset)
    assert functions(model) == {"tests.onnx::Block", "torch.nn.modules::Linear", "torch.nn.modules::LayerNorm"}
    assert [(n.op_type, n.name) for n in model.graph.node] == [("Block", "/0"), ("Block", "/1"), ("Block", "/2")]
    block = next(f for f in model.functions if f.name == "Block")
    assert list(block.input)[1:] == ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert [n.name for n in block.node] == ["/linear", "/relu", "/add", "/norm"]
    assert {o.domain for o in block.opset_import} == {"", "torch.nn.modules"}


def test_other_attributes_are_another_function_other_sizes_are_not(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.LayerNorm(4), nn.LayerNorm(4, eps=0.1), nn.LayerNorm(8)

        def forward(self, x):
            return self.c(torch.cat([self.a(x), self.b(x)], -1))

    model = exported(Model(), tmp_path, X, Y)
    assert [n.op_type for n in model.graph.node] == ["LayerNorm", "LayerNorm_1", "Concat", "LayerNorm"]


def test_sizes_come_in_as_operands(tmp_path):
    class Pairs(nn.Module):
        def forward(self, x):
            b, s, d = x.shape
            return x.reshape(b * s, d).sum(1).reshape(b, s) * (b + s)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Pairs(), Pairs()

        def forward(self, x):
            return self.first(x) + self.second(x * 2)

    model = exported(Model(), tmp_path, X, Y)
    calls = [n for n in model.graph.node if n.op_type == "Pairs"]
    assert len(calls) == 2 and calls[0].input[1:] == calls[1].input[1:]


def test_a_module_that_hands_something_through(tmp_path):
    class Both(nn.Module):
        def forward(self, x):
            return x, x.reshape(x.shape[0], x.shape[1], 4), x * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.view = Both(), nn.Flatten(2)

        def forward(self, x):
            a, b, c = self.both(x)
            return self.view(a) + b + c

    exported(Model(), tmp_path, X, Y)


def test_branches_recurrent_layers_and_custom_ops_inside_of_modules(tmp_path):
    @ir.custom_op("test_functions::twice")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    class Cond(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cond, self.lstm, self.conv = Cond(), nn.LSTM(4, 4, batch_first=True), nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x):
            return twice(self.conv(self.lstm(self.cond(x))[0].mT))

    model = exported(Model().eval(), tmp_path, X, Y)
    assert {"test_functions::twice", "torch.nn.modules::Conv1d"} <= functions(model)


def test_a_module_that_needs_a_constant_is_in_place(tmp_path):
    """A handler that must know a weight's content refuses inside of a function; the call is written in place then."""

    def needs_content(h, input, weight, bias=None):
        if weight.value.const_value is None:
            raise ir.RefusedError("the weight must be known")
        return h.emit("Add", h.emit("MatMul", input, h.transpose(weight, [1, 0])), bias)

    model = exported(nn.Sequential(Block(), Block()), tmp_path, X, Y, handlers={"aten::linear": needs_content})
    assert functions(model) == {"torch.nn.modules::LayerNorm"}
    assert "/1/linear/linear" in {n.name for n in model.graph.node}


def test_pads_of_a_function_are_not_those_of_a_pool(tmp_path):
    """onnxruntime puts functions in place and makes a Pad's zeros pads of the pool: the lowest numbers, or too many."""

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.pad, self.mean, self.most = nn.ZeroPad1d((1, 3)), nn.AvgPool1d(2), nn.MaxPool1d(2)

        def forward(self, x):
            means = self.mean(self.pad(x)), torch.nn.functional.avg_pool1d(self.pad(x), 2)
            return *means, self.most(self.pad(x)), torch.nn.functional.max_pool1d(self.pad(x), 2)

    exported(Padded(), tmp_path, X - 9, Y - 9)


@pytest.mark.parametrize("wrong", [["Linar"], "Linar", ["torch.nn.modules.linear.Linar"]])
def test_a_class_that_the_model_has_not(wrong):
    with pytest.raises(ir.ExportError, match=r"functions= names .*Linar.* no module of it; did you mean .*Linear\?"):
        ir.export(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), (X,), target="onnx", functions=wrong)


def test_a_class_without_a_node_is_one_of_the_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    program = ir.export(model, (X,), target="onnx", functions=["Dropout", "Linear"])
    assert len(program.artifact.functions) == 1
    with pytest.warns(UserWarning, match="functions= names the class 'Linar'.*did you mean Linear"):
        ir.export(torch.export.export(model, (X,)), target="onnx", functions=["Linar"])
