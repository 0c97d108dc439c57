"""The examples in docstrings run; what is exported says what its arguments are, and shows a call."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import ir
from tests.ir.test_checkpoint import write

PACKAGES = Path(__file__).parents[2] / "packages"
ELSEWHERE = {"batch_inference", "language_models"}  # their examples need Ray, Spark, Dask or a checkpoint
FUNCTIONS = [n for n in ir.__all__ if inspect.isfunction(getattr(ir, n))]
VERBS = [n for n, f in vars(ir.OpHelper).items() if inspect.isfunction(f) and not n.startswith("_")]


def modules() -> list[str]:
    files = [p for p in sorted(PACKAGES.glob("*/src/**/*.py")) if ">>>" in p.read_text()]
    parts = [p.relative_to(next(q for q in p.parents if q.name == "src")).with_suffix("").parts for p in files]
    return [".".join(p).removesuffix(".__init__") for p in parts if p[0] not in ELSEWHERE]


class Model(nn.Sequential):
    """What the examples call `model`."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.Linear(4, 2))

    def forward(self, x):
        return super().forward(x)


@ir.custom_op("docs::swish")
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@pytest.mark.parametrize("name", modules())
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, args = Model().eval(), (torch.randn(4, 3),)
    shapes = ({0: "B"},)
    given = {
        "torch": torch, "numpy": numpy, "ir": ir, "Model": Model, "model": model, "args": args,
        "graph": ir.capture(model, args, dynamic_shapes=shapes),
        "program": ir.export(model, args, path="model.onnx", dynamic_shapes=shapes, output_names=["logits"]),
    }  # fmt: skip
    (tmp_path / "checkpoint").mkdir()
    write(tmp_path / "checkpoint" / "model.safetensors", {n: t.clone() for n, t in model.state_dict().items()})
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert not doctest.testmod(module, extraglobs=given, optionflags=flags).failed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_exported_function_says_what_it_takes_and_shows_a_call(name):
    function = getattr(ir, name)
    told = inspect.getdoc(function) or ""
    assert [p for p in inspect.signature(function).parameters if p not in told] == []
    assert ">>>" in told


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_of_handlers_says_what_it_takes(name):
    verb = getattr(ir.OpHelper, name)
    told = inspect.getdoc(verb) or ""
    assert [p for p in inspect.signature(verb).parameters if p != "self" and p not in told] == []


@pytest.mark.parametrize("name", [n for n in ir.__all__ if inspect.isclass(getattr(ir, n))])
def test_an_exported_class_says_what_it_is_and_what_its_methods_do(name):
    cls = getattr(ir, name)
    assert inspect.getdoc(cls)
    methods = {n: f for n, f in vars(cls).items() if inspect.isfunction(f) and not n.startswith("_")}
    assert [n for n, f in methods.items() if not f.__doc__] == []
