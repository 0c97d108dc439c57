"""Files whose numbers make a kernel of torch's read or write where it may not: exported, or refused, not obeyed."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import ir
from tests.ir.pt2_files import MODEL, SAMPLES, edited, write
from tests.ir.unchecked_kernels import CALLS, A, Model, lines_of, model, saved, survives


def exported(target: str) -> None:
    """Print what ends the process when a file is exported, or a live model with the least integer."""
    with tempfile.TemporaryDirectory() as folder:
        for name in CALLS:
            path = saved(name, Path(folder))
            if ended := survives(lambda p=path: ir.export(p, target=target)):
                print("file", name, ended)
            live = name.startswith("least") or name == "lcm"
            if live and (ended := survives(lambda n=name: ir.export(model(n), (torch.ones(3),), target=target))):
                print("live", name, ended)


@pytest.fixture(autouse=True)
def _iree(request: pytest.FixtureRequest) -> None:
    if "stablehlo" in request.node.name:
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has


@pytest.mark.parametrize("target", ["onnx", "eager", "nnef", "stablehlo"])
def test_no_number_of_a_file_ends_the_process_that_exports_it(target: str) -> None:
    assert lines_of("tests.integration.test_file_numbers", target) == []


def aliased(path: Path, size: int) -> Path:
    """Four elements seen as so many, by a file that was edited."""
    small = Model(lambda a: A._reshape_alias(a, [4], [1]) * 1, torch.arange(4.0))
    torch.export.save(torch.export.export(small, (torch.ones(3),)), path)
    with zipfile.ZipFile(path) as archive:
        parts = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    parts.pop(SAMPLES)

    def larger(document: Any) -> None:
        graph = document["graph_module"]["graph"]
        for argument in (i for n in graph["nodes"] for i in n["inputs"] if i["name"] == "size"):
            argument["arg"] = {"as_ints": [size]}
        for name, value in graph["tensor_values"].items():
            if value["sizes"] == [{"as_int": 4}] and not name.startswith("b_"):
                value["sizes"] = [{"as_int": size}]

    return write(path, edited(parts, MODEL, larger))


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_no_memory_beyond_a_tensor_comes_into_a_file_or_a_result(target: str, tmp_path: Path) -> None:
    path = aliased(tmp_path / "alias.pt2", 400)
    with pytest.raises((ir.ExportError, RuntimeError), match="out of bounds"):
        ir.export(path, target=target)(torch.ones(3))


@pytest.mark.parametrize("target", ["onnx", "eager", "nnef", "stablehlo"])
def test_a_view_within_its_tensor_is_exported(target: str, tmp_path: Path) -> None:
    made = ir.export(aliased(tmp_path / "alias.pt2", 4), target=target)(torch.ones(3))
    torch.testing.assert_close(torch.as_tensor(made), torch.ones(3) + 6)


if __name__ == "__main__":
    exported(sys.argv[1])
