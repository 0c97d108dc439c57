"""Inputs that are no ordinary ones: nan among boundaries, infinity in the rows of bags, strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir

nan, inf = float("nan"), float("inf")


def test_a_search_among_boundaries_with_nan_goes_as_torch_goes() -> None:
    def search(x, row):
        rows = row.expand(2, 5).contiguous()
        return torch.searchsorted(row, x), torch.bucketize(x, row, right=True), torch.searchsorted(rows, x.view(2, 3))

    args = torch.tensor([nan, 1.0, -1.0, inf, 0.0, 2.0]), torch.tensor([-2.0, 0.0, 1.0, 3.0, nan])
    torch.testing.assert_close(ir.export(search, args, target="onnx")(*args), search(*args))


def test_a_bag_does_not_see_the_rows_of_others() -> None:
    def bags(table, places, starts):
        modes = [F.embedding_bag(places, table, starts, mode=mode) for mode in ("sum", "mean", "max")]
        return [*modes, F.embedding_bag(places, table, starts, mode="sum", padding_idx=-3)]

    table = torch.tensor([[nan, 1.0], [2.0, 3.0], [inf, 1.0], [4.0, -inf]])
    args = table, torch.tensor([0, 1, 3, 2, 1]), torch.tensor([0, 1, 1, 3])
    torch.testing.assert_close(ir.export(bags, args, target="onnx")(*args), bags(*args), equal_nan=True)


def test_strides_of_a_tensor_that_is_not_contiguous_are_refused() -> None:
    def window(x):
        return x.as_strided((2, 2), (1, 2))

    x = torch.randn(3, 4)
    torch.testing.assert_close(ir.export(window, (x,), target="onnx")(x), window(x))
    for example in (x.T, x[:, ::2]):
        with pytest.raises(ir.RefusedError, match="not contiguous in memory"):
            ir.export(window, (example,), target="onnx")
