"""Attention with sizes that a run tells."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("fixed", [False, True])
def test_heads_that_share_a_key_are_as_many_as_the_run_says(fixed):
    def model(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def given(heads, keys):
        shapes = (2, heads, 5, 8), (2, keys, 7, 8), (2, keys, 7, 8), (2, heads, 5, 7)
        return tuple(torch.randn(s) for s in shapes)

    shared = {} if fixed else {1: "hk"}
    shapes = ({1: "h"}, shared, shared, {1: "h"})
    program = ir.export(model, given(4, 2), target="nnef", dynamic_shapes=shapes)
    for heads, keys in ((4, 2), (6, 2), (2, 2), *(() if fixed else ((6, 3), (4, 1), (1, 1)))):
        args = given(heads, keys)
        torch.testing.assert_close(program(*args), model(*args))
    with pytest.raises(ir.RefusedError, match="h % "):
        program(*given(5, 2))
