"""Data files of a bounded size, with checksums."""

from __future__ import annotations

import onnx
import pytest
import torch

import ir
import onnx_backend


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
