"""Export and verification of .pt2 files run nothing that is in them, and torch.export.load does not see them."""

import contextlib
import zipfile

import pytest
import torch

import ir
from ir.cli import main
from tests.ir import pt2_files

X = torch.randn(4, 8)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return pt2_files.members(tmp_path_factory.mktemp("pt2") / "whole.pt2")


LOAD = torch.export.load


@pytest.fixture(autouse=True)
def no_load(monkeypatch):
    def load(*args, **kwargs):
        raise AssertionError("torch.export.load was called")

    monkeypatch.setattr(torch.export, "load", load)


@pytest.fixture(autouse=True)
def _iree(request):
    if "stablehlo" in request.node.name:
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager", "stablehlo"])
def test_a_file_is_verified_without_torchs_loader(parts, tmp_path, target):
    path = pt2_files.write(tmp_path / "m.pt2", parts)
    program = ir.export(path, target=target, verify=True)
    assert program.report.rows


@pytest.mark.parametrize("verify", [False, True])
def test_code_in_example_inputs_is_not_run(parts, tmp_path, verify):
    sentinel = tmp_path / "sentinel"
    hostile = pt2_files.harmless(parts, sentinel)["samples"]
    path = pt2_files.write(tmp_path / "m.pt2", hostile)
    ir.export(path, (X,), target="onnx", verify=verify)
    other = pt2_files.write(tmp_path / "n.pt2", {**parts, pt2_files.SAMPLES.replace("model", "MODEL"): b"x"})
    with pytest.raises(ir.CaptureError, match="in capitals alone"):
        ir.export(other, (X,), target="onnx", verify=verify)
    for more in ([], ["--no-verify"]):  # the first is refused: its example inputs are no tensors
        with contextlib.suppress(SystemExit):
            main(["export", str(path), "-q", "-o", str(tmp_path / "o.onnx"), *more])
    assert (tmp_path / "o.onnx").exists()
    assert not sentinel.exists()


def test_code_in_example_inputs_is_not_handed_on(parts, tmp_path):
    """In a file that the eager target writes; plain ones are in it."""
    for kind in ("plain", "code"):
        found = parts if kind == "plain" else pt2_files.harmless(parts, tmp_path / "sentinel")["samples"]
        path = pt2_files.write(tmp_path / f"{kind}.pt2", found)
        ir.export(path, (X,), target="eager", path=tmp_path / f"{kind}_eager.pt2", verify=True)
        with zipfile.ZipFile(tmp_path / f"{kind}_eager.pt2") as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(pt2_files.SAMPLES))
            assert archive.read(name) == (parts[pt2_files.SAMPLES] if kind == "plain" else b"")
        program = LOAD(tmp_path / f"{kind}_eager.pt2")
        assert program.module()(X).shape == (7, 8) and bool(program.example_inputs) == (kind == "plain")
