"""Operands that a run finds empty."""

from __future__ import annotations

import pytest
import torch

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
