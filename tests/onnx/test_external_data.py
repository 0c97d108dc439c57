"""Weights beside the model: data files, and references to .safetensors files that are there already."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import nn

import ir
from ir.errors import RuntimeFailure
from ir.opening import open_artifact
from onnx_backend import target
from onnx_backend.building import made
from onnx_backend.format import writer
from onnx_backend.format.data_files import locations

X = torch.randn(2, 5, 32)


class Tied(nn.Module):
    """A matrix used twice, a convolution with its norm, linear layers with and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32, bias=False)
        self.second.weight = self.first.weight
        self.conv, self.norm = nn.Conv1d(32, 64, 3, padding=1), nn.BatchNorm1d(64)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(self.second(self.first(x)).mT)))


def save(model, path):
    """A .safetensors file, written from the format's description."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in model.state_dict().items():
        if name.startswith("second"):
            continue  # safetensors keeps tied weights once
        kind = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}[t.dtype]
        raw = bytes(t.contiguous().flatten().view(torch.uint8).tolist()) if t.numel() else b""
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return header, text, data


def references(path):
    model = onnx.load(path, load_external_data=False)
    found = {i.name: {e.key: e.value for e in i.external_data} for i in model.graph.initializer if i.external_data}
    return {name: (e["location"], int(e["offset"]), int(e["length"])) for name, e in found.items()}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tied().eval()


def exported(model, folder, **options):
    options = {"external_data": "reference", "dynamic_shapes": ({0: "batch"},), **options}
    return ir.export(model, (X,), target="onnx", path=folder / "m.onnx", verify=True, **options)


def test_references_point_into_the_file_and_copy_nothing(model, tmp_path):
    _, text, _ = save(model, tmp_path / "model.safetensors")
    program = exported(model, tmp_path)
    program.verify((torch.randn(7, 5, 32),))
    found = references(program.path)
    assert {*found} - {"first.weight", "second.weight"} == {"conv.weight"}  # of at least a kilobyte, the tied one once
    assert len(found) == 2
    assert all(place[0] == "model.safetensors" and place[1] >= 8 + len(text) for place in found.values())
    assert program.path.stat().st_size < 8000 and sorted(os.listdir(tmp_path)) == ["m.onnx", "model.safetensors"]
    onnx.checker.check_model(str(program.path))
    session = onnxruntime.InferenceSession(str(program.path))
    expected = model(X).detach().numpy()
    assert abs(session.run(None, {session.get_inputs()[0].name: X.numpy()})[0] - expected).max() < 1e-5


def test_what_is_not_in_the_file_goes_into_the_model(model, tmp_path):
    save(model, tmp_path / "model.safetensors")
    with torch.no_grad():
        model.conv.weight[0, 0, 0] += 1  # same name, same shape, other bytes
    assert len(references(exported(model, tmp_path).path)) == 1


def test_a_tensor_is_found_under_another_name_in_another_file(model, tmp_path):
    save(nn.ModuleDict({"x": nn.Linear(3, 3)}), tmp_path / "a.safetensors")
    save(nn.ModuleDict({"wrapped": model}), tmp_path / "b.safetensors")
    assert {p[0] for p in references(exported(model, tmp_path).path).values()} == {"b.safetensors"}


def test_bfloat16_and_functions(model, tmp_path):
    save(model.bfloat16(), tmp_path / "model.safetensors")
    path = tmp_path / "m.onnx"
    ir.export(model, (X.bfloat16(),), target="onnx", path=path, external_data="reference", functions=True, verify=True)
    assert len(references(path)) == 2


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_links_are_refused_before_anything_is_written(model, tmp_path, kind):
    elsewhere = tmp_path / "cache"
    elsewhere.mkdir()
    save(model, elsewhere / "blob")
    link = os.symlink if kind == "symbolic" else os.link
    link(elsewhere / "blob", tmp_path / "model.safetensors")
    with pytest.raises(ir.ExportError, match=f"(?s){kind} link.*cp -L"):
        exported(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["cache", "model.safetensors"]
    shutil.copyfile(elsewhere / "blob", tmp_path / "copy")
    os.replace(tmp_path / "copy", tmp_path / "model.safetensors")
    assert len(references(exported(model, tmp_path).path)) == 2


def test_no_file_there_is_an_error_that_says_so(model, tmp_path):
    with pytest.raises(ir.ExportError, match="no such file there"):
        exported(model, tmp_path)


LIES = {
    "a header longer than the file": lambda h, t, d: struct.pack("<Q", 1 << 40) + t + d,
    "a header longer than the limit": lambda h, t, d: struct.pack("<Q", 2**64 - 1) + t + d,
    "nothing": lambda h, t, d: b"",
    "no JSON": lambda h, t, d: struct.pack("<Q", 4) + b"{{{{" + d,
    "too deep": lambda h, t, d: struct.pack("<Q", 200000) + b"[" * 200000 + d,
    "a list": lambda h, t, d: struct.pack("<Q", 2) + b"[]" + d,
    "a tensor past the end": lambda h, t, d: altered(h, d, data_offsets=[len(d), len(d) + 4096]),
    "a tensor over another": lambda h, t, d: altered(h, d, data_offsets=[0, 4096]),
    "backwards": lambda h, t, d: altered(h, d, data_offsets=[4096, 0]),
    "before the beginning": lambda h, t, d: altered(h, d, data_offsets=[-4096, 0]),
    "another shape": lambda h, t, d: altered(h, d, shape=[32, 33]),
    "a negative shape": lambda h, t, d: altered(h, d, shape=[-32, -32]),
    "a shape of fractions": lambda h, t, d: altered(h, d, shape=[32.0, 32]),
    "a name twice": lambda h, t, d: struct.pack("<Q", 15) + b'{"a":{},"a":{}}' + d,
}


def altered(header, data, **changes):
    text = json.dumps(header | {"zzz": header["first.weight"] | changes}).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(model, tmp_path, lie):
    content = LIES[lie](*save(model, tmp_path / "model.safetensors"))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ir.ExportError, match=r"no sound \.safetensors file"):
        exported(model, tmp_path)
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_data_file_beside_the_model(model, tmp_path):
    program = exported(model, tmp_path, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    found = references(program.path).values()
    assert len(found) == 2 and all(offset % 4096 == 0 for _, offset, _ in found)
    exported(model, tmp_path, external_data=True).verify((torch.randn(3, 5, 32),))
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data"]  # the older pair was whole until the end
    exported(model, tmp_path, external_data=True).verify((torch.randn(3, 5, 32),))
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]


def test_only_data_files_of_the_replaced_model_are_taken_away(model, tmp_path):
    (tmp_path / "m.onnx.data").write_bytes(b"somebody else's")
    (tmp_path / "m.onnx.1.data").symlink_to(tmp_path / "nowhere")  # a name that is taken, too
    exported(model, tmp_path, external_data=True)
    assert {place[0] for place in references(tmp_path / "m.onnx").values()} == {"m.onnx.2.data"}
    exported(model, tmp_path, external_data=True).verify()
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.3.data", "m.onnx.data"]
    assert (tmp_path / "m.onnx.data").read_bytes() == b"somebody else's"
    exported(model, tmp_path, external_data=False)  # nothing refers to the last one any more
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]


def test_files_of_other_names_stay_though_the_replaced_model_refers_to_them(model, tmp_path):
    save(model, tmp_path / "model.safetensors")
    exported(model, tmp_path)
    exported(model, tmp_path, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "model.safetensors"]


BROKEN = {
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[: len(raw) // 2],
    "text": lambda raw: b"no model, a note",
    "a length past the end": lambda raw: b"\x3a\xff\xff\xff\x7f" + raw,
    "a number without end": lambda raw: b"\xff" * 40,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_nothing_goes_where_the_replaced_model_cannot_be_read(model, tmp_path, kind):
    path = exported(model, tmp_path, external_data=True).path
    path.write_bytes(BROKEN[kind](path.read_bytes()))
    exported(model, tmp_path, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]


def test_a_link_to_a_model_keeps_what_is_behind_it(model, tmp_path):
    exported(model, tmp_path, external_data=True)
    os.rename(tmp_path / "m.onnx", tmp_path / "kept.onnx")
    os.symlink("kept.onnx", tmp_path / "m.onnx")
    exported(model, tmp_path, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["kept.onnx", "m.onnx", "m.onnx.1.data", "m.onnx.data"]
    assert {place[0] for place in references(tmp_path / "kept.onnx").values()} == {"m.onnx.data"}


def test_places_are_read_as_onnx_reads_them(model, tmp_path):
    save(nn.ModuleDict({"first": model.first}), tmp_path / "model.safetensors")
    for kind in (True, False, "reference"):
        path = exported(model, tmp_path, external_data=kind).path
        assert locations(path) == {place[0] for place in references(path).values()}


def test_what_is_left_over_beside_references_lies_in_a_data_file(model, tmp_path, monkeypatch):
    """Verified while the data file is staged elsewhere than the .safetensors file."""
    save(nn.ModuleDict({"first": model.first}), tmp_path / "model.safetensors")
    monkeypatch.setattr("onnx_backend.target.LIMIT", 2000)
    program = exported(model, tmp_path)
    program.verify((torch.randn(7, 5, 32),))
    assert {place[0] for place in references(program.path).values()} == {"model.safetensors", "m.onnx.data"}
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "model.safetensors"]


@pytest.mark.parametrize(("rows", "columns"), [(7, 9), (64, 5), (3, 1), (8, 8)])
@pytest.mark.parametrize("kind", [onnx_ir.DataType.INT4, onnx_ir.DataType.INT8, onnx_ir.DataType.BFLOAT16])
def test_a_weight_in_pieces_is_the_whole(rows, columns, kind, monkeypatch):
    """Two steps that make numbers one by one, the second a transpose: as much as a piece is made at a time."""
    source = onnx_ir.tensor(np.arange(rows * columns, dtype=np.int8).reshape(rows, columns) % 8)
    shape = onnx_ir.Shape([rows, columns])
    cast = made.Made(lambda a: a.astype(kind.numpy()), [source], kind, shape, made.same)
    turned = made.Made(lambda a: a.T, [cast], kind, onnx_ir.Shape([columns, rows]), made.turned)
    whole = turned.tobytes()
    monkeypatch.setattr(made, "PIECE", 16)
    pieces = [*turned.pieces()]
    assert len(pieces) == (1 if rows * columns <= 16 else -(-columns // max(2, 16 // rows // 2 * 2)))
    assert np.array_equal(np.concatenate(pieces), source.numpy().T.astype(kind.numpy()))
    assert b"".join(map(bytes, writer._pieces(turned))) == whole


def test_a_weight_of_one_that_is_computed_whole_is_made_whole():
    lazy = onnx_ir.LazyTensor(
        lambda: onnx_ir.tensor(np.eye(3, dtype="f4")), onnx_ir.DataType.FLOAT, onnx_ir.Shape([3, 3])
    )
    turned = made.Made(lambda a: a.T, [lazy], onnx_ir.DataType.FLOAT, onnx_ir.Shape([3, 3]), made.turned)
    assert not turned.has_pieces and len([*turned.pieces()]) == 1


@pytest.fixture
def elsewhere(model, tmp_path):
    """The weights in one folder, a place for the model in another, where a stranger's file has the same name."""
    (tmp_path / "weights").mkdir()
    save(model, tmp_path / "weights" / "model.safetensors")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"a stranger's")
    return tmp_path / "weights", tmp_path / "out" / "m.onnx"


@pytest.mark.parametrize("options", (None, {"intra_op_num_threads": 1}, onnxruntime.SessionOptions()))
def test_references_to_the_weights_of_another_folder(model, elsewhere, options):
    folder, path = elsewhere
    said = {"external_data": "reference", "weights_folder": folder, "session_options": options}
    program = ir.export(model, (X,), target="onnx", path=path, verify=True, **said)
    assert {place[0] for place in references(path).values()} == {"model.safetensors"}
    assert sorted(p.name for p in path.parent.iterdir()) == ["m.onnx", "model.safetensors"]
    assert path.stat().st_size < 20_000
    with pytest.raises(Exception, match="ONNXRuntimeError"):  # the stranger's, without the folder
        onnxruntime.InferenceSession(str(path))
    ir.export(model, (X,), target="onnx", path=path)  # replaces the model alone
    assert (path.parent / "model.safetensors").read_bytes() == b"a stranger's"
    assert torch.allclose(program(X), model(X), atol=1e-5)


def test_a_program_that_refers_to_another_folder_is_copied(model, elsewhere):
    folder, path = elsewhere
    program = ir.export(model, (X,), target="onnx", path=path, external_data="reference", weights_folder=folder)
    assert torch.equal(pickle.loads(pickle.dumps(program))(X), program(X))


def test_a_model_that_is_opened_without_its_weights(model, elsewhere):
    folder, path = elsewhere
    options = {"external_data": "reference", "weights_folder": folder}
    ir.export(model, (X,), target="onnx", path=path, **options)
    (path.parent / "model.safetensors").unlink()
    assert torch.allclose(open_artifact(path, target.Onnx(**options))(X)[0], model(X), atol=1e-5)
    with pytest.raises(RuntimeFailure, match="name that by external_data='reference' and weights_folder="):
        open_artifact(path, "onnx")


def test_the_lines_that_open_such_a_model(model, elsewhere):
    folder, path = elsewhere
    program = ir.export(model, (X,), target="onnx", path=path, external_data="reference", weights_folder=folder)
    [found] = _run(program.target.usage(path, program.graph))
    assert torch.allclose(torch.from_numpy(found), model(X), atol=1e-5)


def _run(lines):
    """The value of the last of these lines, where `x` is the input."""
    *before, last = lines.splitlines()
    names = {"x": X.numpy()}
    exec("\n".join(before), names)
    return eval(last, names)


def test_folders_that_cannot_be_referred_to(model, elsewhere, monkeypatch):
    folder, path = elsewhere

    def refused(error, told, **options):
        with pytest.raises(error, match=told):
            ir.export(model, (X,), target="onnx", path=path, **options)
        assert not path.exists()

    refused(ValueError, "weights_folder= is the folder that external_data='reference'", weights_folder=folder)
    refers = {"external_data": "reference", "weights_folder": folder}
    refused(ir.ExportError, "holds no .safetensors file", **{**refers, "weights_folder": path.parent.parent})
    refused(TypeError, "weights_folder=5: give the path of a folder", **{**refers, "weights_folder": 5})
    for nowhere in ("", next(folder.glob("*.safetensors"))):
        refused(ValueError, "weights_folder=.*: there is no such folder", **{**refers, "weights_folder": nowhere})
    monkeypatch.setattr(target, "LIMIT", 100)
    refused(ir.ExportError, "of weights lie in no file of .* and a model holds 2 GB: use external_data=True", **refers)
    monkeypatch.undo()
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    refused(ir.ExportError, "needs onnxruntime 1.28 or newer, and this is 1.27.0", **refers)
    monkeypatch.undo()
    (other := folder.parent / "other").mkdir()
    save(model, other / "more")
    (folder / "more.safetensors").symlink_to(other / "more")
    refused(ir.ExportError, "holds links to files in 2 folders: give the one folder", **refers)
