"""Names that would be two things in one file: everyday models just work, on every target in the same way."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

import ir

FILES = {"onnx": "m.onnx", "nnef": "m.nnef.tgz", "eager": "m.pt2"}


class AnInputCalledOutput(nn.Module):
    def forward(self, x, output):
        return x + output


class KeysOfInputs(nn.Module):
    def forward(self, x, y):
        return {"x": x + 1, "y": y * 2, "x_1": x - 1}


class KeysOfWords(nn.Module):
    def forward(self, graph, true):
        return {"graph": graph + true, "if": true * 2, "a.b": graph, "a_b": true + 1, "": graph * 5, "'\n\\": graph * 7}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(3))


class KeysOfUpdates(Counting):
    def forward(self, x, n_updated):
        self.n.add_(n_updated)
        return {"n_updated": x + self.n, "n": x * 2}


class AnInputOfABuffersName(Counting):
    def forward(self, n, other):
        self.n.add_(n)
        n.add_(1)
        return n + self.n * other


class NamesOfParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, weight, x):
        return {"weight": self.weight * weight, "x": self.weight, "mul": x.neg(), "neg": x * 3}


MODELS = [AnInputCalledOutput, KeysOfInputs, KeysOfWords, KeysOfUpdates, AnInputOfABuffersName, NamesOfParameters]


@pytest.mark.parametrize("kind", MODELS)
def test_everyday_models_work(kind, tmp_path):
    model, args = kind(), (torch.randn(3), torch.randn(3))
    graphs = [ir.capture(model, args) for _ in range(2)]
    names = [(*(v.name for v in g.inputs), *g.results) for g in graphs]
    assert names[0] == names[1] and len(set(names[0])) == len(names[0])
    for target, name in FILES.items():
        ir.export(graphs[0], target=target, path=tmp_path / name, verify=True)


def test_a_dimension_with_the_name_of_an_input():
    def model(batch, n):
        return batch.relu() + n, batch.shape[0] * n

    args = (torch.randn(4, 2), torch.randn(4, 2))
    for target in FILES:
        ir.export(model, args, target=target, dynamic_shapes=({0: "batch"}, {0: "batch"}), verify=True)


WRONG = [
    ({"input_names": ["a", "a"]}, "'a' stands there twice"),
    ({"input_names": ["a", "b", "c"]}, "3 names for 2"),
    ({"output_names": ["a", "b"]}, "2 names for 1"),
    ({"input_names": ["a", "b"], "output_names": ["a"]}, "'a' is the name of an input"),
    ({"output_names": ["x"]}, "'x' is the name of an input"),
    ({"input_names": ["", "b"]}, "'' is no name"),
    ({"input_names": [1]}, "1 is no name"),
    ({"input_names": ["a\nb"]}, "is no name"),
    ({"input_names": "ab"}, "give a list"),
    ({"output_names": ["o" * 3000]}, "3000 letters"),
]


@pytest.mark.parametrize(("names", "message"), WRONG)
@pytest.mark.parametrize("target", FILES)
def test_what_cannot_be_as_it_was_asked_for_is_refused(target, names, message, tmp_path):
    with pytest.raises(ir.CaptureError, match=message):
        ir.export(AnInputCalledOutput(), (torch.ones(3), torch.ones(3)), target=target, path=tmp_path / FILES[target],
                  **names)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_names_that_one_target_writes_alike_stay_apart():
    names = {"input_names": ["a.b", "a_b"], "output_names": ["a b"]}
    for target in FILES:
        program = ir.export(AnInputCalledOutput(), (torch.ones(3), torch.ones(3)), target=target, verify=True, **names)
        assert list(program.graph.results) == ["a b"]
    nnef = ir.export(AnInputCalledOutput(), (torch.ones(3), torch.ones(3)), target="nnef", **names)
    assert nnef.artifact.inputs + nnef.artifact.outputs == ["a_b", "a_b_1", "a_b_2"]


class Scaled(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.randn(300)))

    def forward(self, x):
        return x * next(self.parameters())


STRANGE = ["a'b", 'a"b', "a\nb", "a\\b", "a b", "class", "x" * 3000, "ü", "a/b", "-", "mul", "graph", "code", "\udcff"]


@pytest.mark.parametrize("target", FILES)
def test_parameters_of_any_name(target, tmp_path):
    """torch makes no module of some of these, so that they cannot be verified by it; they run all the same."""
    for name in STRANGE:
        model, x = Scaled(name), torch.randn(300)
        program = ir.export(model, (x,), target=target, path=tmp_path / FILES[target])
        assert torch.equal(program(x), model(x).detach()), name
        try:
            program.verify()
        except ir.ExportError as error:
            assert "rename" in str(error)


@pytest.mark.parametrize("axis", [-1, 2])
def test_an_axis_that_an_input_does_not_have(axis):
    """torch.export passes over it, and the size would be fixed without a word."""
    for size in ("n", torch.export.Dim.DYNAMIC):
        with pytest.raises(ir.CaptureError, match=f"the axis {axis} of x, whose axes are 0 to 1"):
            ir.capture(lambda x: x + 1, (torch.ones(2, 3),), dynamic_shapes=({axis: size},))


class Nested(nn.Module):
    def forward(self, x, pair, *, scale):
        return x + pair[0] * scale["by"]


def test_a_call_with_other_arguments_is_shown(tmp_path):
    one = torch.ones(2)
    program = ir.export(Nested(), (one, [one]), {"scale": {"by": one}}, target="eager")
    with pytest.raises(ir.ExportError) as caught:
        program(one, (one,), scale=one)
    wanted = "the program was made for (*, [*], scale={'by': *}) and is called with (*, (*,), scale=*)"
    assert str(caught.value) == wanted


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_one_name_is_one_size(target):
    def ratio(x, y):
        return x / y.shape[0]

    shapes = ({0: "n"}, {0: "n"})
    with pytest.raises(ir.CaptureError, match=r"one name, n, for the axis 0 of an input \[4, 3\]"):
        ir.export(ratio, (torch.ones(4, 3), torch.ones(6, 2)), target=target, dynamic_shapes=shapes)
    with pytest.raises(ir.CaptureError, match="one name, n, for the axis 0"):  # torch.export: "the code fixes it"
        ir.export(torch.add, (torch.ones(2, 4), torch.ones(3, 2, 4)), target=target, dynamic_shapes=shapes)
    program = ir.export(ratio, (torch.ones(4, 3), torch.ones(4, 2)), target=target, dynamic_shapes=shapes)
    program.verify((torch.ones(5, 3), torch.ones(5, 2)))
    with pytest.raises(ir.ExportError, match="y"):
        program(torch.ones(4, 3), torch.ones(6, 2))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_module_with_a_hyphen_is_verified(target, tmp_path):
    """As the blocks of torchvision's RegNet have: "block1-0"."""
    model = torch.nn.Sequential(OrderedDict({"block1-0": torch.nn.Linear(3, 3), "a b[0]": torch.nn.ReLU()})).eval()
    program = torch.export.export(model, (torch.ones(2, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    for source in (model, program, tmp_path / "model.pt2"):
        assert ir.export(source, (torch.ones(2, 3),), target=target, verify=True).report.ok
