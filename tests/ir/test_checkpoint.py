"""Weights out of checkpoints: mapped, converted in a file, tied, and files that are not sound."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time

import pytest
import torch

import ir
from ir.stored import INDEX

WORDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


def write(path, tensors, pad=0):
    """A .safetensors file; `pad` blanks make the header longer."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        header[name] = {
            "dtype": WORDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Tied(torch.nn.Module):
    """An embedding that is the last layer's weight, and a table that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.layer = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)) + self.table)


def sharded(folder, dtype=torch.float32):
    torch.manual_seed(0)
    model = Tied()
    state = {n: t.to(dtype) for n, t in model.state_dict().items() if n != "head.weight"}
    write(folder / "a.safetensors", {"embed.weight": state["embed.weight"]})
    write(folder / "b.safetensors", {n: t for n, t in state.items() if n != "embed.weight"})
    names = {n: "a.safetensors" if n.startswith("embed") else "b.safetensors" for n in state}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    return model.to(dtype)


@pytest.mark.parametrize("source", ["folder", "index", "files"])
def test_weights_of_shards(tmp_path, source):
    model = sharded(tmp_path)
    if source == "files":
        (tmp_path / INDEX).unlink()
    with ir.without_weights():
        built = Tied()
    assert all(p.is_meta for p in built.parameters()) and not built.table.is_meta
    ir.load_weights(built, tmp_path / INDEX if source == "index" else tmp_path)
    assert built.head.weight is built.embed.weight
    ids = torch.tensor([[1, 5, 2]])
    assert torch.equal(built(ids), model(ids))


@pytest.mark.parametrize("left", ["a whole file", "an index", "neither"])
def test_which_of_two_files(tmp_path, left):
    """As transformers chooses: the whole file before an index, whichever of them is the older one."""
    sharded(tmp_path)
    for i, name in enumerate(["model.safetensors", "ema.safetensors"]):
        write(tmp_path / name, {"x": torch.tensor([float(i)])})
    if left != "a whole file":
        (tmp_path / "model.safetensors").unlink()
    if left == "neither":
        (tmp_path / INDEX).unlink()
        write(tmp_path / "fp16.safetensors", {"x": torch.tensor([2.0])})
        with pytest.raises(ir.ExportError, match=r"'x' lies in ema.safetensors and in fp16.safetensors, and there is"):
            ir.stored_tensors(tmp_path)
        return
    found = ir.stored_tensors(tmp_path)
    assert found["x"] == 0 if left == "a whole file" else "embed.weight" in found and "x" not in found


def test_a_graph_of_mapped_weights_is_exported(tmp_path):
    sharded(tmp_path)
    with ir.without_weights():
        built = Tied()
    graph = ir.capture(ir.load_weights(built, tmp_path), (torch.tensor([[1, 5, 2]]),))
    assert {w.name for w in graph.weights.values()} == {"head.weight", "layer.weight", "layer.bias", "table"}


@pytest.mark.parametrize(("stored", "wanted"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float16)])
def test_other_element_types_lie_in_a_file_of_their_own(tmp_path, stored, wanted):
    model = sharded(tmp_path, stored)
    with ir.without_weights():
        built = Tied()
    ir.load_weights(built, tmp_path, dtype=wanted, scratch=tmp_path)
    assert {p.dtype for p in built.parameters()} == {wanted}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors", INDEX]
    for name, tensor in model.named_parameters():
        assert torch.equal(built.get_parameter(name), tensor.to(wanted))


def test_writing_leaves_the_file_as_it_is(tmp_path):
    sharded(tmp_path)
    before = (tmp_path / "a.safetensors").read_bytes()
    ir.stored_tensors(tmp_path)["embed.weight"].zero_()
    assert (tmp_path / "a.safetensors").read_bytes() == before


def test_a_header_of_odd_length(tmp_path):
    tensor = torch.arange(6.0).view(2, 3)
    write(tmp_path / "a.safetensors", {"x": tensor, "none": torch.zeros(0, 3)}, pad=3)
    found = ir.stored_tensors(tmp_path / "a.safetensors")
    assert torch.equal(found["x"], tensor) and found["none"].shape == (0, 3)


def _broken(folder, how):
    if how == "shard":
        (folder / "b.safetensors").unlink()
    elif how == "outside":
        (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "../a.safetensors"}}))
    elif how == "name":
        (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    elif how == "index":
        (folder / INDEX).write_text("[]")
    elif how == "short":
        file = folder / "a.safetensors"
        file.write_bytes(file.read_bytes()[:-4])
    elif how == "none":
        for file in folder.iterdir():
            file.unlink()
    elif how == "shape":
        write(folder / "a.safetensors", {"embed.weight": torch.zeros(5, 4)})
    elif how == "missing":
        (folder / INDEX).unlink()
        (folder / "a.safetensors").unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shard", "names the shard 'b.safetensors', and there is no such file"),
        ("outside", "there is no such file beside it"),
        ("name", "says that x lies in a.safetensors, which does not hold it"),
        ("index", "is no index of shards"),
        ("short", "lies outside of the file"),
        ("none", "there is no model.safetensors.index.json and no .safetensors file"),
        ("shape", r"embed.weight has the shape \[5, 4\] in the checkpoint and \[6, 4\] in the model"),
        ("missing", "has no weights for embed.weight"),
    ],
)
def test_refusals(tmp_path, how, message):
    sharded(tmp_path)
    _broken(tmp_path, how)
    with pytest.raises(ir.ExportError, match=message):
        ir.load_weights(Tied(), tmp_path)


def test_element_types_are_those_that_torch_and_safetensors_share():
    types = pytest.importorskip("safetensors.torch")._TYPES
    from ir.importer import checkpoint
    from ir.stored import BITS

    ours = checkpoint._DTYPES
    assert ours.keys() == BITS.keys() and all(t.itemsize * 8 == BITS[n] for n, t in ours.items())
    assert all(types[n] == t for n, t in ours.items())


def test_integers_are_no_weights(tmp_path):
    """A buffer may be stored in another type, as old masks are; a parameter may not."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.ones(2, dtype=torch.bool))
    stored = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "mask": torch.ones(2)}
    write(tmp_path / "model.safetensors", stored)
    ir.load_weights(model, tmp_path)
    write(tmp_path / "model.safetensors", {**stored, "weight": torch.zeros(2, 2, dtype=torch.int64)})
    with pytest.raises(ir.CaptureError, match="weight is int64 in the checkpoint and float32 in the model"):
        ir.load_weights(torch.nn.Linear(2, 2), tmp_path)


def test_an_index_without_end(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("[" * 200_000)
    with pytest.raises(ir.ExportError, match="is no index of shards"):
        ir.load_weights(torch.nn.Linear(2, 2), tmp_path)


def _header(path, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


@pytest.mark.parametrize("shape", [[2**62, 2**62, 0], [0, 2**64], [2**63, 0]])
def test_an_empty_tensor_that_is_larger_than_there_can_be(tmp_path, shape):
    path = _header(tmp_path / "m.safetensors", {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    for read in (ir.stored_tensors, lambda p: ir.load_weights(torch.nn.Linear(2, 2), p)):
        with pytest.raises(ir.ExportError, match="is larger than there can be"):
            read(path)


def test_truth_values_that_are_neither_0_nor_1(tmp_path):
    header = {"a": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    path = _header(tmp_path / "m.safetensors", header)
    path.write_bytes(path.read_bytes() + b"\1\0\1")
    assert ir.stored_tensors(path)["a"].tolist() == [True, False, True]
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    with pytest.raises(ir.ExportError, match="'a' has truth values that are neither 0 nor 1; download it again"):
        ir.stored_tensors(path)


@pytest.mark.parametrize("shard", ["x" * 5000, "a\0b", "", "../m.safetensors", "\ud800"])
def test_a_shard_of_a_name_that_is_none(tmp_path, shard):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ir.ExportError, match=r"there is no such file beside it|is no sound") as refused:
        ir.stored_tensors(tmp_path / INDEX)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("pad", [b"[]," * (2 << 20), b'"' + b"x" * (65 << 20) + b'",'], ids=["parts", "length"])
def test_an_index_that_is_gigabytes_in_python(tmp_path, pad):
    (tmp_path / INDEX).write_bytes(b'{"pad": [' + pad + b'0], "weight_map": {}}')
    with pytest.raises(ir.ExportError, match=r"index\.json is JSON of more than .*, which no index of shards needs"):
        ir.stored_tensors(tmp_path / INDEX)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_an_index_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / INDEX)
    code = "import sys, ir\ntry: ir.stored_tensors(sys.argv[1])\nexcept ir.ExportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / INDEX], capture_output=True, text=True, timeout=120)
    assert "it is no plain file" in done.stdout, done.stderr


def test_many_tensors_are_read_in_time_that_grows_with_them(tmp_path):
    seconds = []
    for count in (10_000, 80_000):
        empty = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        _header(tmp_path / "m.safetensors", b"{%s}" % b",".join(b'"%d":%s' % (i, empty) for i in range(count)))
        start = time.process_time()
        assert len(ir.stored_tensors(tmp_path / "m.safetensors")) == count
        seconds.append(time.process_time() - start)
    assert seconds[1] < 40 * seconds[0]
