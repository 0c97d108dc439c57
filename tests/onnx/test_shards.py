"""Data files of a bounded size, with checksums."""

from __future__ import annotations

import multiprocessing
import os
import signal

import onnx
import pytest
import torch

import ir
import onnx_backend
import onnx_backend.target


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).eval()


def data(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix == ".data")


def export(tmp_path, **options):
    x = torch.randn(2, 64)
    return ir.export(model(), (x,), path=tmp_path / "model.onnx", verify=True, **options)


@pytest.mark.parametrize(("limit", "files"), [(1 << 20, 1), (40_000, 3), (16_384, 6), (100, 6)])
def test_files_are_as_large_as_was_said(tmp_path, limit, files):
    export(tmp_path, max_shard_size=limit)
    assert data(tmp_path) == sorted(["model.onnx.data", *(f"model.onnx.{i}.data" for i in range(1, files))])
    assert all((tmp_path / n).stat().st_size <= max(limit, 16_384) for n in data(tmp_path))
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert onnx_backend.check_data(tmp_path / "model.onnx") == files


def test_another_export_takes_their_place(tmp_path):
    export(tmp_path, max_shard_size=16_384)
    export(tmp_path, max_shard_size=1 << 20)
    assert len(data(tmp_path)) == 1
    export(tmp_path)
    assert data(tmp_path) == []


def test_other_bytes_are_noticed(tmp_path):
    export(tmp_path, max_shard_size=40_000)
    place = tmp_path / "model.onnx.1.data"
    raw = bytearray(place.read_bytes())
    raw[100] ^= 1
    place.write_bytes(raw)
    with pytest.raises(ir.ExportError, match=r"model\.onnx\.1\.data holds other bytes than were written"):
        onnx_backend.check_data(tmp_path / "model.onnx")
    place.unlink()
    with pytest.raises(ir.ExportError, match=r"model\.onnx\.1\.data cannot be read"):
        onnx_backend.check_data(tmp_path / "model.onnx")


def test_sizes_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="max_shard_size=0: bytes, at least 1"):
        export(tmp_path, max_shard_size=0)


def cut_off(tmp_path):
    """An export whose process is killed in the middle of its fourth data file."""
    own, calls = onnx_backend.target.write_data, []

    def written(tensors, path):
        calls.append(path)
        if len(calls) < 4:
            return own(tensors, path)
        path.write_bytes(b"".join(t.tobytes() for t in tensors)[:5000])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    onnx_backend.target.write_data = written
    export(tmp_path, max_shard_size=16_384)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_an_export_that_was_cut_off_goes_on(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=cut_off, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (staging,) = tmp_path.iterdir()
    left = {n: (staging / n).stat() for n in data(staging)}
    assert [left[n].st_size for n in sorted(left)] == [16_384, 16_384, 5000, 16_384]
    damaged = staging / "model.onnx.1.data"
    raw = bytearray(damaged.read_bytes())
    raw[9000] ^= 1
    damaged.write_bytes(raw + b"more")
    export(tmp_path, max_shard_size=16_384)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", *data(tmp_path)]
    assert onnx_backend.check_data(tmp_path / "model.onnx") == len(data(tmp_path)) == 6
    found = {n: (tmp_path / n).stat() for n in left}
    assert all(found[n].st_ino == left[n].st_ino for n in left)
    whole = ("model.onnx.data", "model.onnx.2.data")  # whose bytes nobody wrote again
    assert all(found[n].st_mtime_ns == left[n].st_mtime_ns for n in whole)


def test_an_export_of_something_else_takes_nothing(tmp_path):
    staging = tmp_path / ".model.onnx.0123456789abcdef.partial"
    staging.mkdir()
    (staging / ".ir.lock").touch()
    (staging / "model.onnx.data").write_bytes(bytes(70_000))
    outside = tmp_path / "other"
    outside.write_bytes(b"kept")
    (staging / "model.onnx.1.data").symlink_to(outside)
    export(tmp_path, max_shard_size=40_000)
    assert onnx_backend.check_data(tmp_path / "model.onnx") == 3 and outside.read_bytes() == b"kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", *data(tmp_path), "other"]
