"""Python ints among a model's arguments: fixed, or with Dim.DYNAMIC an input of every target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import ir
from ir.errors import ExportError

X = torch.randn(6, 8)
DYNAMIC = {"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC}


class Scaled(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        return x * n + n


class Window(nn.Module):
    """As a decoder reads its positions, from a table at a place that is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 8))

    def forward(self, x: Tensor, n: int) -> tuple[Tensor, int]:
        return x + self.table.narrow(0, n, 6), n + 6


class Range(nn.Module):
    def forward(self, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return x[:, n], torch.arange(n)


class Tied(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        torch._check(n == x.shape[0])
        return x.view(n, 2, 4) * n


def same(program: ir.Exported, model: nn.Module, x: Tensor, n: int) -> None:
    torch.testing.assert_close(program(x, n), model(x, n))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_fixed_one_is_held_to_its_value(target: str) -> None:
    program = ir.export(Scaled(), (X, 3), target=target)
    same(program, Scaled(), X, 3)
    with pytest.raises(ExportError, match="constant argument 3, not 4"):
        program(X, 4)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_dynamic_one_is_an_input(target: str) -> None:
    program = ir.export(Scaled(), (X, 3), target=target, dynamic_shapes=DYNAMIC, verify=True)
    assert [v.name for v in program.graph.inputs] == ["x", "n"]
    for rows, n in ((6, 3), (5, 0), (2, 1), (3, 100)):
        same(program, Scaled(), torch.randn(rows, 8), n)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_it_says_where_to_read(target: str) -> None:
    model = Window()
    program = ir.export(model, (X, 3), target=target, dynamic_shapes={"x": None, "n": Dim.DYNAMIC}, verify=True)
    for n in (3, 0, 26):
        same(program, model, X, n)
    with pytest.raises(ExportError, match="the argument n is 27, and the model holds from 0 to 26"):
        program(X, 27)
    with pytest.raises(ExportError, match="the argument n is 'a'"):
        program(X, "a")


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_it_is_a_size(target: str) -> None:
    program = ir.export(Range(), (X, 3), target=target, dynamic_shapes=DYNAMIC, verify=True)
    for n in (3, 0, 7):
        same(program, Range(), X, n)


def test_one_that_must_be_a_size() -> None:
    program = ir.export(Tied(), (X, 6), target="eager", dynamic_shapes=DYNAMIC, verify=True)
    same(program, Tied(), torch.randn(4, 8), 4)
    with pytest.raises(RuntimeError, match="by a check in the model n is s0, and it is not"):
        program(torch.randn(4, 8), 2)


BOTH = ({0: "rows"}, Dim.DYNAMIC)
# what the example answers for all inputs, each with inputs that another answer belongs to
ANSWERED: list[tuple[Callable[[Tensor, int], Tensor], int, int, int]] = [
    (lambda x, k: x * 2 if k == x.shape[0] else x - 1, 6, 5, 3),
    (lambda x, k: x[k:], 5, 5, 3),
    (lambda x, k: x.roll(k - x.shape[0] + 1, 0)[k:], 5, 5, 3),
    (lambda x, k: x.split([k, x.shape[0] - k])[0], 5, 5, 3),
    (lambda x, k: torch.zeros(k, 8) + x, 6, 1, 4),
    (lambda x, k: x.reshape(k, 2, 4) + 1, 6, 5, 3),
    (lambda x, k: x + 1 if x.shape[0] == 2 * k else x, 3, 6, 4),
    (lambda x, k: x + 1 if x.shape[0] == k // 2 else x, 12, 5, 4),
    (lambda x, k: x[k : k + 1], 2, 5, 5),
]


@pytest.mark.filterwarnings("ignore:the model branches:UserWarning")
@pytest.mark.filterwarnings("ignore:the argument k is:UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("case", range(len(ANSWERED)))
def test_a_number_that_the_example_ties_to_a_size(case: int, target: str) -> None:
    model, first, rows, k = ANSWERED[case]
    program = ir.export(model, (X, first), target=target, dynamic_shapes=BOTH, verify=True)
    torch.testing.assert_close(program(X, first), model(X, first))
    with pytest.raises((ExportError, RuntimeError), match=r"by a check in the model|the graph holds only where"):
        program(torch.randn(rows, 8), k)


def test_a_number_that_is_a_size_is_said() -> None:
    with pytest.warns(UserWarning, match=r"the argument k is s0 in the program, where axis 0 of x is s0 \+ 1, as in"):
        ir.export(lambda x, k: x[k:], (X, 5), target="onnx", dynamic_shapes=BOTH)


def test_two_numbers_that_are_one() -> None:
    with pytest.warns(UserWarning, match=r"the argument m is s0 in the program, as in the example"):
        program = ir.export(
            lambda x, k, m: x * k if k == m else x, (X, 3, 3), target="onnx", dynamic_shapes=(None, *[Dim.DYNAMIC] * 2)
        )
    torch.testing.assert_close(program(X, 5, 5), X * 5)
    with pytest.raises(ExportError, match=r"not captured for m=6, s0=5: .* m is s0, and it is not"):
        program(X, 5, 6)


def test_a_tensor_of_other_sizes_in_place_of_a_number() -> None:
    def model(x: Tensor, k: Tensor) -> Tensor:
        n = k.item()
        torch._check(n < 4)
        return x * n

    program = ir.export(model, (X, torch.tensor(3)), target="onnx")
    with pytest.raises(ExportError, match=r"the input k is int64\[2\]"):
        program(X, torch.tensor([1, 2]))


def test_from_a_file(tmp_path: Path) -> None:
    model = Window()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (X, 3), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}), path)
    same(ir.export(path, target="eager"), model, X, 9)
