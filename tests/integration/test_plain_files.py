"""What is opened by a name that a user gives, or a file: plain files alone, as a pipe lets a reader wait for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ir
import onnx_backend
from ir.files import strange
from ir.opening import open_artifact
from ir.runtime import sessions
from ir.stored import checkpoint
from ir.view.page import check_path

X = (torch.randn(2, 4),)
KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
}
NAMES = ["m.onnx", "m.mlir", "m.vmfb", "m.nnef.tar", "m.nnef.tgz", "m.pt2"]
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_an_artifact(kind: str, name: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / name)
    for target in (None, "onnx", "nnef", "eager"):
        with pytest.raises(ir.ExportError, match="it is no plain file"):
            open_artifact(tmp_path / name, target)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_where_something_is_to_be_written(kind: str, tmp_path: Path) -> None:
    for name in ("m.onnx.certificate.json", "page.html", "report.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / "pipe").unlink(missing_ok=True)
        KINDS[kind](tmp_path / name)
    with pytest.raises(ir.ExportError, match=r"stays as it is|choose another path"):
        check_path(tmp_path / "page.html")
    with pytest.raises(ir.ExportError, match=r"stays as it is|choose another path"):
        ir.export(nn.Linear(4, 4), X, target="onnx", report=tmp_path / "report.md")
    with pytest.raises(ir.ExportError, match=r"stays as it is|choose another path"):
        ir.export(nn.Linear(4, 4), X, target="onnx", path=tmp_path / "m.onnx", verify="thorough")


@pytest.mark.parametrize("kind", KINDS)
def test_names_out_of_files(kind: str, tmp_path: Path) -> None:
    ir.export(nn.Linear(64, 64), (torch.randn(2, 64),), target="onnx", path=tmp_path / "m.onnx", external_data=True)
    assert onnx_backend.check_data(tmp_path / "m.onnx") == 1 and not strange(tmp_path)
    (tmp_path / "m.onnx.data").unlink()
    KINDS[kind](tmp_path / "m.onnx.data")
    with pytest.raises(ir.ExportError, match="it is no plain file"):
        onnx_backend.check_data(tmp_path / "m.onnx")
    assert strange(tmp_path) == "m.onnx.data"


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_shards(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / "model.safetensors.index.json")
    with pytest.raises(ir.ExportError, match="it is no plain file"):
        checkpoint(tmp_path / "model.safetensors.index.json")


def test_a_folder_of_bytes_is_one_that_others_clear(tmp_path: Path) -> None:
    ir.export(nn.Linear(4, 4), X, target="onnx", path=tmp_path / "m.onnx")
    key = sessions.Key("m.onnx", None, 1)
    sessions.session(key, sessions.Packed.of(tmp_path / "m.onnx"))
    held = sessions._HERE.open[key].folder
    assert held is not None and (held.path / ".ir.lock").read_text().split()[0] == str(os.getpid())
    folder = held.path
    del held
    sessions.close(key)
    assert not folder.exists()
