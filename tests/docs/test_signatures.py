"""ir/signatures.pyi, which editors read, has the arguments that `ir.export` and the targets have."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import ir
from eager_backend import Eager
from nnef_backend import Khronos, Tract
from onnx_backend import Onnx

STUB = Path(ir.__file__).with_name("signatures.pyi")
SURFACE = Path(__file__).parents[1] / "typed" / "surface.py"
CLASSES = {n.name: n for n in ast.parse(STUB.read_text()).body if isinstance(n, ast.ClassDef)}


def keys(name):
    """Those of a TypedDict of the stub and of its bases."""
    if name not in CLASSES:
        return set()
    own = {n.target.id for n in CLASSES[name].body if isinstance(n, ast.AnnAssign)}
    return own.union(*(keys(base.id) for base in CLASSES[name].bases))


def test_arguments_for_every_target():
    positional = {"model", "args", "kwargs", "target", "options"}
    assert keys("Common") == {*inspect.signature(ir.export).parameters} - positional


@pytest.mark.parametrize(
    ("name", "target"),
    [("OnnxOptions", Onnx), ("TractOptions", Tract), ("KhronosOptions", Khronos), ("EagerOptions", Eager)],
)
def test_options_of_a_target(name, target):
    assert keys(name) - keys("Common") == {*inspect.signature(target).parameters} - {*keys("Common")}
    (tried,) = (n for n in ast.walk(ast.parse(SURFACE.read_text())) if _calls_with_names(n, target.__name__))
    assert {k.arg for k in tried.keywords} >= {*inspect.signature(target).parameters} - {"opset", "dtype"}


def _calls_with_names(node, name):
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    return called and len(node.keywords) > 1
