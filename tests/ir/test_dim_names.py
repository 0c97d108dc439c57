"""Names that dynamic_shapes gives to sizes."""

from __future__ import annotations

import pytest
import torch

import ir

X = torch.randn(4, 3)


def test_two_names_of_what_turns_out_to_be_one_size():
    with pytest.warns(UserWarning, match=r"the names a and b for what .* one size: it is a in the program"):
        graph = ir.capture(lambda x, y: x + y, (X, X.clone()), dynamic_shapes=({0: "a"}, {0: "b"}))
    assert [str(v.type) for v in graph.inputs] == ["f32[a, 3]", "f32[a, 3]"]


def test_names_that_stay_apart_or_are_one(recwarn):
    ir.capture(lambda x, y: x @ y, (X, X.T.clone()), dynamic_shapes=({0: "a"}, {1: "b"}))
    ir.capture(lambda x, y: x + y, (X, X.clone()), dynamic_shapes=({0: "a"}, {0: "a"}))
    ir.capture(lambda x, y: x + y, (X, X.clone()), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, {0: "a"}))
    assert not recwarn.list
