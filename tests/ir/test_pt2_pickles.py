"""Pickles inside of a .pt2 file: tensors and plain values, and no more memory than the file has bytes."""

import collections
import io
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch

import ir
from ir.errors import CaptureError
from ir.importer.pt2 import pickles
from tests.ir import pt2_files

HUGE = (6_000_000_000).to_bytes(5, "little")
MANY = b"(" + b"K\1" * 3000


def unpickled(code):
    """A record of torch.save's with this pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + code + b".")
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", bytes(64))
    return stream.getvalue()


def storage(count, key=b"0"):
    """A tensor of so many numbers, over a record of 64 bytes."""
    size = b"\x8a\x05" + count.to_bytes(5, "little")
    reference = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + key + b"X\3\0\0\0cpu" + size + b"tQ"
    rest = b"K\0" + size + b"\x85K\1\x85\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + rest + b"tR"


CODES = {
    "bytearray": (b"c__builtin__\nbytearray\n\x8a\x05" + HUGE + b"\x85R", "names __builtin__.bytearray"),
    "a storage": (b"ctorch.storage\nUntypedStorage\n\x8a\x05" + HUGE + b"\x85R", "calls what is no function"),
    "a new storage": (b"ctorch.storage\nUntypedStorage\n\x8a\x05" + HUGE + b"\x85\x81", "calls what is no function"),
    "a storage by another": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch.storage\nUntypedStorage\nctorch\nSize\n\x8a\x05" + HUGE
        + b"\x85}tR", "calls what is no function"),
    "a storage by one of these": (
        b"ctorch._tensor\n_rebuild_from_type_v2\nq\0(h\0ctorch\nTensor\n(ctorch.storage\nUntypedStorage\nctorch\nTensor\n"
        b"\x8a\x05" + HUGE + b"\x85}t}tR", "calls what is no function"),
    "a tensor": (b"ctorch\nTensor\n\x8a\x05" + HUGE + b"\x85\x81", "calls what is no function"),
    "a counter": (b"ccollections\nCounter\n" + MANY + b"t\x85R", r"names collections\.Counter"),
    "copies": (b"(" + MANY + b"tq\0" + b"c__builtin__\nset\nh\0\x85R" * 3000 + b"t", "again and again"),
    "a text that is read in two ways": (b"U\2\xc3\xa9", "opcode SHORT_BINSTRING"),
    "another protocol": (b"\x80\4N", "opcode PROTO"),
    "an opcode of another protocol": (MANY + b"l\x94", "opcode"),
    "texts": (b"(X\x10\x27\0\0" + b"x" * 10_000 + b"q\0" + b"c_codecs\nencode\nh\0X\6\0\0\0latin1\x86R" * 3000 + b"t",
              "again and again"),
    "what was made": (b"ccollections\nOrderedDict\n)R)R", "calls what is no function"),
    "a large number": (b"\x8a\x09" + bytes(8) + b"\1", "number"),
    "longer than its record": (storage(1 << 30), "over the end of its record"),
    "one more than its record": (storage(17), "over the end of its record"),
    "no such record": (storage(16, b"1"), "no record data/1"),
    "of another file": (b"cos\nsystem\nX\2\0\0\0ls\x85R", r"names os\.system"),
    "no pickle": (b"\xff", "no pickle"),
    "nothing": (b"", "refuses"),
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_pickles_that_are_refused(name):
    code, said = CODES[name]
    with pytest.raises(CaptureError, match=said):
        pickles.load(unpickled(code))


def test_a_storage_as_long_as_its_record():
    assert pickles.load(unpickled(storage(16))).shape == (16,)


def test_what_is_no_archive_of_stored_records():
    whole = pt2_files.saved(torch.ones(100))
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    legacy = io.BytesIO()
    torch.save(torch.ones(100), legacy, _use_new_zipfile_serialization=False)
    prefixed = pickle.dumps(1, 2) + whole
    for data in (stream.getvalue(), legacy.getvalue(), prefixed, whole[:-3], b"", b"PK\3\4"):
        with pytest.raises(CaptureError):
            pickles.load(data)


def _with_attribute(tensor):
    """As torch.export marks tensors with dynamic sizes."""
    tensor._specialize_on = {0: []}
    return tensor


def test_what_torch_saves():
    plain = {
        "tensors": [torch.randn(3, 4).t(), torch.ones(2, dtype=torch.bfloat16), torch.zeros(0), torch.tensor(1 + 2j)],
        "views": (base := torch.arange(6), base[1:3]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "types": (torch.float32, torch.int64, torch.device("cpu"), torch.Size([2, 3]), torch.strided),
        "numbers": [1, -5, 300, 70_000, 2**40, 1.5, True, None, "text", b"bytes", 1j],
        "dict": collections.OrderedDict(a=1, b={"c": (2,)}),
        "set": {1, 2},
        "sparse": torch.eye(3).to_sparse(),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "attributes": [_with_attribute(torch.ones(2)), _with_attribute(torch.nn.Parameter(torch.ones(2)))],
        "many": [torch.ones(2) for _ in range(2000)],
    }
    for name, value in plain.items():
        found = pickles.load(pt2_files.saved(value))
        assert type(found) is type(value), name
        assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(value), name
    assert pickles.load(pt2_files.saved(plain["numbers"])) == plain["numbers"]
    first, second = pickles.load(pt2_files.saved(plain["views"]))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


LIMITED = """
import resource, sys, ir
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
for path in sys.argv[1:]:
    try:
        ir.capture(path).context.example()
    except ir.ExportError as error:
        print(error)
"""


def test_memory(tmp_path):
    """Example inputs and weights of subclasses alike."""
    parts = pt2_files.members(tmp_path / "whole.pt2")
    code = unpickled(CODES["bytearray"][0])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data/0", bytes(1 << 28))

    def edit(document):
        next(iter(document["config"].values())).update(use_pickle=True, path_name="pickled")

    weights = pt2_files.edited(parts, pt2_files.WEIGHTS, edit)
    found = [
        {**parts, pt2_files.SAMPLES: code}, {**parts, pt2_files.SAMPLES: stream.getvalue()},
        {**weights, "data/weights/pickled": code},
    ]  # fmt: skip
    paths = [str(pt2_files.write(tmp_path / f"{i}.pt2", p)) for i, p in enumerate(found)]
    done = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, third = done.stdout.splitlines()
    assert "bytearray" in first and "compressed" in second and "bytearray" in third


def test_example_inputs_over_the_end_of_their_record(tmp_path):
    """torch reads what lies behind in memory."""
    parts = pt2_files.members(tmp_path / "whole.pt2")
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: unpickled(storage(1 << 20) + b"\x85}\x86")})
    with pytest.raises(CaptureError, match="over the end of its record"):
        ir.capture(path).context.example()
