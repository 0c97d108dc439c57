"""The condition under which `contiguous` and `reshape` copy, beside torch's own kernels."""

import itertools

import pytest
import torch

from ir.dims import evaluate, symbol
from ir.importer.copied_sizes import copies_where
from ir.importer.strided import Place

A, B, C = map(symbol, "abc")
SHAPES = {  # from the operand's sizes to the result's
    "all": lambda a, b, c: (a * b * c,),
    "first": lambda a, b, c: (a * b, c),
    "last": lambda a, b, c: (a, b * c),
    "none": lambda a, b, c: (a, b, c),
}


def place(order, gap):
    """Where a tensor [a, b, c] lies, its axes in this order in memory, with a gap behind each row or without."""
    sizes, strides, step = (A, B, C), [0, 0, 0], 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * sizes[axis] + gap
    return Place(sizes, tuple(strides))


def holds(condition, sizes):
    return condition if isinstance(condition, bool) else bool(evaluate(condition, sizes))


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
@pytest.mark.parametrize("kind", [*SHAPES, "contiguous"])
def test_the_condition_is_torch_s(kind, order, gap):
    given = place(order, gap)
    shape = SHAPES.get(kind, SHAPES["none"])
    op = "aten::contiguous" if kind == "contiguous" else "aten::reshape"
    condition = copies_where(op, None, given, shape(A, B, C))
    for numbers in itertools.product((1, 2, 3), repeat=3):
        sizes = dict(zip("abc", numbers, strict=True))
        strides = [s if isinstance(s, int) else int(evaluate(s, sizes)) for s in given.strides]
        x = torch.empty_strided(numbers, strides)
        made = x.contiguous() if kind == "contiguous" else x.reshape(shape(*numbers))
        copied = made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert holds(condition, sizes) is copied, (numbers, strides, condition)


def test_what_is_not_known():
    given = place((0, 1, 2), 0)
    assert copies_where("aten::reshape", None, given, (A * 2, B, C)) is None
    assert copies_where("aten::contiguous", "channels_last", given, (A, B, C)) is None
    assert copies_where("aten::to", None, given, (A, B, C)) is None
