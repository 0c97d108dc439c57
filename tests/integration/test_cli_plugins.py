"""Plugins that the command line names: a file of the current folder will do, and one that is not there is an error."""

from __future__ import annotations

import shutil
import subprocess

import pytest

MODEL = """
import torch


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), (torch.randn(2, 3),)
"""
HANDLERS = """
import onnx_backend


@onnx_backend.register("aten::relu")
def relu(h, self):
    return self
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "my_handlers.py").write_text(HANDLERS)
    return tmp_path


def run(folder, *words):
    """The command as it is installed, which does not begin with the current folder as `python -m ir` does."""
    return subprocess.run([shutil.which("ir"), *words], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["debug"], "1 differs by itself", marks=pytest.mark.slow),
        (["export"], "%relu = aten::relu"),
        pytest.param(["reduce"], "1 node is left: aten::relu", marks=pytest.mark.slow),
    ],
)
def test_a_plugin_lies_in_the_current_folder(words, said, folder):
    done = run(folder, *words, "my_model:model", "--plugin", "my_handlers")
    assert "could not be imported" not in done.stderr
    assert done.returncode == (words != ["reduce"]) and said in done.stdout + done.stderr, done


@pytest.mark.parametrize("command", ["debug", "export", "ops"])
def test_a_plugin_that_is_not_there_is_an_error(command, folder):
    done = run(folder, command, "my_model:model", "--plugin", "my_handler")
    assert done.returncode == 2 and "plugin my_handler (explicit) could not be imported" in done.stderr, done
    assert not done.stdout and not (folder / "model.onnx").exists()
