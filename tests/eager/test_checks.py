"""What a model asserts of its data: the eager program raises where ep.module() raises."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir

X, DYNAMIC = torch.ones(4), torch.export.Dim.DYNAMIC


class Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        n = x.sum().to(torch.int64).item()
        torch._check(n >= 2)
        torch._check(n <= 10)
        return torch.zeros(n) + x.sum()


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "x has to be positive")
        return x * 2


class AllPositive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0)
        return x * 2


class Known(nn.Module):
    """torch puts 4 in the place of the number, and so does the graph."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.sum().to(torch.int64).item()
        torch._check(n == 4)
        return torch.zeros(n) + x


class InBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            torch._assert_async((x > 0).all(), "x has to be positive")
            return x + 1

        return torch.cond(x.sum() > 3, yes, lambda x: x - 1, (x,))


CASES = (
    (Bounded(), torch.full((4,), 3.0)), (Positive(), -X), (AllPositive(), -X), (Known(), 2 * X),
    (InBranch(), torch.tensor([9.0, -1, 0, 0])),
)  # fmt: skip
NAMES = [type(model).__name__ for model, _ in CASES]


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(("model", "wrong"), CASES, ids=NAMES)
def test_data_that_torch_refuses_is_refused(model: nn.Module, wrong: Tensor, optimize: bool) -> None:
    program = ir.export(model, (X,), target="eager", optimize=optimize)
    torch.testing.assert_close(program(X), model(X))
    with pytest.raises(RuntimeError):
        ir.capture(model, (X,)).context.program.module()(wrong)  # type: ignore[union-attr]
    with pytest.raises(RuntimeError):
        program(wrong)
    with pytest.raises(RuntimeError):
        program.artifact.trace(wrong)


@pytest.mark.parametrize("model", [Positive(), AllPositive(), Known(), InBranch()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("target", ["eager"])
def test_the_rest_is_as_without(model: nn.Module, target: str) -> None:
    program = ir.export(model, (X,), target=target)
    assert program.verify().ok
    assert program.artifact.check(X).ok and program.artifact.profile(X, runs=1)


def test_the_side_of_a_branch_that_was_not_captured_is_refused() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > y.shape[0] else x * 3

    with pytest.warns(UserWarning, match="branches on dynamic sizes"):
        program = ir.export(model, (X, X[:2]), target="eager", dynamic_shapes=({0: "n"}, {0: "m"}))
    torch.testing.assert_close(program(torch.ones(9), X), model(torch.ones(9), X))
    with pytest.raises(ir.RefusedError, match=r"the graph holds only where .*: .*test_checks.py:\d+ branched on that"):
        program(X, X)


def test_a_window_that_torchs_own_program_keeps_or_drops() -> None:
    """torch.export holds the number of windows of ceil_mode to what it was; a capture of ours does not."""
    model, given, other = nn.MaxPool2d(3, 3, 1, ceil_mode=True), torch.randn(1, 1, 9, 9), torch.randn(1, 1, 8, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = ir.export(model, (given,), target="eager", dynamic_shapes=({2: "h"},))
        always = torch.export.export(nn.MaxPool2d(3, 2, 1, ceil_mode=True), (given,), dynamic_shapes=({2: DYNAMIC},))
        assert ir.export(always, target="eager")(other).shape == (1, 1, 5, 5)
    torch.testing.assert_close(program(other), model(other))
    theirs = torch.export.export(model, (given,), dynamic_shapes=({2: DYNAMIC},))
    with pytest.warns(UserWarning, match="pools with ceil_mode drop a window elsewhere"):
        program = ir.export(theirs, target="eager")
    torch.testing.assert_close(program(given), model(given))
    with pytest.raises(ir.RefusedError, match="pools with ceil_mode drop a window elsewhere"):
        program(other)


class Branching(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor], n: int) -> Tensor:
        x, y = pair
        x = x * 2 if x.shape[0] > y.shape[0] else x * 3
        return x + n if n > 1 else x - n


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
def test_a_file_tells_its_conditions(tmp_path: Path) -> None:
    model, path = Branching(), tmp_path / "model.pt2"
    shapes = {"pair": ({0: "n"}, {0: "m"}), "n": "n"}
    captured = ir.capture(model, ((X, X[:2]), 5), dynamic_shapes=shapes)
    torch.export.save(captured.context.program, path)  # type: ignore[union-attr]
    for program in (ir.export(captured, target="eager"), ir.export(path, target="eager")):
        for rows, n in ((4, 5), (9, 2)):
            pair = torch.ones(rows), torch.ones(rows - 1)
            torch.testing.assert_close(program(pair, n), model(pair, n))
        with pytest.raises(ir.RefusedError, match=r"the graph holds only where"):
            program((X, X), 5)
        with pytest.raises(ir.RefusedError, match=r"the graph holds only where"):
            program((X, X[:2]), 1)


def test_a_check_that_sizes_settle_costs_nothing() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._check(x.shape[0] >= 0)
            return x + 1

    program = ir.export(Sized(), (X,), target="eager", dynamic_shapes=({0: "n"},))
    assert "assert" not in program.artifact.source


def test_a_print_is_printed(capfd: Any) -> None:
    class Says(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._print("once a call")
            return x + 1

    program = ir.export(Says(), (X,), target="eager")
    capfd.readouterr()
    program(X)
    assert capfd.readouterr().out.count("once a call") == 1


class Ring(nn.Module):
    """Writes to a place that a buffer says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        place = self.count.item()
        torch._check(place >= 0)
        torch._check(place < 3)
        self.held[place] = x.sum()
        self.count.add_(1)
        return self.held * place


def test_a_number_out_of_a_buffer() -> None:
    model = Ring()
    program = ir.export(model, (X,), target="eager")
    for scale in (1, -2, 3):
        torch.testing.assert_close(program(scale * X), model(scale * X))
    with pytest.raises(RuntimeError):
        program(X)
