"""The shape verbs mean the same on every target: one handler, said in them alone, serves all of them."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch
from torch import Tensor

import ir
from ir.shape_verbs import ShapeVerbs

HELPERS = {"onnx": "OnnxHelper", "nnef": "NnefHelper", "eager": "EagerHelper", "stablehlo": "HloHelper"}
VERBS = [n for n, f in vars(ShapeVerbs).items() if inspect.isfunction(f) and not n.startswith("_")]


def helper(target: str) -> type:
    if target == "stablehlo":
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has
    return getattr(importlib.import_module(f"{target}_backend.helper"), HELPERS[target])


@pytest.mark.parametrize("target", HELPERS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_the_parameters_of_the_protocol(verb, target):
    wanted = list(inspect.signature(getattr(ShapeVerbs, verb)).parameters.values())
    own = list(inspect.signature(getattr(helper(target), verb)).parameters.values())
    assert [p.name for p in own[: len(wanted)]] == [p.name for p in wanted]
    assert all(p.default is not p.empty for p in own[len(wanted) :])  # what one target takes beyond them
    for mine, theirs in zip(own, wanted, strict=False):
        assert theirs.default is theirs.empty or mine.default == theirs.default


def arranged(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """[B, 6] -> the sum [B, 3, 1], the product [B], the largest [3, 2] and the smallest [], of what it is made into.

    And its windows [B, 1, 2, 2], and itself with each row in the next one's place.
    """
    turned = x.reshape(x.shape[0], 2, 3).permute(0, 2, 1)
    joined = torch.cat([turned, torch.full_like(turned, 0.5)], 2)
    rows = joined[:, :, 1:3]
    wide = rows.sum(2, keepdim=True).expand(-1, 3, 2)
    both = torch.cat([wide, x[1:].reshape(-1, 3, 2)], 0)
    largest, moved = both.amax((0,)).to(torch.float64), x.index_copy(0, torch.arange(1, x.shape[0]), x[:-1])
    windows = x.unfold(1, 2, 3).unsqueeze(1)
    return rows.sum(2, keepdim=True), rows.prod(1).prod(1), largest, both.amin(), windows, moved


def written(h, x):
    """The same in the verbs."""
    batch = x.type.shape[0]
    turned = h.transpose(h.reshape(x, [batch, 2, 3]), [0, 2, 1])
    joined = h.concat([turned, h.full([batch, 3, 2], 0.5, x.type.dtype)], 2)
    rows = h.slice(joined, 2, 1, 3)
    total = h.reduce("sum", rows, [2], keepdim=True)
    rest = h.reshape(h.slice(x, 0, 1, batch), [batch - 1, 3, 2])
    both = h.concat([h.expand(total, [batch, 3, 2]), rest], 0)
    largest = h.cast(h.reduce("max", both, [0]), ir.DType.float64)
    windows = h.squeeze(h.unsqueeze(h.take(x, h.offsets(0, [3, 1], [2, 2]), 1), [0, 2]), [0])
    moved = h.put(x, h.offsets(1, [1], [batch - 1]), h.slice(x, 0, 0, batch - 1))
    return total, h.reduce("prod", rows, [1, 2]), largest, h.reduce("min", both), windows, moved


@pytest.mark.parametrize("target", HELPERS)
def test_one_handler_serves_every_target(target):
    helper(target)
    name = "verbs::arranged"
    if not hasattr(torch.ops.verbs, "arranged"):
        ir.custom_op(name, arranged)
    seen = []

    def handler(h, x):
        seen.append(h)
        return written(h, x)

    def model(x: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.verbs.arranged(x)

    program = ir.export(
        model, (torch.randn(4, 6),), target=target, dynamic_shapes=({0: "B"},), handlers={name: handler}
    )
    for size in (4, 7):
        program.verify((torch.randn(size, 6),))
    assert seen


OF_A_TYPE = {
    "cast": lambda h, x, dtype: h.cast(x, dtype),
    "tensor": lambda h, x, dtype: h.tensor(x, dtype),
    "const": lambda h, x, dtype: h.const([1.0, 2.0], dtype),
    "scalar": lambda h, x, dtype: h.expand(h.scalar(1.0, dtype), [2]),
    "full": lambda h, x, dtype: h.full([2], 1.0, dtype),
    "a large full": lambda h, x, dtype: h.full([100], 1.0, dtype),
}


@pytest.mark.parametrize("target", [*HELPERS, "khronos"])
@pytest.mark.parametrize("verb", OF_A_TYPE)
def test_what_is_no_element_type_is_an_error_of_the_handler(verb, target):
    helper("nnef" if target == "khronos" else target)
    for wrong, way in (("int64", "give DType.int64"), (torch.float16, "give DType.float16"), (3, "one of ir.DType")):
        handlers = {"aten::relu": lambda h, self, wrong=wrong: OF_A_TYPE[verb](h, self, wrong)}
        with pytest.raises(
            ir.HandlerError, match=f"the handler of aten::relu .* TypeError: .* no element type: .*{way}"
        ):
            ir.export(torch.nn.ReLU(), (torch.ones(2),), target=target, handlers=handlers)
