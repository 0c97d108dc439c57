"""tract's own LSTM kernel: NaN and infinities come out as torch has them, at every step and in the last states."""

import math

import pytest
import torch
from torch.utils import _pytree as pytree

import ir


@pytest.mark.parametrize("options", [{}, {"proj_size": 3}, {"bias": False}], ids=str)
def test_lstm_keeps_nan_and_infinity(options):
    torch.manual_seed(0)
    model = torch.nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True, **options).eval()
    x, cells = torch.randn(3, 6, 4), torch.randn(4, 3, 5)
    states = torch.randn(4, 3, options.get("proj_size", 5)), cells
    program = ir.export(model, (x, states), target="nnef", verify=True)
    assert "tract_core_lstm_epilogue" in program.artifact.to_text()
    x, cells = x.clone(), cells.clone()
    x[0, 2, 1], x[1, 3, 0] = math.nan, math.inf
    cells[2, 2, 0], cells[1, 2, 1] = math.nan, math.inf
    arguments = x, (states[0], cells)
    actual, expected = (pytree.tree_leaves(call(*arguments)) for call in (program, model))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert any(e.isnan().any() and not e.isnan().all() for e in expected)
