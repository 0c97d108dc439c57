"""Inputs that are no ordinary ones: nan among boundaries, infinity in the rows of bags, strides."""

from __future__ import annotations

import math

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


def test_a_search_among_any_number_of_boundaries() -> None:
    """Behind those in order there may be nan, as torch.sort leaves it; of none there is nothing to read."""

    def search(x, row):
        return torch.searchsorted(row, x), torch.bucketize(x, row, right=True)

    x = torch.tensor([nan, 1.0, -2.0, inf, 0.0])
    program = ir.export(search, (x, torch.randn(4)), target="onnx", dynamic_shapes=({0: "n"}, {0: "m"}))
    for row in ([-1.0, 0.0, 1.0, nan], [-1.0, 0.0, 0.0, nan, nan], [nan], [2.0], []):
        args = x, torch.tensor(row)
        torch.testing.assert_close(program(*args), search(*args))


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


def test_glu_keeps_its_digits_where_the_gate_is_nearly_shut() -> None:
    x = torch.tensor([[1.0, -8.0], [1.0, -14.0], [1.0, -17.0], [1.0, -inf]])
    for row in (x, x.half()):
        given = ir.export(torch.nn.functional.glu, (row,), target="onnx")(row)
        torch.testing.assert_close(given, torch.nn.functional.glu(row), atol=0, rtol=2e-3 if row is not x else 1e-5)


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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_powers_of_integers_wrap_around(dtype):
    base = torch.arange(-9, 9).to(dtype).view(18, 1)
    exponent = torch.tensor([0, 1, 2, 3, 5, 7, 16, 21, 63, -1, -2, 100]).to(dtype)
    assert torch.equal(ir.export(torch.pow, (base, exponent), target="onnx")(base, exponent), torch.pow(base, exponent))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_a_fraction_written_into_integers_is_cut(dtype):
    def written(x):
        at = torch.zeros(1, 1, dtype=torch.int64)
        padded = F.pad(x, (1, 1), value=2.7), x.new_full((2,), 2.7), torch.fill(x, 2.7)
        return *padded, x.scatter(0, at, 2.7), x.index_fill(0, at[0], 2.7)

    x = torch.tensor([[1, 2], [3, 4]]).to(dtype)
    torch.testing.assert_close(ir.export(written, (x,), target="onnx")(x), written(x))


def test_interpolation_reads_its_own_channel_alone() -> None:
    def resized(x):
        return F.interpolate(x, size=6, mode="linear"), F.interpolate(x, scale_factor=1.5, mode="linear")

    x = torch.ones(2, 3, 4)
    x[0, 1, 2] = nan
    x[1, 2, 0] = inf
    torch.testing.assert_close(ir.export(resized, (x,), target="onnx")(x), resized(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_within_an_op_do_not_round_to_halves(dtype):
    def steps(x):
        return torch.log2(x), torch.log10(x), torch.sinc(x / 4), torch.lerp(1 / x, x, 0.3), torch.lerp(-1 / x, x, 1 / x)

    x = torch.tensor([1, 2, 4, 8, 10, 64, 100, 1000, 4096], dtype=dtype)
    bounds = {"rtol": float(torch.finfo(dtype).eps), "atol": 1e-7}
    torch.testing.assert_close(ir.export(steps, (x,), target="onnx")(x), steps(x), **bounds)


def test_the_factor_of_addcdiv_comes_first_and_one_number_is_its_own_norm() -> None:
    def odd(x):
        norms = torch.linalg.vector_norm(x.view(4, 1), dim=-1), F.cosine_similarity(x.view(4, 1), x.view(4, 1))
        return x.addcdiv(x, x, value=3.5), x.addcmul(x, 1 / x, value=3.5), *norms

    x = torch.tensor([3.4028234663852886e38, 1.0, -2e38, 0.5])
    torch.testing.assert_close(ir.export(odd, (x,), target="onnx")(x), odd(x), equal_nan=True)


def test_exponentials_of_integers_are_floats() -> None:
    x = torch.tensor([-2, 0, 3])
    assert torch.equal(ir.export(torch.special.exp2, (x,), target="onnx")(x), torch.special.exp2(x))


def test_what_tends_to_infinity_and_what_is_exactly_zero() -> None:
    def odd(x):
        halves = torch.atan2(x.half(), torch.full_like(x, inf).half())
        gammas = torch.lgamma(x).bool(), torch.polygamma(1, x), torch.special.gammainc(x, x)
        return *gammas, torch.logcumsumexp(x, 0), halves.bool(), torch.log_softmax(x.double(), 0)

    x = torch.tensor([1.0, 2.0, -1.0, -3.0, 0.5, inf, inf])
    torch.testing.assert_close(ir.export(odd, (x,), target="onnx")(x), odd(x), equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.filterwarnings("ignore")
def test_special_functions_of_integers(dtype) -> None:
    def functions(x):
        special = torch.special
        logs = special.log1p(x), special.logit(x, eps=0.25), special.expm1(x), special.gammaln(x)
        return *logs, special.erfc(x), special.digamma(x), special.i0(x), special.xlogy(x, x), special.sinc(x)

    x = torch.tensor([0, 1, 2, 5]).to(dtype)
    torch.testing.assert_close(ir.export(functions, (x,), target="onnx")(x), functions(x), rtol=1e-5, atol=1e-5)


def test_a_product_of_what_is_divided_by_zero() -> None:
    def product(x):
        return (x / 0) @ x, x @ (x * inf)

    x = torch.tensor([[-3.0, 0.5, 0.0], [3.0, 3.0, 1.0], [0.5, 3.0, 4.0]])
    torch.testing.assert_close(ir.export(product, (x,), target="onnx")(x), product(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 4)])
def test_floats_of_8_bits_go_in_and_out(dtype, shape, tmp_path) -> None:
    x = torch.linspace(-3, 3, math.prod(shape)).reshape(shape).to(dtype)
    sizes = ({0: "n"},) if shape else None
    program = ir.export(
        lambda x: (x.float() * 2, (x.float() / 2).to(dtype)), (x,), path=tmp_path / "m.onnx", verify=True,
        dynamic_shapes=sizes,
    )  # fmt: skip
    wide, half = program(x)
    assert torch.equal(wide, x.float() * 2) and torch.equal(
        half.view(torch.uint8), (x.float() / 2).to(dtype).view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_numbers_beyond_floats_of_8_bits(dtype) -> None:
    x = torch.tensor([inf, -inf, 1e9, -1e5, 57344, 448, 464, 480, -0.0])
    cast = ir.export(lambda x: x.to(dtype).float(), (x,), target="onnx")
    assert torch.equal(cast(x), x.to(dtype).float())
    assert cast(x * nan).isnan().all()


@pytest.mark.parametrize("numbers", [[1, 2, 2, 5], [127, 0], [255], []])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_numbers_of_narrow_types_are_counted(dtype, numbers) -> None:
    x = torch.tensor([n for n in numbers if n <= torch.iinfo(dtype).max], dtype=dtype)
    told = ir.export(lambda x: (torch.bincount(x), torch.bincount(x, minlength=3)), (x,), target="onnx")(x)
    torch.testing.assert_close(told, (torch.bincount(x), torch.bincount(x, minlength=3)))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_with_nan(dtype, p) -> None:
    numbers = torch.tensor([nan, inf, -inf, 1.0, 2.0, 0.0, 1e-40], dtype=dtype)
    x = torch.cartesian_prod(numbers, numbers)[:24]  # by products from 26 rows on
    for rows in (x, x[:, :1], x[:, :0], x.view(2, 12, 2)):
        program = ir.export(lambda x: torch.cdist(x, x, p), (rows,), target="onnx")
        torch.testing.assert_close(program(rows), torch.cdist(rows, rows, p), equal_nan=True)
