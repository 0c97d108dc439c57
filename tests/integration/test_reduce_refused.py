"""`ir reduce` of models that torch.export refuses: the smallest module, in a script that fails in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import ir
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

transformers = pytest.importorskip("transformers")

MODELS = """
import os

import torch
from torch import nn
from torch.export import Dim

torch.library.define("refused::shifted", "(Tensor x) -> Tensor")


@torch.library.impl("refused::shifted", "cpu")
def shifted(x):
    return x.roll(1)


class Branch(nn.Module):
    def forward(self, x, *, scale=1.0):
        if x.sum() > 0:
            return x * scale
        return x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.branches = nn.Linear(16, 16), nn.ModuleList([nn.ReLU(), Branch()])

    def forward(self, x):
        x = self.linear(x)
        return self.branches[1](self.branches[0](x), scale=2.0)


class Fixed(nn.Module):
    def forward(self, x, mask):
        return x.view(8, 16) * mask["of"]


class Fixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.fixed = nn.Linear(16, 16), Fixed()

    def forward(self, x):
        return self.fixed(self.linear(x), {"of": x > 0})


class Unknown(nn.Module):
    def forward(self, x):
        return torch.ops.refused.shifted(x)


class Ends(nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting():
            os._exit(3)
        return x + 1


def branch():
    return nn.Sequential(nn.Linear(16, 16), Block(), Block()), (torch.randn(8, 16),)


def fixing():
    return Fixing(), (torch.randn(8, 16),), None, {"x": {0: Dim("rows", min=2, max=64)}}


def function():
    return taken, (torch.tensor([2, 3, 4]), torch.randn(5))


def taken(counts, x):
    return x.sum() + sum(torch.ones(int(n)).sum() for n in counts.tolist() if n > 2)


def bert():
    from tests.zoo import torchvision_shim
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48, vocab_size=50)
    model = BertModel(config)
    model.encoder.layer[1].intermediate.intermediate_act_fn = Unknown()
    shapes = {"input_ids": {0: Dim("batch"), 1: Dim("length", max=512)}}
    return model, (torch.randint(50, (2, 7)),), None, shapes


def ending():
    return nn.Sequential(nn.Linear(4, 4), Ends()), (torch.randn(2, 4),)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "refused_models.py").write_text(MODELS)
    return tmp_path


def run(folder, *words):
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment)


@pytest.mark.parametrize(
    "source, module, said, lines",
    [
        ("branch", "1.branches.1", "data-dependent", ["torch.randn([1, 1])", "{'scale': 2.0}"]),
        pytest.param(
            "fixing", "fixed", "Constraints violated", ['torch.export.Dim("rows", min=2, max=64)', "{'of': {0: rows}}"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "function", "", "data-dependent", ["module.forward = model", "torch.randint(0, 5, [1]"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "bert", "encoder.layer.1.intermediate.intermediate_act_fn", "refused.shifted", ["{0: batch, 1: length}"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_smallest_module_that_is_refused(folder, source, module, said, lines):
    done = run(folder, "-m", "ir", "reduce", f"refused_models:{source}", "-o", "reduced.py", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["kind"] == "capture" and said in found["verdict"]["text"]
    assert found["module"] == module and found["paths"] == ["reduced.py"] and "something else" not in found["note"]
    script = (folder / "reduced.py").read_text()
    assert not [line for line in lines if line not in script], script
    assert "import ir\n" not in script and len(script.splitlines()) <= 30
    expected = next(x for x in script.splitlines() if x.startswith("# expected: ")).removeprefix("# expected: ")
    again = run(folder, "reduced.py")
    assert again.returncode == 1 and "torch 2" in again.stdout
    assert expected[:40] in " ".join(again.stderr.split()), again.stderr


def test_what_lies_beside_the_script_is_not_imported(folder, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(folder)
    import refused_models

    out = tmp_path / "out"
    out.mkdir()
    (out / "torch.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    found = ir.debug.reduce(refused_models.Branch(), (torch.randn(2, 4),), path=out / "reduced.py")
    assert "something else" not in found.note and not (tmp_path / "canary").exists()


@pytest.mark.slow
def test_a_module_is_saved_where_nothing_says_how_to_make_it(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    import refused_models

    model, args, _, shapes = refused_models.bert()
    found = ir.debug.reduce(model, args, dynamic_shapes=shapes, path=folder / "reduced.py")
    assert [p.name for p in found.paths] == ["reduced.py", "reduced.pt"] and found.module.endswith("act_fn")
    again = run(folder, "reduced.py")
    assert again.returncode == 1 and "refused.shifted" in again.stderr


@pytest.mark.slow
def test_an_export_that_ends_the_process(folder):
    done = run(folder, "-m", "ir", "reduce", "refused_models:ending", "-o", "reduced.py", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["kind"] == "crash" and found["module"] == "1" and "something else" not in found["note"]
    assert "torch.randn([1, 1])" in (folder / "reduced.py").read_text()
    assert run(folder, "reduced.py").returncode == 3


def test_a_module_that_another_way_of_capture_takes_is_not_named(tmp_path):
    class Read(torch.nn.Module):
        """torch.export by itself refuses it, with the numbers in tensors followed it does not."""

        def __init__(self):
            super().__init__()
            self.register_buffer("on", torch.tensor(True))

        def forward(self, x):
            return x * 2 if self.on else x

    class Branch(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    model = torch.nn.Sequential(Read(), torch.nn.Sequential(torch.nn.ReLU(), Branch()))
    ir.capture(Read(), (torch.randn(5, 4),))
    found = ir.debug.reduce(model, (torch.randn(5, 4),))
    assert found.module == "1.1" and "cannot be saved" in found.script and "cannot be saved" in found.note
