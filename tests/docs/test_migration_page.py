"""The page for people who come from torch.onnx.export: its code runs, and it tells of every argument what happens."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import ir
from ir.foreign import TORCH_ONNX

PAGE = (Path(__file__).parents[2] / "docs" / "migrating-from-torch-onnx.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
ARGUMENTS = list(inspect.signature(torch.onnx.export).parameters)
TAKEN = {*inspect.signature(ir.export).parameters, "external_data", "custom_opsets", "custom_translation_table"}


def test_code_runs():
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "migrating-from-torch-onnx.md", "exec"), names)


def test_every_argument_of_torchs_has_a_row():
    assert set(ARGUMENTS) <= ROWS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_works_or_is_refused_with_what_to_write(name):
    if name in TAKEN:
        return
    with pytest.raises(TypeError, match=re.escape(TORCH_ONNX[name])):
        ir.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),), **{name: None})


def test_what_the_page_calls_the_same_is_taken():
    same = {name for name, text in ROWS.items() if text.startswith("the same")}
    assert same <= TAKEN


def test_names_of_torchs_program():
    program = ir.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    assert isinstance(program.exported_program, torch.export.ExportedProgram)
    assert program.model_proto.graph.node
    other = ir.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),), target="eager")
    with pytest.raises(AttributeError, match=r"target 'eager' has no model_proto; \.artifact is what it is"):
        other.model_proto
