"""`--input` reads what numpy writes of numbers, and refuses anything else before it takes memory for it."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch

from ir.cli import array_files, arrays
from ir.cli.wrong import WrongCall

PLAIN = np.ones((2, 3), np.float32)


def header(text):
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.encode().ljust(117) + b"\n"


def described(descr="'<f4'", shape="(1,)"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def zipped(data, name="x.npy", kind=zipfile.ZIP_STORED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as archive:
        archive.writestr(name, data)
    return made.getvalue()


def changed(data, places):
    made = bytearray(data)
    for mark, offset, value in places:
        made[data.find(mark) + offset] = value
    return bytes(made)


SOUND = zipped(described() + b"\0" * 4)
ODD = {
    "objects.npz": zipped(described("'|O'") + b"x"),
    "damaged.npz": changed(SOUND, [(b"NUMPY", 124, 7)]),
    "encrypted.npz": changed(SOUND, [(b"PK\x01\x02", 8, 1), (b"PK\x03\x04", 6, 1)]),
    "unknown.npz": changed(SOUND, [(b"PK\x01\x02", 10, 99), (b"PK\x03\x04", 8, 99)]),
    "lzma.npz": zipped(described() + b"\0" * 4, kind=zipfile.ZIP_LZMA),
    "text.npz": zipped(b"hello", "x.txt"),
    "cut.npz": SOUND[:-30],
    "array.npz": described() + b"\0" * 4,
    "archive.npy": SOUND,
    "large.npy": described(shape="(1099511627776,)"),
    "large.npz": zipped(described(shape="(1099511627776,)")),
    "beyond.npy": described(shape="(4611686018427387904, 4611686018427387904)"),
    "no bytes.npy": described("'<U0'", "(1000000000, 4)"),
    "void.npz": zipped(described("'|V0'", "(1099511627776, 4)")),
    "negative.npy": described(shape="(-1,)") + b"\0" * 16,
    "deep.npy": header("[" * 90),
    "open.npy": header("{'descr': ("),
    "empty.npy": b"",
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_array_is_told_in_one_sentence(name, tmp_path):
    (tmp_path / name).write_bytes(ODD[name])
    with pytest.raises(WrongCall, match=r"holds no arrays of numbers, or is damaged: write it with"):
        arrays.given([str(tmp_path / name)])


def test_what_numpy_writes_is_read(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(PLAIN))
    np.savez_compressed(tmp_path / "b.npz", one=np.zeros(1 << 20, np.int64), two=np.float64(2.5), three=PLAIN[:0])
    np.save(tmp_path / "c.npy", PLAIN.astype(">f4"))
    assert torch.equal(arrays.given([f"x={tmp_path / 'a.npy'}"])["x"], torch.ones(2, 3))
    assert torch.equal(arrays.given([str(tmp_path / "c.npy")])["#0"], torch.ones(2, 3))
    found = dict(array_files.arrays_in(str(tmp_path / "b.npz")))
    assert not found["one"].any() and found["two"] == 2.5 and found["three"].shape == (0, 3)


def test_what_torch_has_not(tmp_path):
    np.save(tmp_path / "a.npy", np.array(["words"]))
    with pytest.raises(WrongCall, match="torch has no tensors of <U5"):
        arrays.given([str(tmp_path / "a.npy")])
