"""Numbers that tract's own operations do not give as torch does: nan, infinities, signed zeros, edges, empty tensors.

Each row is compared with torch at every set of arguments; the first is the one that is captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ir
from ir.types import DType

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")

inf, nan = math.inf, math.nan
ODD = torch.tensor([0.0, -0.0, 1.0, -2.5, 7.0, -0.7, inf, -inf, nan, 1e-30])
PAIRS = torch.cartesian_prod(ODD, ODD)
FLOATS = (torch.float32, torch.float64, torch.float16)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3}
LEAST = torch.finfo(torch.float32).min


def same(function: Callable[..., Any], *argument_sets: tuple[Any, ...], dynamic: Any = None) -> None:
    program = ir.export(function, argument_sets[0], target="nnef", dynamic_shapes=dynamic)
    for arguments in argument_sets:
        found, wanted = program(*arguments), function(*arguments)
        for a, e in zip(_flat(found), _flat(wanted), strict=True):
            tolerance = TOLERANCE.get(e.dtype, 0.0)
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance * 0.01, equal_nan=True)


@ir.custom_op("nnef_numbers::narrowed")
def narrowed(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.uint8)


@narrowed.handler("nnef")
def _(h, x):
    return h.cast(x, DType.uint8)


def test_a_handlers_cast_of_floats_keeps_the_low_bits():
    same(lambda x: narrowed(x), (torch.tensor([0.5, 255.9, 300.0, -1.0, 70000.0]),))


def _flat(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def rows(count: int, *rest: int) -> torch.Tensor:
    return torch.randn(count, *rest, generator=torch.Generator().manual_seed(count))


NOTHING: dict[str, Callable[[Any], Any]] = {
    "number": lambda x: (x * 0, 1 / (x * 0), x * -0.0),
    "tensor": lambda x: (x * torch.zeros((), dtype=x.dtype), x * torch.zeros(3, 1, dtype=x.dtype)),
    "like": lambda x: (x * torch.zeros_like(x), x * x.new_zeros(x.size(0)), (torch.zeros_like(x) * 2) * x),
    "divided": lambda x: (x / inf, 0 / x, torch.zeros(2, 1, dtype=x.dtype) / x),
    "slope": lambda x: (F.leaky_relu(x, 0.0), torch.add(x, x, alpha=0), torch.addcmul(x, x, x, value=0)),
    "summed": lambda x: (x * torch.zeros_like(x)).sum(),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NOTHING)
def test_a_product_with_zero_is_nan_where_torch_has_nan(name, dtype):
    for dynamic in (None, ({0: "n"},)):
        same(NOTHING[name], (ODD.to(dtype),), dynamic=dynamic)


QUOTIENTS: dict[str, Callable[..., Any]] = {
    "divided": lambda x, y: (x / y, torch.floor(x / y), x / x, torch.floor(x / 3), torch.ceil(7 / x)),
    "cut": lambda x, y: (torch.div(x, y, rounding_mode="trunc"), torch.div(x, 49, rounding_mode="trunc")),
    "floor": lambda x, y: (x // y, x // x, x // 0.1, x // 49, x // 0),
    "left": lambda x, y: (x % y, x % x, x % 0.1, x % -49, x % 0, 1 / (x % 2)),
    "fmod": lambda x, y: (torch.fmod(x, y), torch.fmod(x, 0.1), torch.fmod(x, 0), 1 / torch.fmod(x, 2)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_are_rounded_as_torch_rounds_them(name, dtype):
    y = (rows(300) * 10 + 0.01).to(dtype)
    whole = (torch.arange(-150.0, 150.0).to(dtype) * y).to(dtype)
    same(QUOTIENTS[name], (y, whole), (whole, y), (torch.arange(300).to(dtype) * 49, y))
    odd = PAIRS[(PAIRS.abs() != 1e-30).all(1)]  # no quotient above 2**53
    same(QUOTIENTS[name], (odd[:, 0].to(dtype), odd[:, 1].to(dtype)))


@pytest.mark.parametrize("name", QUOTIENTS)
def test_divisors_whose_reciprocal_is_infinite(name):
    """float64 from 2 ** -1024 on; where the quotient is infinite too, torch's own kernels differ in the rest."""
    least = torch.tensor([0.0, -0.0, 5e-309, -3e-309, 5e-324, 1e-310, 2.5e-308, 1e-300, 1.7e308, inf, nan]).double()
    x, y = torch.cartesian_prod(torch.cat([least, -7e-290 * torch.ones(1).double()]), least).unbind(1)
    defined = (x / y).isfinite() | (y.abs() < 1e300) & (x.isinf() | x.isnan()) if name in ("left", "fmod") else y == y
    same(QUOTIENTS[name], (x[defined], y[defined]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_become_integers_as_on_x86(dtype):
    edges = [0.0, -1.5, 255.0, 256.0, -300.0, 65536.0, 2147483647.0, -2147483648.0, 3e9, -1e10, 9.3e18, 1e20]
    x = torch.tensor([*edges, inf, -inf, nan]).to(dtype)
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    same(lambda x: [x.to(t) for t in integers], (x,))


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), ids=str)
def test_shifts_by_more_places_than_there_are(dtype):
    x = torch.tensor([0, 1, 5, 127] + ([-1, -7] if dtype.is_signed else [200, 255])).to(dtype)
    by = torch.tensor([0, 1, 7, 63, 64, 100][: len(x)]).to(dtype)
    same(lambda x, y: (x << y, x >> y, x << 3, x >> 1, x << 64, x >> 64), (x, by))


def test_far_exponents_of_whole_numbers():
    x, y = torch.tensor([3, -5, 7, 2]), torch.tensor([2**33, 2**40 + 1, 2**31, 2**32])
    same(lambda x, y: (x**y, x ** y[:1]), (x, torch.tensor([1, 2, 3, 4])), (x, y))
    same(lambda x, n: x ** n.item(), (x, torch.tensor(3)), *((x, torch.tensor(n)) for n in (0, 41, 2**33, 2**40 + 1)))


@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32), ids=str)
def test_unsigned_numbers_are_sorted_into_places_of_64_bits(dtype):
    x = torch.tensor([[3, 60000, 2, 1], [7, 0, 7, 9]]).to(dtype)
    same(lambda x: (*x.sort(1), *x.sort(1, descending=True), x.argsort(1), x.msort()), (x,))


@pytest.mark.parametrize("zero", (3, 0, -7))
def test_fake_quantisation_of_what_is_no_number(zero):
    x, kind = torch.tensor([[nan, inf, -inf, 1e30, 1.0, 0.25]]), (-128, 127)
    scales, zeros = torch.tensor([0.1]), torch.tensor([zero], dtype=torch.int32)
    same(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, zero, *kind), (x,), (-x,))
    same(lambda x: torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.1), torch.tensor(zero), *kind), (x,))
    same(lambda x: torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, *kind), (x,), (-x,))


def test_slopes_that_are_not_finite_make_nan_of_zeros():
    x, slopes = torch.tensor([0.0, -0.0, 1.0, -1.0, nan, inf]), [(torch.tensor(s),) for s in (0.5, nan, inf, -inf)]
    same(lambda x, n: F.leaky_relu(x, n.item()), *((x, *s) for s in slopes))
    same(lambda x, n: F.prelu(x, n.reshape(1)), *((x, *s) for s in slopes))
    same(lambda x: F.leaky_relu(x, nan), (x,))


def test_pools_keep_nan_and_minus_infinity():
    x = rows(2, 3, 9, 8)
    odd = x.clone()
    odd[0, 0, 0, 0], odd[0, 1], odd[1, 0, 3:6, 3:6], odd[1, 2], odd[0, 2, :2] = nan, -inf, nan, LEAST, -inf
    odd[0, 2, 1, 1] = nan
    for pool in (
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.max_pool2d(F.relu(x), 2),
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (4, 3))),
    ):
        same(pool, (x,), (odd,), (odd[:1],), dynamic=({0: "b"},))


EMPTY: dict[str, Callable[[Any], Any]] = {
    "sums": lambda x: (x[:, 0].sum(), x[:, 0].mean(), x.t().sum(1), x[:, 0].nansum(), x.sum(0)),
    "spread": lambda x: (x.std(0), x.var(), x.std(0, correction=0), torch.var_mean(x, 0)[0]),
    "norms": lambda x: (F.normalize(x.t(), dim=1), F.instance_norm(x.t()[None]), x[:, 1].norm()),
    "losses": lambda x: (F.mse_loss(x[:, 0], x[:, 1]), F.cross_entropy(x, (x[:, 0] > 0).long())),
    "median": lambda x: torch.median(x),
    "split": lambda x: torch.tensor_split(x, 3),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name):
    same(EMPTY[name], (rows(4, 3),), (rows(0, 3),), (rows(7, 3),), dynamic=({0: "n"},))


REPEATED: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: (x.expand(4, 2) @ torch.ones(2, 3), x.expand(4, 2).exp() @ torch.ones(2, 3)),
    "turned": lambda x: (x.expand(2, 4).t() @ torch.ones(2, 3), x.expand(2, 3, 4).reshape(6, 4) @ torch.ones(4, 3)),
    "tiled": lambda x: (x.repeat(2, 4) @ torch.ones(4, 3), torch.bmm(x.expand(2, 3, 4), x.expand(2, 4, 3))),
    "linear": lambda x: F.linear(x.expand(2), torch.ones(3, 2)),
    "summed": lambda x: (torch.einsum("ij->i", x.expand(2, 4)), x.long().expand(2, 4).sum(0), x.expand(2, 4).sum(0)),
    "convolved": lambda x: F.conv1d(x.expand(1, 2, 5), torch.ones(3, 2, 3)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_elements_are_counted(name):
    same(REPEATED[name], (torch.tensor([0.5]),))
    same(REPEATED[name], (torch.tensor(0.5),))


def test_repeated_elements_keep_their_sizes():
    def inner(x):
        a, b = torch.meshgrid(x, x, indexing="ij")
        return torch.inner(b, a), torch.exp2(torch.ones_like(x)), torch.ones(x.size(0), dtype=torch.long) * 3

    same(inner, (rows(4),), (rows(1),), (rows(6),), dynamic=({0: "n"},))
    same(lambda x, y: (x[None].expand(3, 2, 4) @ y, x.expand(2, 4) @ y), (rows(2, 4), rows(3, 4, 2)))


def test_a_step_that_fails_on_no_elements_is_refused():
    def model(x):
        return x.narrow(0, 0, x.shape[0] // 2).softmax(0, torch.float64)  # which aborts in tract

    program = ir.export(model, rows(3), target="nnef", dynamic_shapes=({0: "n"},))
    assert program(rows(2)).shape == (1,)
    with pytest.raises(
        ir.RefusedError, match=r"the runtime fails at n=1, where narrow gives no elements\n  at .*test_nu"
    ):
        program(rows(1))


def test_a_step_that_fails_at_one_is_refused():
    program = ir.export(lambda x: x[:2] * 2, (rows(4, 3),), target="nnef", dynamic_shapes=({0: "n"},))
    assert program(rows(2, 3)).shape == (2, 3)
    with pytest.raises(ir.RefusedError, match=r"n=1, since torch.export traces a model for sizes from 2 on"):
        program(rows(1, 3))


def test_a_slice_whose_size_alone_is_read_is_refused_where_it_is_shorter():
    for f in (lambda x: torch.cat([x[:, :0], x[:1, :0]]), lambda x: torch.ones_like(x[:1])):
        program = ir.export(f, (rows(4, 3),), target="nnef", dynamic_shapes=({0: "n"},))
        assert program(rows(1, 3)).shape == f(rows(1, 3)).shape
        with pytest.raises(ir.RefusedError, match="slice does not hold at n=0"):
            program(rows(0, 3))


DOUBLE: dict[str, Callable[[Any], Any]] = {
    "erf": lambda x: (torch.erf(x), torch.erfc(x), torch.special.ndtr(x), F.gelu(x), F.gelu(x, approximate="tanh")),
    "logs": lambda x: (x.abs().log2(), x.abs().log10(), torch.exp2(x), x.abs() ** 0.3, torch.sinc(x)),
    "norms": lambda x: (F.layer_norm(x, (7,)), F.rms_norm(x, (7,)), F.group_norm(x[None], 2), (x * x).mean(1)),
    "resized": lambda x: F.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
    "sampled": lambda x: F.grid_sample(x[None, None], x[None, :, :6].reshape(1, 4, 3, 2) / 9, align_corners=False),
    "activations": lambda x: (F.elu(x, 0.3), F.celu(x, 3.5), F.selu(x), F.softplus(x, 0.7), F.hardswish(x)),
    "mixed": lambda x: (torch.lerp(x, x.flip(0), 0.1), torch.lerp(x, x.flip(0), 0.9), F.pad(x, (1, 1), value=0.1)),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_float64_keeps_its_digits(name):
    same(DOUBLE[name], (rows(4, 7).double(),), (rows(4, 7).double() * 9,))


def test_float64_is_narrowed_on_request_alone():
    handlers = {"aten::erf": lambda h, self: h.emit("tract_core_erf", self)}  # which tract has for float32 alone
    x = rows(4, 7).double()
    with pytest.raises(ir.RefusedError, match=r"of f64.*allow_narrowing=True"):
        ir.export(lambda x: torch.erf(x), (x,), target="nnef", handlers=handlers)
    program = ir.export(lambda x: torch.erf(x), (x,), target="nnef", handlers=handlers, allow_narrowing=True)
    torch.testing.assert_close(program(x), torch.erf(x), rtol=1e-4, atol=1e-5)


WRITTEN: dict[str, Callable[..., Any]] = {
    "masked": lambda x, i: x.masked_fill(x > 0, torch.tensor(3)),
    "number": lambda x, i: x.index_put((x > 0,), torch.tensor(2).to(x.dtype)),
    "columns": lambda x, i: x.index_put((torch.arange(x.size(0))[:, None], i[None, :2]), torch.ones(2, dtype=x.dtype)),
    "added": lambda x, i: (x.index_add(0, i, x[:3]), x.scatter_add(0, i[:, None].expand(3, 3), x[:3])),
    "reduced": lambda x, i: [x.scatter_reduce(0, i[:, None].expand(3, 3), x[:3], r) for r in ("amax", "prod")],
}


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.int64, torch.float32), ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_writes_of_every_element_type(name, dtype):
    x = (rows(4, 3) * 3).to(dtype) if dtype is not torch.uint8 else (rows(4, 3).abs() * 3).to(dtype)
    same(WRITTEN[name], (x, torch.tensor([2, 0, 2])))


def test_values_of_another_type_are_written():
    def write(x):
        y = x.clone()
        y[y > 0] = torch.tensor(2)
        y[:, torch.tensor([0, 0])] = torch.ones(2)
        return y

    same(write, (rows(4, 3),), (rows(1, 3),), (rows(0, 3),), dynamic=({0: "n"},))


@pytest.mark.parametrize("mode", ("sum", "mean", "max"))
def test_padding_of_bags_counts_from_the_end(mode):
    weight, bags = rows(6, 4), torch.tensor([[1, 2, 0], [5, 4, 5], [5, 5, 5]])
    for padding in (-1, -6, -2, 0, None):
        same(lambda i, p=padding: F.embedding_bag(i, weight, mode=mode, padding_idx=p), (bags,))


def test_a_weight_of_a_type_that_tract_lacks_is_refused_by_name():
    weight = rows(3, 2)
    with pytest.raises(ir.RefusedError, match="tract has no bf16 tensors"):
        ir.export(lambda x: weight.bfloat16(), (rows(4, 3),), target="nnef", bfloat16=None)


def test_squares_of_whole_numbers():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        x = torch.tensor([3], dtype=dtype)
        same(lambda x: (x * x, torch.dot(x, x), torch.square(x), x[None] * x[:, None], torch.outer(x, x)), (x,))
    same(lambda x: torch.square(x), (torch.tensor([True, False]),))


def test_reductions_over_an_axis_of_no_elements():
    empty = [torch.zeros(2, 0, 3), torch.zeros(2, 0, 3, dtype=torch.int64), torch.zeros(2, 0, 3, dtype=torch.bool)]
    for x in empty:
        same(lambda x: (x.sum(1), x.sum(), x.prod(1), x.any(1), x.all(1)), (x,))
    same(lambda x: (x.mean(1), torch.nanmean(x, 1), x.var(1), torch.linalg.vector_norm(x, dim=1)), (empty[0],))


def test_a_slope_for_all_channels_of_a_number():
    for x in (torch.tensor(-2.0), torch.tensor([-2.0, 3.0])):
        same(lambda x: F.prelu(x, torch.tensor([0.25])), (x,))


def test_truth_values_are_padded_with_the_truth_of_a_number():
    for value in (0.25, 0, -3.5):
        same(lambda x, value=value: F.pad(x, (3, 1), value=value), (torch.tensor([[True, False]]),))


def test_relu_of_a_layer_that_reads_infinities():
    layers = torch.nn.BatchNorm1d(2).eval(), torch.nn.Linear(2, 2).eval()
    same(lambda x: [torch.relu(layer(x.masked_fill(x < 0, -inf))) for layer in layers], (rows(3, 2),))


def test_erfc_keeps_its_digits_where_it_is_small():
    x = torch.tensor([0.0, 0.3, 2.0, 4.0, 5.0, 9.0, -3.0, inf, -inf, nan])
    same(lambda x: torch.special.erfc(x) * torch.tensor([1.0, 1, 1, 1e7, 1e11, 1e30, 1, 1, 1, 1]), (x,))
    same(torch.special.erfc, (torch.tensor([0, 1, 5]),))


def test_functions_that_are_as_small_as_their_argument():
    x = torch.tensor([1e-38, -1e-30, 1e-12, -1e-6, 1e-3, 0.1, 0.24, 0.26, -0.3, 3.0, 0.0, -0.0, inf, -inf, nan])
    same(lambda x: torch.erf(x) / x, (x,))
    same(lambda x: [f(x) / x for f in (F.elu, F.selu, F.celu)], (x[x < 0],))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_roots_as_powers(dtype):
    same(lambda x: (x**0.5, x**-0.5, 1 / x**0.5, x**-1), (ODD.to(dtype),))


ROOTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "squares": lambda x: (torch.sqrt(x) ** 2, torch.sqrt(x).square(), torch.sqrt(x) * torch.sqrt(x)),
    "powers": lambda x: (torch.sqrt(x) ** 3, torch.sqrt(x) ** 4, (x**0.5) ** 2),
    "arranged": lambda x: (torch.sqrt(x)[:, None] ** 2, torch.sqrt(x).expand(2, -1).square()),
    "summed": lambda x: (torch.sqrt(x) ** 2).sum(),
    "by tensors": lambda x: (x ** torch.full_like(x, 0.5), torch.sqrt(x) ** torch.tensor(2.0, dtype=x.dtype)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROOTS)
def test_squares_of_roots_keep_nan(name: str, dtype: torch.dtype) -> None:
    same(ROOTS[name], (ODD.to(dtype),))


NO_AXES: dict[str, Callable[[torch.Tensor], Any]] = {
    "flip": lambda x: x.flip(-1),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "kthvalue, axis kept": lambda x: x.kthvalue(1, -1, True),
}


@pytest.mark.parametrize("name", NO_AXES)
def test_an_axis_of_a_number(name: str) -> None:
    same(NO_AXES[name], (torch.tensor(2.5),))


ALL_EMPTY: dict[str, Callable[[torch.Tensor], Any]] = {
    "batch_norm": lambda x: F.batch_norm(x, torch.ones(3), torch.ones(3)),
    "products with zero": lambda x: (x * 0, x / inf, 0 / x),
    "cumprod": lambda x: x[..., 0].cumprod(0),
    "one result twice": lambda x: [x + 1] * 2,
}


@pytest.mark.parametrize("name", ALL_EMPTY)
def test_the_only_input_has_no_elements(name: str) -> None:
    same(ALL_EMPTY[name], (torch.zeros(0, 3, 4),))


def test_a_product_that_nothing_keeps_from_being_zero_is_refused() -> None:
    with pytest.raises(ir.RefusedError, match="every input has size 0"):
        ir.export(lambda x: F.pad(x, (0, 2), value=nan) * 0.0, (torch.zeros(2, 0),), target="nnef")


@pytest.mark.parametrize("dim", (0, 1, (0, 1), None), ids=str)
def test_means_beside_variances_are_nan_after_infinity(dim):
    x = torch.tensor([[1, 2, inf], [inf, 1, 2], [1, -inf, 2], [1, 2, 3], [nan, 1, inf]])
    for args in ((x, x[:1], x[3:4], x[:0]), (x[:, :2], x[:2, :2])):
        sets = [(a,) for a in args]
        same(lambda x: torch.var_mean(x, dim, correction=0), *sets, dynamic=({0: "B"},))
        same(lambda x: torch.std_mean(x, dim, keepdim=True, correction=0)[1], *sets, dynamic=({0: "B"},))


VECTORS = {
    "dot": lambda x: torch.dot(x.view(16), x.view(16).ceil()),
    "one row": lambda x: torch.chain_matmul(x.view(1, 16), x.view(16, 1), x.view(1, 16)),
    "einsum": lambda x: torch.einsum("i,i->", x.view(16), x.view(16)),
    "both summed": lambda x: torch.einsum("i,j->", x.view(16), x.view(16)),
    "one summed": lambda x: torch.einsum("ij,k->i", x[..., 0], x.view(16)),
    "diagonal": lambda x: torch.einsum("ii,i->", x[..., 0], x[0, :, 0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_products_that_end_in_one_number(name, dtype):
    """The axes of [4, 4, 1] that both operands were reshaped from are merged by tract."""
    same(VECTORS[name], (torch.arange(16).reshape(4, 4, 1).div(4).to(dtype),))


@pytest.mark.parametrize("count", [2, 3])
def test_differences_of_parts_that_repeat(count):
    """tract moves slices up to the parts of a concatenation, and fails where two of them are alike."""
    same(lambda x: torch.diff(torch.cat([x] * count, -1), n=2, dim=-1), (rows(2, 2),))
    same(lambda x, y: torch.diff(torch.cat([x, y, x], -1), n=2, dim=-1), (rows(2, 2), rows(3, 2)[:2]))
    same(lambda x: torch.diff(torch.cat([x] * count, -1), n=2, dim=-1), (rows(2, 2).long(),))
    same(lambda x: torch.trapezoid((s := torch.stack([x] * count, -1).tan()) ** 2, s), (rows(2, 2),))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("size", [3, 4])
def test_differences_of_equal_elements(size, n):
    """tract takes the product apart for its slices, and fails where two parts come out alike."""
    same(lambda x: torch.diff(torch.ones(2, size) * x, n=n), (torch.tensor(2.0),))
    same(lambda x: torch.diff((x + torch.ones(1, size)).exp().reshape(-1, size), n=n), (rows(1),))


def test_a_product_with_a_rotation_that_has_zeros():
    """tract makes one contraction of each part of a join, and fails for parts that are repeated."""

    def chain(x):
        cos, sin, zero = x[:, 0].cos(), x[:, 0].sin(), torch.zeros_like(x[:, 0])
        turned = torch.stack([torch.stack([cos, zero], -1), torch.stack([sin, cos], -1)], 1)
        return (torch.eye(2).expand(len(x), 2, 2) @ turned)[:, :1, 1]

    same(chain, (rows(3, 2),), (rows(5, 2),), dynamic=({0: "B"},))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tanh_reaches_one(dtype):
    far = torch.tensor([0.0, -0.0, 1e-6, 0.9, -1.1, 8.0, 9.2, 30.0, -30.0, inf, -inf, nan], dtype=dtype)
    same(lambda x: (torch.tanh(x), torch.tanh(x).trunc(), torch.frac(F.gelu(x, approximate="tanh"))), (far,))
    same(torch.nn.GRU(1, 1, bias=False).to(dtype).eval(), (far[:-3].reshape(-1, 1, 1),)) if dtype.itemsize > 2 else None


@pytest.mark.parametrize("order", [0, 0.5, 1, 1e-5, 2, 3, -1, inf, -inf])
def test_the_norm_of_one_number_is_its_size(order):
    one = torch.tensor([[1e20, -3.0, 1e-30, 0.0, nan, inf]])
    same(lambda x: torch.linalg.vector_norm(x, order, dim=0), (one,))
    same(lambda x: torch.linalg.vector_norm(x, order, dim=0), (rows(3, 6),), (one,), dynamic=({0: "B"},))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_factors_that_meet_beyond_their_type(dtype):
    large = {torch.float16: 300.0, torch.float32: 1e30, torch.float64: 1e200}[dtype]
    row = torch.tensor([large, 2 * large], dtype=dtype)
    same(lambda x: [x * large * large, x * row * large, x * large * row * 2], (rows(2).to(dtype) / large,))
    same(lambda x: [x * (1 / large), x * (1 / large) * (1 / large) * large], (rows(2).to(dtype) * large,))
    same(lambda x: (x + 1 / large) * large, (torch.zeros(2, dtype=dtype),))


def test_masked_scatter_expands_both():
    mask, source = torch.tensor([[True], [False], [True]]), rows(12)
    same(lambda x, m, s: x.masked_scatter(m, s), (rows(4), mask, source))
    same(lambda x, m, s: x.masked_scatter(m, s), (rows(3, 4), mask[:, 0, None] & False, source[:0]))


def test_a_mask_whose_size_is_only_known_to_be_right_when_it_runs():
    def put(mask, x):
        y = x.clone()
        y[mask] = 0.25
        return y.cumprod(1), y.reshape(-1)

    auto = torch.export.Dim.AUTO
    same(put, (rows(3, 2) > 0, rows(3, 2)), (rows(5, 2) > 0, rows(5, 2)), dynamic=({0: auto}, {0: auto}))


def test_a_count_of_what_no_input_decides():
    same(lambda x: F.pad(x, (1, 3)).fill_(0.5).nonzero() + x.sum(), (torch.tensor([[True, False]]),))


# what follows a product [16, 5, 3] @ [16, 3, 32] whose batch is moved last, and what comes before it
BATCH_LAST = {
    "both": lambda x, y: (x @ y.permute(2, 1, 0)).permute(2, 1, 0),
    "behind_relu": lambda x, y: (x @ y.permute(2, 1, 0)).relu().permute(2, 1, 0) + 1,
    "two_steps": lambda x, y: (x @ y.permute(2, 1, 0)).transpose(1, 2).permute(1, 2, 0),
    "two_axes": lambda x, y: (
        x.reshape(4, 4, 5, 3) @ y.permute(2, 1, 0).reshape(4, 4, 3, 32)
    ).permute(3, 2, 0, 1),
    "einsum": lambda x, y: torch.einsum("nqk,ckn->cqn", x, y),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, ({0: "n"}, {2: "n"})], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", BATCH_LAST)
def test_products_whose_batch_comes_last(name, dynamic):
    dynamic = None if name == "two_axes" else dynamic
    args = torch.randint(-9, 9, (16, 5, 3)).float(), torch.randint(-9, 9, (32, 3, 16)).float()  # sums are exact
    same(BATCH_LAST[name], args, dynamic=dynamic)
