"""The examples of ops of one's own: they export with dynamic sizes and run equal to torch in tract at two of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nnef_backend

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_my_op(tmp_path):
    program = example("nnef_my_op").main(tmp_path / "model.nnef.tgz")
    text = program.artifact.to_text()
    assert "relu(" in text and "shape = [batch, 8]" in text and not program.artifact.fragments
    assert nnef_backend.load(tmp_path / "model.nnef.tgz").input_names == ["x"]


def test_selective_scan(tmp_path):
    program = example("nnef_selective_scan").main(tmp_path / "model.nnef")
    text = program.artifact.to_text()
    assert [f.name for f in program.artifact.fragments] == ["selective_step"]
    assert text.count("tract_core_scan(") == 1 and "shape = [batch, length, 16]" in text
