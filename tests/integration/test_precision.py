"""Narrower floating types: what overflows is named, and what has to stay in float32 is found."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import ir


class Stream(nn.Module):
    """A residual stream that grows past what float16 holds, as those of large language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.norm2, self.head = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        x = x + 60000 * torch.tanh(self.first(self.norm(x)))
        x = x + 60000 * torch.tanh(self.second(self.norm2(x)) + 1)
        return self.head(nn.functional.layer_norm(x, (16,)))


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return ir.capture(Stream(), (torch.randn(3, 16),), dynamic_shapes=({0: "batch"},))


def test_the_first_overflow_is_named(graph):
    found = ir.debug.ranges(graph)
    over = [r.name for r in found.overflows("float16")]
    assert over[0] == "add_2" and not found.overflows("bfloat16"), found
    assert "float16: " in str(found) and "%add_2 = aten::add.Tensor" in str(found)
    assert found.json() and found.rows[0].int8_scale == found.rows[0].largest / 127


@pytest.mark.parametrize("target", ["onnx", "eager", "nnef"])
def test_what_stays_in_float32_is_found(graph, target):
    program = ir.export(graph, target=target, dtype="float16", max_error=1e-2, verify=True)
    kept = program.kept_float32
    assert "add_2" in kept and 2 <= len(kept) < len(graph.nodes) and program.max_error == 1e-2
    halves = [v for n in program.graph.nodes for v in n.outputs if v.type.dtype is ir.DType.float16]
    assert len(halves) > len(graph.nodes) // 3
    assert program(torch.randn(5, 16)).dtype == torch.float32


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_without_it_the_result_is_none(graph, target):
    with pytest.raises(ir.MismatchError):
        ir.export(graph, target=target, dtype="float16", keep_float32=["head"], verify=True)


def test_nodes_are_kept_by_name_module_pattern_and_op(graph):
    def kept(*names):
        return set(ir.export(graph, target="onnx", dtype="float16", keep_float32=names).kept_float32)

    assert kept("first") == {"linear"} and kept("layer_norm") == {"layer_norm", "layer_norm_1", "layer_norm_2"}
    assert kept("norm*") == {"layer_norm", "layer_norm_1"} and kept("add_2") == {"add_2"}

    assert kept("add.Tensor") == {"add", "add_1", "add_2"}  # as the tables call it


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_float32": ["norm3"]}, "'norm3' is no node, module or op of the program; did you mean norm?"),
        ({"keep_float32": "head"}, "give a list of names"),
        ({"keep_float32": ["head"], "dtype": None}, "keep_float32 says what stays in float32 of a narrower program"),
        ({"max_error": 0.1, "dtype": None}, "max_error says what stays in float32 of a narrower program"),
        ({"max_error": -1}, "max_error=-1 is no bound"),
    ],
)
def test_what_would_have_no_effect_is_refused(graph, given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        ir.export(graph, target="onnx", **{"dtype": "float16"} | given)


def test_float64_is_not_narrowed():
    found = ir.debug.ranges(ir.capture(torch.sinh, (torch.randn(3, dtype=torch.float64),)))
    assert found.rows[0].float16 == found.rows[0].bfloat16 == 0


def test_a_bound_that_float32_itself_does_not_meet(graph):
    with pytest.raises(ir.ExportError, match="with every node in float32"):
        ir.export(graph, target="onnx", dtype="float16", max_error=1e-12)


def test_a_type_that_float32_does_not_become(graph):
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        ir.export(graph, target="onnx", dtype="float8")


def test_masks_are_held_in_range():
    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(x > 0.5, torch.finfo(torch.float32).min).softmax(-1)

    graph = ir.capture(Masked(), (torch.randn(3, 16),))
    for target in ("onnx", "eager"):
        ir.export(graph, target=target, dtype="float16", max_error=1e-2, verify=True)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_divisor_beyond_the_range_is_the_models(target):
    x = torch.tensor([1e4, 3e4, -2e4])
    found = ir.export(lambda x: x / 1e5, (x,), target=target, dtype="float16")(x)
    torch.testing.assert_close(found.float(), x / 1e5, rtol=1e-3, atol=0)


ROWS, MASK = torch.linspace(-2, 2, 16).reshape(4, 4), torch.ones(4, 4, dtype=torch.bool).tril()
LARGEST = torch.finfo(torch.float16).max
BEYOND: dict[str, Callable[..., torch.Tensor]] = {
    "masked_fill": lambda x, m: x.masked_fill(~m, -1e9),
    "where": lambda x, m: torch.where(m, x, -1e9),
    "full_like": lambda x, m: torch.full_like(x, -1e9),
    "pad": lambda x, m: nn.functional.pad(x, (0, 1), value=-1e9),
    "mul": lambda x, m: (~m).to(x.dtype) * -1e9,
    "clamp": lambda x, m: x.clamp(max=-1e6),
    "add": lambda x, m: x * 0 - 1e5,
    # in float32, and then cast
    "integer": lambda x, m: x.masked_fill(~m, -(10**9)),
    "full": lambda x, m: x + torch.full((4,), -1e9),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_number_beyond_float16_is_the_same_on_every_target(name):
    found = [
        ir.export(BEYOND[name], (ROWS, MASK), target=target, dtype="float16", verify=False)(ROWS, MASK).float()
        for target in ("eager", "onnx", "nnef")
    ]
    assert found[0][0, -1].item() == (-torch.inf if name in ("integer", "full") else -LARGEST)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=2e-3, atol=2e-3)
