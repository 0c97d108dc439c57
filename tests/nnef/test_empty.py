"""Operands that a run finds empty."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import while_loop

import ir

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_merge_of_no_features():
    """What a vision-language model does with text alone; more places than features are refused."""

    def merge(x, ids, features):
        return x.masked_scatter((ids == 7)[..., None], features)

    def given(ids, features):
        return torch.randn(*ids.shape, 4), ids, torch.randn(features, 4)

    ids = torch.tensor([[1, 7, 7, 2, 3], [7, 1, 2, 7, 3]])
    shapes = ({0: "b", 1: "s"}, {0: "b", 1: "s"}, {0: "k"})
    program = ir.export(merge, given(ids, 4), target="nnef", dynamic_shapes=shapes)
    for args in (given(ids, 4), given(ids, 6), given(torch.ones(2, 3).long(), 0), given(ids[:, 1:3], 3)):
        assert torch.equal(program(*args), merge(*args))
    for missing in (3, 0):
        with pytest.raises(ir.ExportError, match="masked_scatter"):
            program(*given(ids, missing))


ROUNDS = {
    "one less": lambda i, x: i < x.shape[0] - 1,
    "half": lambda i, x: i < x.shape[0] // 2,
    "two less": lambda i, x: i < x.shape[0] - 2,
    "all": lambda i, x: i < x.shape[0],
}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_loop_of_no_rounds_gives_what_it_began_with(name):
    def loop(x):
        return while_loop(ROUNDS[name], lambda i, x: (i + 1, x * 2 + i), (torch.tensor(0), x.clone()))

    program = ir.export(loop, (torch.randn(4, 3),), target="nnef", dynamic_shapes=({0: "b"},))
    for rows in (4, 2, 1, 0, 5):
        for made, wanted in zip(program(x := torch.randn(rows, 3)), loop(x), strict=True):
            torch.testing.assert_close(made, wanted)
