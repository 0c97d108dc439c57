"""A program says what the model was at its export, though the model runs before the program is first called."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import ir
from ir.graph import Graph
from ir.passes.own_state import with_own_state


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("same", self.seen[1:])

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1.5)
        return x + self.seen.sum() + self.same.sum()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_run_of_the_model_does_not_show_in_the_program(target: str) -> None:
    model, x = Counting(), torch.ones(2)
    saved = torch.export.export(model, (x,))
    program = ir.export(saved, target=target)
    run = saved.module()
    expected = run(x)
    run(x)
    actual, updates = program.run(x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(updates["seen"], torch.full((3,), 1.5))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_what_a_target_does_not_keep_is_told_once(target: str) -> None:
    """By the name in the model, and by that of the output; a model without state says nothing."""
    model = nn.Sequential(Counting())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = ir.export(model, (torch.ones(2),), target=target)
        first, second = program(torch.ones(2)), program(torch.ones(2))
        ir.export(nn.ReLU(), (torch.ones(2),), target=target)
    told = [str(w.message) for w in caught if "writes to" in str(w.message)]
    assert torch.equal(first, second) is (target != "eager")
    assert len(told) == (target != "eager")
    for text in told:
        assert text.startswith("the model writes to 0.seen") and "program.run(...)" in text
        assert list(program.graph.results)[1] in text


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(4)
        self.register_buffer("first", memory[:3])
        self.register_buffer("second", memory[1:])

    def forward(self, x: Tensor) -> Tensor:
        self.first.add_(1)
        self.second.mul_(x)
        return self.first + self.second


def tensors(graph: Graph) -> dict[str, Tensor]:
    return {w.name: w.tensor for w in graph.weights.values()}


def test_what_shares_memory_with_an_updated_buffer_is_copied_too() -> None:
    graph = ir.capture(Pair(), (torch.ones(3),))
    graph = graph.replace(updates={"first": graph.updates["first"]})
    ours, copies = tensors(graph), tensors(with_own_state(graph))
    assert ours["first"].untyped_storage()._cdata == ours["second"].untyped_storage()._cdata
    assert all(copies[n].untyped_storage()._cdata != ours[n].untyped_storage()._cdata for n in ours)


def test_a_tensor_under_two_names_is_copied_once() -> None:
    graph = ir.capture(Pair(), (torch.ones(3),))
    one = torch.zeros(3)
    graph = graph.replace(weights={v: w.over(one) for v, w in graph.weights.items()})
    copies = tensors(with_own_state(graph))
    assert copies["first"] is copies["second"] is not one


class InMemoryOrder(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.t() * 2).cumsum_(0).as_strided((x.size(0) * 4,), (1,), 0)


def test_a_size_of_one_does_not_tell_how_a_result_lies() -> None:
    x, dynamic = torch.randn(2, 4), ({0: torch.export.Dim.DYNAMIC},)
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        saved = torch.export.export(InMemoryOrder(), (x[:1],), dynamic_shapes=dynamic)
    torch.testing.assert_close(ir.export(saved, target="eager")(x), InMemoryOrder()(x))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_verify_compares_from_the_state_of_the_export(target: str) -> None:
    model, x = Counting(), torch.ones(2)
    saved = torch.export.export(model, (x,))
    program = ir.export(saved, target=target)
    run = saved.module()
    run(x), program(x), run(x)
    assert program.verify().ok
    assert run(x).tolist() == [1 + 5 * 4.5] * 2  # three calls: verify left the model's state as it was


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_folding_writes_to_no_weight(target: str) -> None:
    """An op that writes and has no functional twin, of a weight alone, is computed at the export."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(3, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = torch.cos(self.table)
            return before + x, self.table.clone().fill_diagonal_(0.25)

    model = Filled()
    program = ir.export(model, (torch.zeros(3),), target=target, verify=True)
    torch.testing.assert_close(program(torch.zeros(3))[0], torch.cos(torch.ones(3, 3)))
    assert bool((model.table == 1).all())
