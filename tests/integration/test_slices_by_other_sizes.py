"""Slices and pieces whose ends are other dynamic sizes: right, or refused where torch's trace took the other side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import ir

TWO = ({0: "n"}, {0: "m"})
Sizes = tuple[int, ...]


def of_own(x: Tensor) -> Tensor:
    return x[:, : x.shape[0]].sum(1)


def to_other(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a[: b.shape[0]].sum(0), b.sum()


def last(a: Tensor, b: Tensor) -> Tensor:
    return a[-b.shape[0] :] * 2


def twice(a: Tensor, b: Tensor) -> Tensor:
    return a[: 2 * b.shape[0]].sum(0)


def half(a: Tensor, b: Tensor) -> Tensor:
    return a[: b.shape[0] // 2].sum(0)


def written(a: Tensor, b: Tensor) -> Tensor:
    y = a.clone()
    y[: b.shape[0]] = 7
    return y


def joined(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b])[: 3 * b.shape[0]].sum(0)


def piece(a: Tensor, b: Tensor) -> Tensor:
    return a.split(b.shape[0])[0].sum(0)


def attention(q: Tensor, k: Tensor) -> Tensor:
    k = k[: q.shape[0]]
    return torch.softmax(q @ k.mT, -1) @ k


# the function, sizes of the example, dynamic_shapes, sizes that are run and sizes at which torch's trace does not hold
CASES: list[tuple[Callable[..., Any], list[Sizes], Any, list[list[Sizes]], list[list[Sizes]]]] = [
    (of_own, [(5, 3)], ({0: "n", 1: "m"},), [[(5, 3)], [(7, 3)]], [[(3, 7)]]),
    (to_other, [(5, 4), (6, 4)], TWO, [[(4, 4), (4, 4)], [(3, 4), (9, 4)]], [[(7, 4), (3, 4)]]),
    (last, [(5, 4), (6, 4)], TWO, [[(4, 4), (4, 4)], [(3, 4), (9, 4)]], [[(7, 4), (3, 4)]]),
    (twice, [(5, 4), (6, 4)], ({0: Dim("n")}, {0: Dim("m")}), [[(9, 4), (6, 4)]], [[(7, 4), (3, 4)]]),
    (half, [(7, 4), (6, 4)], TWO, [[(7, 4), (3, 4)], [(3, 4), (6, 4)]], [[(2, 4), (9, 4)]]),
    (written, [(5, 4), (6, 4)], TWO, [[(4, 4), (4, 4)]], [[(7, 4), (3, 4)]]),
    (joined, [(5, 4), (3, 4)], TWO, [[(4, 4), (4, 4)], [(3, 4), (9, 4)]], [[(9, 4), (2, 4)]]),
    (piece, [(5, 4), (6, 4)], TWO, [[(4, 4), (4, 4)], [(3, 4), (9, 4)]], [[(7, 4), (3, 4)]]),
    (attention, [(6, 4), (5, 4)], TWO, [[(9, 4), (4, 4)], [(4, 4), (4, 4)]], [[(4, 4), (9, 4)]]),
]


def tensors(sizes: list[Sizes]) -> list[Tensor]:
    return [torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in sizes]


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(
    ("model", "traced", "shapes", "good", "other"), CASES, ids=lambda a: getattr(a, "__name__", "")
)
def test_right_or_refused(
    model: Any, traced: Any, shapes: Any, good: list[list[Sizes]], other: list[list[Sizes]], target: str
) -> None:
    program = ir.export(model, tuple(tensors(traced)), target=target, dynamic_shapes=shapes, verify=True)
    for sizes in [*good, *other]:
        args = tensors(sizes)
        try:
            made = program(*args)
        except ir.RefusedError as refused:
            assert sizes in other
            assert "test_slices_by_other_sizes.py:" in str(refused)
            continue
        torch.testing.assert_close(made, model(*args))  # eager runs torch's operators at such sizes, too


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_program_that_torch_exported_is_held_to_them_too(target: str, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a[: b.shape[0]].sum(0)

    shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    exported = torch.export.export(Model(), tuple(tensors([(5, 4), (6, 4)])), dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "m.pt2")
    for source in (exported, tmp_path / "m.pt2"):
        program = ir.export(source, target=target)
        assert program(*tensors([(3, 4), (9, 4)])).shape == (4,)
        with pytest.raises(ir.RefusedError, match="holds only where"):
            program(*tensors([(7, 4), (3, 4)]))


def test_the_warning_names_the_slice() -> None:
    with pytest.warns(UserWarning, match=r"m >= n  \(a slice at .*test_slices_by_other_sizes.py:\d+\)"):
        ir.export(to_other, tuple(tensors([(5, 4), (6, 4)])), dynamic_shapes=TWO)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_sizes_of_one_input_that_are_one_are_held_to_it(target: str) -> None:
    """torch.export makes one symbol of both axes."""
    program = ir.export(
        lambda x: x.narrow(1, 0, x.shape[0]).sum(1),
        tensors([(3, 3)])[0],
        target=target,
        dynamic_shapes=({0: "n", 1: "m"},),
    )
    assert program(torch.ones(5, 5)).tolist() == [5.0] * 5
    with pytest.raises(ir.RefusedError, match=r"float32\[3, 7\], the program was made for f32\[n, n\]"):
        program(torch.ones(3, 7))


class Beside(torch.nn.Module):
    """An op that is lowered by its parts, of a slice that is empty at 0 and at 1, and then the size itself."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.op(x[1:, :-1]), x.new_ones(x.shape)


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.5, 2.0]), right=True),
    "bessel": torch.special.bessel_j0,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("name", PARTS)
def test_a_size_is_not_read_off_a_slice(name: str, target: str) -> None:
    model = Beside(PARTS[name])
    program = ir.export(model, (torch.randn(4, 3, 5),), target=target, dynamic_shapes=({0: "T", 1: "B"},))
    for sizes in ((0, 0), (0, 2), (2, 0), (1, 1), (3, 2)):
        x = torch.randn(*sizes, 5)
        if target == "nnef" and 0 in sizes:
            with pytest.raises(ir.RefusedError, match="slice does not hold at"):
                program(x)
            continue
        torch.testing.assert_close(program(x), model(x))
