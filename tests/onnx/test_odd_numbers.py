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


def test_a_sigmoid_far_below_zero_has_a_logarithm() -> None:
    def logs(x):
        return x.sigmoid().log(), torch.special.expit(x).log(), x.double().sigmoid().log(), (x.half() / 4).sigmoid()

    x = torch.tensor([-80.0, -20.0, -11.3, 0.0, 40.0, inf, -inf, nan])
    torch.testing.assert_close(ir.export(logs, (x,), target="onnx")(x), logs(x), equal_nan=True)


def test_a_sigmoid_that_only_gates_is_one_node() -> None:
    program = ir.export(lambda x: x * torch.sigmoid(x), (torch.randn(3),), target="onnx")
    assert [n.op_type for n in program.artifact.graph] == ["Sigmoid", "Mul"]


def test_running_totals_may_leave_the_range_of_float32_on_the_way() -> None:
    def totals(x):
        return x.cumsum(0), x.cumprod(0)

    x = torch.tensor([3e38, 2e38, -4e38, 0.25, 0.5])
    torch.testing.assert_close(ir.export(totals, (x,), target="onnx")(x), totals(x))


def test_the_largest_norm_of_nan_is_nan() -> None:
    def norms(x):
        return [t.norm(p, dim=d) for t in (x, x.half()) for p in (inf, -inf) for d in (0, 1)]

    x = torch.tensor([[1.0, nan], [2.0, -3.0], [nan, 0.5]])
    torch.testing.assert_close(ir.export(norms, (x,), target="onnx")(x), norms(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nan_comes_after_infinity(dtype: torch.dtype) -> None:
    def ordered(x):
        sorts = [x.sort(stable=True, descending=d) for d in (False, True)]
        return *sorts, x.topk(3)[0], x.topk(4, largest=False)[0], x.kthvalue(4)[0], x.nanmedian(1)[0], x.median(1)[0]

    rows = [[1.0, nan, inf, 2.0, -inf], [inf, nan, 3.0, nan, inf], [nan, inf, -inf, 0.0, 5.0]]
    x = torch.tensor(rows, dtype=dtype)
    torch.testing.assert_close(ir.export(ordered, (x,), target="onnx")(x), ordered(x), equal_nan=True)
