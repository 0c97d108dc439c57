"""The conditions on sizes in a .pt2 file: those of the program that wrote it, and not all that torch's rules asked."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile

import pytest
import torch
from torch import nn

import ir
from ir.opening import open_artifact

R = torch.randn


class UpAndDown(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv1d(3, 3, 3, 2, 1), nn.ConvTranspose1d(3, 3, 2, 2)

    def forward(self, x):
        return self.up(self.down(x))[..., : x.shape[2]]


class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 4 else x + 1


class Checking(nn.Module):
    def forward(self, x):
        torch._check(x.shape[0] % 2 == 0)
        return x.reshape(x.shape[0] // 2, 2)


class Mapped(nn.Module):
    """Written anew by torch when it is read, for vmap."""

    def forward(self, x):
        return torch.vmap(lambda row: row[:2] * 2)(x) if x.shape[0] > 2 else x


SMALL = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Softmax(0))
MODELS = {
    "up and down": (UpAndDown(), R(1, 3, 8), {2: "t"}, [(1, 3, t) for t in range(1, 10)]),
    "conv1d": (nn.Conv1d(3, 4, 3), R(1, 3, 8), {2: "t"}, [(1, 3, t) for t in (2, 3, 4)]),
    "conv2d": (nn.Conv2d(3, 4, 3), R(1, 3, 8, 8), {2: "h", 3: "w"}, [(1, 3, 3, 3), (1, 3, 3, 2)]),
    "max_pool1d": (nn.MaxPool1d(2), R(2, 3, 8), {0: "b", 2: "t"}, [(2, 3, 2), (0, 3, 4), (2, 3, 1)]),
    "ceil_mode": (nn.MaxPool1d(3, 2, 1, ceil_mode=True), R(2, 3, 8), {2: "t"}, [(2, 3, t) for t in range(1, 7)]),
    "layers": (SMALL, R(2, 1, 16, 16), {0: "b", 2: "h", 3: "w"}, [(1, 1, 12, 12), (2, 1, 11, 12), (0, 1, 12, 12)]),
    "unfold": (lambda x: x.unfold(0, 4, 2), R(9), {0: "n"}, [(4,), (5,), (3,)]),
    "branch": (Branching(), R(6), {0: "n"}, [(6,), (5,), (4,), (1,)]),
    "check": (Checking(), R(6), {0: "n"}, [(4,), (5,), (2,), (0,)]),
    "a number for a size": (lambda x: x[1::2] * 2 + x.shape[0], R(3), {0: "n"}, [(2,), (3,), (4,)]),
    "vmap": (Mapped(), R(4, 5), {0: "n"}, [(3, 5), (2, 5)]),
    "a range from 2": (nn.ReLU(), R(4), {0: torch.export.Dim("n", min=2, max=9)}, [(1,), (2,), (10,)]),
}


def outcome(program, x):
    """What it gives, or says."""
    try:
        made = program(x)
    except ir.ExportError as error:
        return str(error)
    return (made[0] if isinstance(made, (tuple, list)) else made).tolist()


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a model branches on sizes
        yield


@pytest.mark.parametrize("name", MODELS)
def test_a_file_holds_to_those_of_the_program(name, tmp_path):
    model, example, shapes, sizes = MODELS[name]
    program = ir.export(model, (example,), target="eager", dynamic_shapes=(shapes,))
    path = program.save(tmp_path / "model.pt2")
    torch.export.load(path)
    again = ir.export(path, target="eager").save(tmp_path / "again.pt2")
    copy = pickle.loads(pickle.dumps(program)).save(tmp_path / "copy.pt2")
    for size in sizes:
        x = R(size)
        wanted = outcome(program, x)
        assert [outcome(open_artifact(p), x) for p in (path, again, copy)] == [wanted] * 3, size


def test_a_file_of_torchs_holds_to_all_and_says_so(tmp_path):
    program = torch.export.export(UpAndDown(), (R(1, 3, 8),), dynamic_shapes=({2: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(ir.ExportError, match=r"only where .*file does not say whether .*\n*.*ir\.export\(model, args"):
        open_artifact(tmp_path / "model.pt2")(R(1, 3, 7))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no conditions"),
        (json.dumps({"branches": [["Symbol('s0')", 3]], "asked": [], "from_two": []}), "no conditions"),
        (json.dumps({"branches": [], "asked": [], "from_two": [0]}), "no conditions"),
        (json.dumps({"branches": [["__import__('os')", ""]], "asked": [], "from_two": []}), "no arithmetic"),
    ],
)
def test_a_record_of_something_else_is_refused(record, said, tmp_path):
    program = ir.export(UpAndDown(), (R(1, 3, 8),), target="eager", dynamic_shapes=({2: "t"},))
    path = program.save(tmp_path / "model.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "edited.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, record if name.endswith("ir_conditions.json") else source.read(name))
    with pytest.raises(ir.CaptureError, match=said):
        ir.capture(tmp_path / "edited.pt2")


def _scalar_truth(x):
    torch._check((x.sum() < 100).item())
    return x * 2


def _all(x):
    torch._check_tensor_all(x < 100)
    return x * 2


def _number(x, n):
    torch._check(n.item() == 3)
    return x * 2


def _a_size(x, n):
    torch._check(n.item() == 2 * x.shape[0])
    return x * 2


def _written(x, n):
    torch._check(n.item() == 3)
    x.add_(1)
    return x * 2


OF_DATA = {
    "a truth value": (_scalar_truth, R(2, 4), torch.full((2, 4), 200.0)),
    "all of a tensor": (_all, R(2, 4), torch.full((2, 4), 200.0)),
    "a number": (_number, torch.tensor(3), torch.tensor(4)),
    "a number, with writes": (_written, torch.tensor(3), torch.tensor(4)),
    "twice a size": (_a_size, torch.tensor(4), torch.tensor(3)),
}


@pytest.mark.parametrize("name", OF_DATA)
def test_what_the_model_asserts_of_data_holds_in_the_file(name, tmp_path):
    model, good, bad = OF_DATA[name]
    args = (good,) if good.dim() else (R(2, 4), good)
    shapes = (None, None) if good.dim() == 0 else (None,)
    if name == "twice a size":
        shapes = ({0: "b"}, None)
    ir.export(model, args, target="eager", path=tmp_path / "m.pt2", dynamic_shapes=shapes)
    opened = open_artifact(tmp_path / "m.pt2")
    assert torch.equal(opened(*(a.clone() for a in args))[0], model(*(a.clone() for a in args)))
    with pytest.raises(ir.ExportError, match=r"by a check in the model|the model checks that"):
        opened(*(a.clone() for a in args[:-1]), bad)


class PartByData(nn.Module):
    """A view whose place and size are numbers that data has, by torch's rules; `detach_` makes that observed anew."""

    def forward(self, x):
        size = torch.tensor(min(x.shape[0], 64))
        part = torch.arange(384.0).view(128, 3)[64 - size : 64 + size]
        return -1 % part.unsqueeze(0) + x.sum()


def test_a_view_whose_size_data_decides(tmp_path):
    model, shapes = PartByData(), ({0: torch.export.Dim("n")},)
    ir.export(model, (R(4, 3),), target="eager", path=tmp_path / "m.pt2", dynamic_shapes=shapes)
    x = R(5, 3)
    assert torch.equal(open_artifact(tmp_path / "m.pt2")(x)[0], model(x))
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes), tmp_path / "torch.pt2")
    assert torch.equal(ir.export(tmp_path / "torch.pt2", target="eager")(x), model(x))
