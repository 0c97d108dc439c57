"""Pieces of an axis whose size is only known when it runs: the first ones are longer where not all are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import ir

SIZES = (2, 3, 4, 5, 7, 9)


def writes(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def written(x: Tensor) -> Tensor:
        y = x.clone()
        change(y)
        return y

    return written


def shift(y: Tensor) -> None:
    for i, part in enumerate(y.tensor_split(3)):
        part.add_(i)


MODELS: dict[str, Callable[[Tensor], Any]] = {
    "read": lambda x: tuple(part * 2 for part in x.tensor_split(2)),
    "second": writes(lambda y: y.tensor_split(2)[1].mul_(2)),
    "middle": writes(lambda y: y.tensor_split(3)[1].mul_(2)),
    "all": writes(shift),
    "transposed": writes(lambda y: y.t().tensor_split(2, -1)[1].mul_(2)),
    "flat": writes(lambda y: y.view(-1).tensor_split(2)[1].mul_(2)),
    "part_of_a_part": writes(lambda y: y.tensor_split(2)[1].tensor_split(2)[0].mul_(2)),
    "rows": writes(lambda y: y.vsplit(2)[1].mul_(2)),
}


class Model(torch.nn.Module):
    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_pieces_at_other_sizes(name: str, target: str, tmp_path: Path) -> None:
    model, x = Model(MODELS[name]), torch.randn(6, 5)
    shapes = ({0: Dim.DYNAMIC},)
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes)  # which may hold for even sizes alone
    torch.export.save(exported, tmp_path / "m.pt2")
    live = ir.capture(model, (x,), dynamic_shapes=shapes)
    right = {}
    for way, graph in {"live": live, "program": ir.capture(exported), "file": ir.capture(tmp_path / "m.pt2")}.items():
        program = ir.export(graph, target=target)
        torch.testing.assert_close(program(x), model(x))
        right[way] = sum(equal_or_refused(program, model, torch.randn(size, 5)) for size in SIZES)
    assert right["live"] >= (2 if name == "rows" else 4)


def equal_or_refused(program: Any, model: Model, x: Tensor) -> bool:
    try:
        expected = model(x)
    except (RuntimeError, IndexError):  # rows that are no multiple, pieces that are not there
        expected = None
    try:
        made = program(x.clone())
    except (ir.ExportError, RuntimeError):
        return False
    torch.testing.assert_close(made, expected)
    return True


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_piece_without_elements_is_rolled(target: str) -> None:
    model = Model(lambda x: x.tensor_split(2)[1].roll(1, 0))
    program = ir.export(model, (torch.randn(3, 5),), target=target, dynamic_shapes=({0: "B"},))
    for size in (1, 2, 3, 8):
        torch.testing.assert_close(program(x := torch.randn(size, 5)), model(x))


# torch.export fixes how many pieces there are of a size that is a formula, and asks for less than two elements
OF_PIECES: dict[str, Callable[[Tensor], Any]] = {
    "read": lambda x: (x.tensor_split(2)[1].split(1)[-1], x + 1),
    "written": writes(lambda y: y.tensor_split(2)[1].split(1)[-1].fill_(3)),
    "beside": writes(lambda y: (y[:, :1].tensor_split(2), y[:, 2:].mul_(2))),
    "several": lambda x: x.tensor_split(2)[0].split(1)[1],
    "numbers": lambda x: x.tensor_split(2)[1].unbind()[0],
}
AT_LEAST = {"several": {3, 4}, "numbers": {2, 3}}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("name", OF_PIECES)
def test_pieces_of_pieces(name: str, target: str) -> None:
    model = Model(OF_PIECES[name])
    if (name, target) == ("written", "nnef"):
        with pytest.raises(ir.UnsupportedOpsError, match="it holds only where"):
            ir.export(model, (torch.randn(3, 5),), target=target, dynamic_shapes=({0: "B"},))
        return
    program = ir.export(model, (torch.randn(3, 5),), target=target, dynamic_shapes=({0: "B"},))
    taken = {size for size in range(7) if equal_or_refused(program, model, torch.randn(size, 5))}
    assert taken >= AT_LEAST.get(name, {0, 1, 2, 3})
