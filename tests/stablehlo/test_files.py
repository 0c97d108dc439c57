"""What is written and read: modules, compiled modules, the archive of weights beside them."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch
from torch import nn

import ir
from stablehlo_backend import StableHLO
from stablehlo_backend.runtime.child import shared


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def exported(**options):
    return ir.export(model(), (torch.randn(2, 4),), target="stablehlo", dynamic_shapes=({0: "batch"},), **options)


@pytest.mark.parametrize("suffix", [".mlir", ".vmfb"])
def test_a_file_runs_at_every_size_and_is_replaced_with_its_archive(suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    program = exported(path=path, verify=True)
    assert program(torch.ones(5, 4)).shape == (5, 3)
    first = {p.name for p in tmp_path.iterdir()}
    program.save(path)
    second = {p.name for p in tmp_path.iterdir()}
    assert len(first) == len(second) == 2 and first & second == {path.name}
    program.verify()


def test_an_archive_that_a_copy_of_the_module_names_stays(tmp_path):
    program = exported(path=tmp_path / "model.mlir")
    (tmp_path / "copy.mlir").write_bytes((tmp_path / "model.mlir").read_bytes())
    program.save(tmp_path / "model.mlir")
    assert len(list(tmp_path.glob("*.irpa"))) == 2


def test_what_is_no_plain_file_is_not_waited_for(tmp_path):
    exported().save(tmp_path / "m.mlir")
    os.mkfifo(tmp_path / "pipe.mlir")
    os.symlink("/dev/zero", tmp_path / "zero.mlir")
    (archive,) = tmp_path.glob("*.irpa")
    archive.unlink()
    os.mkfifo(archive)
    for name in ("pipe.mlir", "zero.mlir", "m.mlir"):
        with pytest.raises(ir.ExportError, match="it is no plain file"):
            StableHLO().open(tmp_path / name)


def test_weights_are_not_in_the_text_and_dimensions_have_names():
    text = exported().artifact.text
    assert '#stream.parameter.named<"model"::"0.weight"> : tensor<8x4xf32>' in text
    assert "input: f32[batch, 4]" in text and "tensor<?x4xf32>" in text
    assert text.count("dense<") == 1  # the zero of relu


def test_other_names_are_refused(tmp_path):
    with pytest.raises(ir.OutputError, match=r"model\.mlir or model\.vmfb"):
        exported(path=tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_sizes_and_types_are_checked_at_the_call():
    program = exported()
    for wrong in (torch.ones(2, 5), torch.ones(2, 4, dtype=torch.float64)):
        with pytest.raises(ir.RefusedError, match="was made for"):
            program(wrong)


def test_a_program_goes_to_another_process_and_into_copies():
    program = exported()
    x = torch.ones(3, 4)
    for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert torch.equal(other(x), program(x))


def test_a_program_comes_back_after_its_process_has_died():
    program = exported()
    before = program(torch.ones(2, 4))
    shared().close()
    assert torch.equal(program(torch.ones(2, 4)), before)


def test_what_the_compiler_says_is_an_error_of_ours():
    program = ir.export(model(), (torch.randn(2, 4),), target=StableHLO(flags=("--no-such-flag",)))
    with pytest.raises(ir.RuntimeFailure, match="IREE does not compile"):
        program(torch.randn(2, 4))
