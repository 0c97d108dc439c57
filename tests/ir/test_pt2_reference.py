"""torch's own program of a file is made of what was read and checked: torch.export.load sees no file of a user's."""

import json
import zipfile

import pytest
import torch

import ir
from ir.errors import CaptureError
from ir.specialization import hold_specialized
from tests.ir import pt2_files
from tests.ir.pt2_files import CONSTANTS, MODEL, SAMPLES, WEIGHTS

X = torch.randn(4, 8)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return pt2_files.members(tmp_path_factory.mktemp("pt2") / "whole.pt2")


@pytest.fixture(autouse=True)
def no_load(monkeypatch):
    def load(*args, **kwargs):
        raise AssertionError("torch.export.load was called")

    monkeypatch.setattr(torch.export, "load", load)


def reference(path, *args, **kwargs):
    """torch's values for the file's program, with and without its guards."""
    graph = hold_specialized(ir.capture(path), args, kwargs)
    plain = graph.context.reference(graph, args, kwargs)
    guarded = graph.context.reference(graph, args, kwargs, guarded=True)
    for a, b in zip(plain, guarded, strict=True):
        assert (a == b).all()
    return plain


def members_of(path, model, args, kwargs=None):
    torch.export.save(torch.export.export(model, args, kwargs), path)
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}


def test_the_reference_is_that_of_torch(parts, tmp_path):
    path = pt2_files.write(tmp_path / "m.pt2", parts)
    program = ir.capture(path)
    (value,) = reference(path, X)
    torch.testing.assert_close(torch.from_numpy(value), program.context.program.module()(X)[0].detach())
    for size in (2, 3):  # its guard is `n >= 3`
        shorter = X[:1].expand(size, 8)
        if size == 3:
            assert reference(path, shorter)[0].shape == (5, 8)
            continue
        with pytest.raises(AssertionError, match="Guard failed"):
            program.context.reference(program, (shorter,), {}, guarded=True)


@pytest.mark.parametrize("record", ["data/sample_inputs/MODEL.pt", "MODELS/model.json", "models/MODEL.json",
                                    "DATA/weights/weight_0", "data/Weights/weight_0", "archive_FORMAT",
                                    "data/weights/WEIGHT_0", "Data/constants/model_constants_config.json"])  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_names_that_differ_in_capitals(parts, tmp_path, record, first):
    """torch's reader takes one for the other: what was checked is not what it loads."""
    own = next(name for name in parts if name.lower() == record.lower())
    both = {record: parts[own], **parts} if first else {**parts, record: parts[own]}
    alone = {record if name == own else name: data for name, data in parts.items()}
    for changed in (both, alone):
        with pytest.raises(CaptureError, match=r"in capitals alone|no record|holds 0 programs"):
            ir.capture(pt2_files.write(tmp_path / "m.pt2", changed))
    with pytest.raises(CaptureError, match="in capitals alone"):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", both))


def test_example_inputs_in_other_capitals(parts, tmp_path):
    changed = {n: d for n, d in parts.items() if n != SAMPLES} | {"data/sample_inputs/Model.pt": parts[SAMPLES]}
    with pytest.raises(CaptureError, match="in capitals alone"):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", changed))


def test_names_with_capitals_of_their_own(parts, tmp_path):
    names = {MODEL: "models/Net.json", SAMPLES: "data/sample_inputs/Net.pt",
             WEIGHTS: WEIGHTS.replace("model_", "Net_"), CONSTANTS: CONSTANTS.replace("model_", "Net_")}  # fmt: skip
    renamed = {names.get(n, n): d for n, d in parts.items()} | {"extra/README": b"x"}
    reference(pt2_files.write(tmp_path / "m.pt2", renamed), X)


def test_example_inputs_that_are_code_are_not_run(parts, tmp_path):
    sentinel = tmp_path / "sentinel"
    expected = reference(pt2_files.write(tmp_path / "whole.pt2", parts), X)
    path = pt2_files.write(tmp_path / "m.pt2", pt2_files.harmless(parts, sentinel)["samples"])
    assert (reference(path, X)[0] == expected[0]).all()
    assert not sentinel.exists()


def test_a_file_that_is_replaced_meanwhile(parts, tmp_path):
    sentinel = tmp_path / "sentinel"
    path = pt2_files.write(tmp_path / "m.pt2", parts)
    graph = ir.capture(path)
    pt2_files.write(tmp_path / "other.pt2", pt2_files.attacks(parts, sentinel)["size"]).replace(path)
    (value,) = graph.context.reference(graph, (X,), {}, guarded=True)
    assert value.shape == (7, 8) and not sentinel.exists()


def test_a_program_that_is_written_over_meanwhile(parts, tmp_path):
    """Its text is kept as it was checked; the tensors are mapped."""
    path = pt2_files.write(tmp_path / "m.pt2", parts)
    graph = ir.capture(path)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(whole.replace(b"torch.ops.aten.linear.default", b"torch.ops.aten.linear.damaged"))
    assert graph.context.reference(graph, (X,), {})[0].shape == (7, 8)


GUARDS = ["{}", "L['x'] == {}", "L['x'].size()[0] > 0  # \"); {}  #", "L['x'].size()[0] > 0 #\n  {}"]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("noted", [True, False])
def test_guards_are_no_code(parts, tmp_path, guard, noted):
    """Those of a file that says itself who asked for what are checked as well."""
    sentinel = tmp_path / "sentinel"
    text = guard.format(f"open({str(sentinel)!r}, 'w')")
    changed = pt2_files.edited(parts, MODEL, lambda d: d.update(guards_code=[text]))
    if noted:
        changed["extra/ir_conditions.json"] = json.dumps({"branches": [], "asked": [], "from_two": []}).encode()
    try:
        reference(pt2_files.write(tmp_path / "m.pt2", changed), X)
        refused = False
    except CaptureError:
        refused = True
    assert not sentinel.exists()
    assert refused == (guard != GUARDS[2])  # a comment is left out


class Named(torch.nn.Module):
    def __init__(self, cast):
        super().__init__()
        self.cast = cast

    def forward(self, x, y, z):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.cast):
            return x @ y["key"] @ z


@pytest.mark.parametrize("cast", [True, False])
def test_names_of_arguments_are_no_code(tmp_path, cast):
    """torch writes them into source; where the file has no list of names, those of its tree."""
    args, kwargs = (torch.ones(3, 3),), {"y": {"key": torch.ones(3, 3)}, "z": torch.ones(3, 3)}
    parts = members_of(tmp_path / "m.pt2", Named(cast), args, kwargs)
    assert reference(tmp_path / "m.pt2", *args, **kwargs)[0].shape == (3, 3)
    code = f"y=open({str(tmp_path / 'sentinel')!r}, 'w')):\n    #"

    def edit(document):
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        signature["forward_arg_names"] = []
        tree = json.loads(signature["in_spec"])
        tree[1]["children_spec"][1]["context"] = json.dumps([code, "z"])
        signature["in_spec"] = json.dumps(tree)

    path = pt2_files.write(tmp_path / "n.pt2", pt2_files.edited(parts, MODEL, edit))
    with pytest.raises(CaptureError, match="is no plain one"):
        graph = ir.capture(path)
        assert not cast
        graph.context.reference(graph, args, {code: kwargs["y"], "z": kwargs["z"]})
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize("key", ['a" + open({!r}, "w") + "', "a'", "a\n{}", "a\\"])
def test_keys_of_arguments_are_no_code(tmp_path, key):
    """torch writes them into the messages of guards."""
    key = key.format(str(tmp_path / "sentinel"))
    model = Named(False)
    args = (torch.ones(3, 3), {"key": torch.ones(3, 3)}, torch.ones(3, 3))
    parts = members_of(tmp_path / "m.pt2", model, args)

    def edit(document):
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        tree = json.loads(signature["in_spec"])
        tree[1]["children_spec"][0]["children_spec"][1]["context"] = json.dumps([key])
        signature["in_spec"] = json.dumps(tree)

    graph = ir.capture(pt2_files.write(tmp_path / "n.pt2", pt2_files.edited(parts, MODEL, edit)))
    args = (args[0], {key: args[1]["key"]}, args[2])
    assert graph.context.reference(graph, args, {})[0].shape == (3, 3)
    with pytest.raises(CaptureError, match="is no plain one"):
        graph.context.reference(graph, args, {}, guarded=True)
    assert not (tmp_path / "sentinel").exists()


class Texts(torch.nn.Module):
    """What torch writes into source: names with a hyphen, a number, an operator's `from`, a text, a constant."""

    def __init__(self):
        super().__init__()
        self.add_module("block-0", torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).eval())
        self.kept = torch.ones(8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, scale: float, mode: str):
        self.count += 1
        drawn = torch.rand_like(x).uniform_(0.0, to=0.0)
        return torch.nn.functional.gelu(self.get_submodule("block-0")(x), approximate=mode) * scale + self.kept, drawn


def test_names_and_texts_that_are_plain(tmp_path):
    model = Texts()
    path = tmp_path / "m.pt2"
    args = (X, 2.0, "tanh")
    torch.export.save(torch.export.export(model, args), path)
    graph = ir.capture(path)
    count = model.count.item()
    with torch.no_grad():
        (expected, _), values = model(*args), reference(path, *args)
    torch.testing.assert_close(torch.from_numpy(values[0]), expected)
    assert values[-1] == count + 1
    for weight in graph.weights.values():
        assert weight.name != "count" or weight.numpy() == count
