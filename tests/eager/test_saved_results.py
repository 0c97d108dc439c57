"""A .pt2 file of a model whose arguments or results are of classes that torch has no name for in a file."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
from torch.utils import _pytree

import ir

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Unnamed:
    first: torch.Tensor
    second: torch.Tensor


_pytree.register_pytree_node(Unnamed, lambda u: ([u.first, u.second], None), lambda held, _: Unnamed(*held))

X = torch.randn(3, 4)
MODELS = {
    "max": lambda x: x.max(1),
    "nested": lambda x: {"top": x.topk(2), "pairs": [Pair(x, x + 1)]},
    "cummax": lambda x: torch.cummax(x, 0),
    "pair": lambda x: Pair(x, x + 1),
}
FRESH = """
import sys, torch
program = torch.export.load(sys.argv[1])
first = program.module()(*program.example_inputs[0])
import ir
opened = ir.export(sys.argv[1], target="eager", verify=True)
again = opened(*opened.graph.context.example()[0])
flat = torch.utils._pytree.tree_leaves
assert all(torch.equal(a, b) for a, b in zip(flat(first), flat(again), strict=True))
print(opened.graph.output_names, type(first).__name__, type(again).__name__)
"""


def fresh(path):
    """What another process sees."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FRESH, str(path)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_named_tuples_are_written(name, tmp_path):
    program = ir.export(MODELS[name], (X,), target="eager", path=tmp_path / "model.pt2", verify=True)
    made = program(X)
    again = ir.export(tmp_path / "model.pt2", target="eager")
    assert again.graph.output_names == program.graph.output_names
    leaves = zip(_pytree.tree_leaves(made), _pytree.tree_leaves(again(X)), strict=True)
    assert all(torch.equal(a, b) for a, b in leaves)
    assert type(made) is type(MODELS[name](X))


def test_another_process_reads_them(tmp_path):
    ir.export(MODELS["pair"], (X,), target="eager", path=tmp_path / "model.pt2")
    assert fresh(tmp_path / "model.pt2") == "('first', 'second') tuple tuple\n"


def test_arguments_that_are_named_tuples(tmp_path):
    shapes = (Pair({0: "n"}, {0: "n"}),)
    model = lambda pair: pair.first + pair.second  # noqa: E731
    program = ir.export(model, (Pair(X, X),), target="eager", dynamic_shapes=shapes, path=tmp_path / "model.pt2")
    given = torch.ones(5, 4)
    again = ir.export(tmp_path / "model.pt2", target="eager")
    for pair in ((given, given), Pair(given, given)):
        assert torch.equal(again(pair), program(Pair(given, given)))
    fresh(tmp_path / "model.pt2")


def test_another_class_is_a_dict_and_said_so(tmp_path):
    program = ir.export(lambda x: Unnamed(x, x + 1), (X,), target="eager")
    assert isinstance(pickle.loads(pickle.dumps(program))(X), Unnamed)
    with pytest.warns(UserWarning, match="in the place of Unnamed.*serialized_type_name="):
        program.save(tmp_path / "model.pt2")
    assert fresh(tmp_path / "model.pt2") == "('first', 'second') dict dict\n"


def test_a_model_without_results_runs_and_has_no_file(tmp_path):
    program = ir.export(lambda x: (), (X,), target="eager", verify=True)
    assert program(X) == ()
    with pytest.raises(ir.ExportError, match="no program without results: return a tensor"):
        program.save(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_model_whose_results_are_numbers_has_a_file(tmp_path):
    ir.export(lambda x: 3, (X,), target="eager", path=tmp_path / "model.pt2")
    assert ir.export(tmp_path / "model.pt2", target="eager")(X) == 3
