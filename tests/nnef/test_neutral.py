"""What tract leaves out as neutral although torch's result has another size or sign by it; ops that read by place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan
from torch.export import Dim

import ir
from nnef_backend.building import exact
from tests.nnef.test_numbers import inf, nan, same

pytestmark = pytest.mark.filterwarnings("ignore")


def column(x, value, dtype=None):
    return torch.full((x.shape[0], 1), value, dtype=dtype or x.dtype)


WIDENED = {
    "ones": lambda x: (x * column(x, 1), column(x, 1) * x, x / column(x, 1)),
    "zeros": lambda x: x * column(x, 0),
    "powers": lambda x: (x ** column(x, 1), x ** column(x, 2), x ** column(x, 0)),
    "choice": lambda x: (torch.where(column(x, True, torch.bool), x, 0), torch.where(x > 0, x, column(x, 0))),
    "chosen": lambda x: torch.where(column(x, False, torch.bool), x, column(x, 0)[:1]) * -1,
    "number": lambda x: (torch.where(torch.tensor(False), x, 0) * -1, torch.where(torch.tensor(True), 3, x) * 1),
    "outer": lambda x: (torch.outer(torch.zeros_like(x), torch.zeros_like(x)), torch.zeros_like(x)[:, None] * x),
    "truth": lambda x: (torch.logical_and(x > 0, column(x, True, torch.bool)), (x > 0) | column(x, False, torch.bool)),
}


FUSED = {"add": torch.add, "sub": torch.sub, "maximum": torch.maximum, "minimum": torch.minimum, "mul": torch.mul}


@pytest.mark.parametrize("name", FUSED)
def test_what_one_number_widens_behind_a_convolution_keeps_its_size(name):
    conv = torch.nn.Conv2d(4, 2, 3, stride=2, padding=1)
    same(lambda x: FUSED[name](conv(x), torch.ones(4)), (torch.randn(2, 4, 3, 1),))
    same(lambda x: FUSED[name](x @ x[:, :1], torch.ones(4)), (torch.randn(4, 4),))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64), ids=str)
@pytest.mark.parametrize("name", WIDENED)
def test_neutral_operands_keep_their_sizes(name, dtype):
    x = torch.tensor([-3, -1, 0, 5], dtype=dtype)
    same(WIDENED[name], (x,))
    same(WIDENED[name], (x,), (torch.cat([x, x]),), dynamic=({0: "T"},))


def test_numbers_shifted_out_by_a_constant_keep_their_sizes():
    x = torch.tensor([-3, -1, 0, 5], dtype=torch.int8)
    same(lambda x: torch.bitwise_left_shift(x, -2) * -1, (x,), (torch.cat([x, x]),), dynamic=({0: "T"},))


def test_a_norm_that_adds_nothing_makes_the_zero_positive():
    x = torch.tensor([-0.0, 0.0, -1.0, 2.0]).view(1, 1, 2, 2)
    for affine in (True, False):
        norm = torch.nn.BatchNorm2d(1, affine=affine).eval()
        found, wanted = ir.export(norm, (x,), target="nnef")(x), norm(x)
        assert torch.equal(found.signbit(), wanted.signbit())
        assert not wanted[0, 0, 0].signbit().any()


class ConstantsOfZeros(torch.nn.Module):
    """Weights and constants that differ by signs of zeros alone, beside other numbers and in other element types."""

    def __init__(self, dtype):
        super().__init__()
        contents = ([0.0, -0.0, 2.0], [-0.0, 0.0, 2.0], [-0.0, -0.0, 2.0], [-0.0, 0.0, 2.0])
        self.held = torch.nn.ParameterList(torch.tensor(c, dtype=dtype) for c in contents)
        self.register_buffer("nothing", torch.tensor(0))

    def forward(self, x):
        none = torch.div(self.nothing, -1, rounding_mode="trunc").ceil()
        filled = [torch.full_like(x, z) for z in (0.0, -0.0)]
        return (
            *(x / h for h in [*self.held, *filled]),
            none / -2,
            x / none,
            *(f(x, z) for z in (0.0, -0.0) for f in (torch.copysign, lambda x, z: F.pad(x, (1, 1), value=z))),
        )


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_constants_that_differ_by_signs_of_zeros_alone(dtype):
    model, x = ConstantsOfZeros(dtype), torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    for found, wanted in zip(ir.export(model, (x,), target="nnef")(x), model(x), strict=True):
        assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())


class LoopOverZeros(torch.nn.Module):
    """Constants of -0.0 that a loop reads first, and the document after it."""

    def forward(self, x):
        def step(carried, row):
            return carried / -0.0 + row, (carried + row) / torch.full((), -0.0)

        carried, made = scan(step, torch.zeros(2), x[:, None].expand(2, 2))
        return carried, made, x / -0.0, 1 / (x * -0.0), x / torch.full((2,), -0.0)


def test_a_loop_and_what_is_behind_it_read_one_constant():
    same(LoopOverZeros(), (torch.tensor([1.0, 2.0]),), (torch.tensor([-1.0, 3.0]),))


# Zeros whose sign counts, of each op that is written as a sum.
SUMS = {
    "add": lambda x: x + 0,
    "batch_norm": lambda x: F.batch_norm(x.view(1, 4, 1), torch.zeros(4), torch.ones(4)),
    "_native_batch_norm_legit_no_training": lambda x: torch.ops.aten._native_batch_norm_legit_no_training(
        x.view(1, 4, 1), None, None, torch.zeros(4), torch.ones(4), 0.1, 1e-5
    )[0],
}


def signs(fn):
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0])
    return [t.signbit().flatten().tolist() for t in (ir.export(fn, (x,), target="nnef")(x), fn(x))]


def test_each_op_that_is_a_sum_is_tried():
    assert {op.removeprefix("aten::") for op in exact._SUMS} < SUMS.keys()


@pytest.mark.parametrize("op", SUMS)
def test_the_sign_of_a_sum_would_be_lost_without_its_entry(op, monkeypatch):
    found, wanted = signs(SUMS[op])
    assert found == wanted
    monkeypatch.setattr(exact, "_SUMS", exact._SUMS - {f"aten::{op}"})
    monkeypatch.setattr(exact, "is_pointwise", lambda node: False)
    found, wanted = signs(SUMS[op])
    assert found != wanted


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_sums_with_zero_make_the_zero_positive(dtype):
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0], dtype=dtype)
    zeros = torch.zeros(4, dtype=dtype)
    same(lambda x: (1 / (x + 0), 1 / (0 + x), 1 / (x - 0), 1 / (0 - x), 1 / (x + -0.0), 1 / (x - -0.0)), (x,))
    same(lambda x: (1 / (x + zeros), 1 / (zeros - x), 1 / (x + torch.zeros_like(x)), 1 / -torch.zeros_like(x)), (x,))
    same(lambda x: (1 / (torch.zeros_like(x) * -1), 1 / torch.rsub(-torch.zeros(4, dtype=x.dtype), x)), (x,))


def test_sums_with_one_number_all_over_that_is_no_zero():
    def sums(x, y):
        ones = torch.ones_like(y)
        return x - ones, ones - x, x + ones, 1 / -(0 * ones.float())

    y = torch.tensor([[2], [0], [5]], dtype=torch.uint8)
    same(sums, (torch.tensor(-2.25), y), (torch.tensor(3.5), y[:2]), dynamic=(None, {0: "B"}))


ABSORBED = {
    "number": lambda x: x * 0,
    "buffer": lambda x: x & torch.tensor([0, 0], dtype=x.dtype),
    "like": lambda x: x * torch.zeros_like(x, dtype=torch.uint8),
    "and": lambda x: torch.logical_and(x, torch.tensor(0)),
    "or": lambda x: torch.logical_or(x, torch.ones_like(x)),
}


@pytest.mark.parametrize("dtype", (torch.int64, torch.int16, torch.bool), ids=str)
@pytest.mark.parametrize("name", ABSORBED)
def test_what_one_operand_decides_is_added_up(name, dtype):
    x = torch.tensor([[[1, -2], [0, 3], [4, 5]]] * 4).to(dtype)
    for count in (lambda x: x.sum(0), torch.sum, lambda x: torch.count_nonzero(x, 2)):
        same(lambda x: count(ABSORBED[name](x)), (x,))  # noqa: B023
        same(lambda x: count(ABSORBED[name](x)), (x,), (x[:2],), dynamic=({0: "B"},))  # noqa: B023


CHOSEN = {
    "all of it": lambda y: torch.select_scatter(y, torch.zeros_like(y.select(-2, 0)), -2, 0),
    "a part": lambda y: torch.cat([torch.zeros_like(y), y])[: y.shape[0]],
    "one of two": lambda y: torch.stack([torch.zeros_like(y), y])[0],
    "in pieces": lambda y: y.slice_scatter(torch.zeros_like(y[:1]), 0, 0, 1).slice_scatter(
        torch.zeros_like(y[1:]), 0, 1
    ),
    "the only place": lambda y: y.cummax(1).indices,
}


@pytest.mark.parametrize("name", CHOSEN)
def test_zeros_that_a_choice_or_a_slice_gives_back_keep_nan(name):
    def model(x):
        y = torch.log(x)
        return CHOSEN[name](y) * y

    x = torch.tensor([[[-1.5, inf, 0.0]], [[2.0, nan, 1.0]], [[0.25, -0.0, 3.0]]])
    same(model, (x,))


def test_quotients_of_constants():
    same(lambda x: torch.floor_divide(F.hardswish(x.new_zeros(4, 2)), x.new_zeros(4, 2)), (torch.ones(3),))


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
def test_resizing_reads_no_more_than_the_neighbours(mode):
    x = torch.randn(1, 2, 6, 5, generator=torch.Generator().manual_seed(0))
    x[0, 0, 2, 2], x[0, 1, 4, 1], x[0, 1, 0, 0] = inf, nan, -inf
    for size in ((7, 9), (3, 2)):
        for corners in (True, False):
            same(lambda x: F.interpolate(x, size=size, mode=mode, align_corners=corners), (x.double(),))  # noqa: B023


@pytest.mark.parametrize("right", (True, False))
def test_edges_out_of_order_are_searched_as_torch_does(right):
    x = torch.tensor([0.0, -2, -1.75, 0, nan, inf, 5, 1, -9])
    edges = torch.tensor([0.0, -2, -1.75, 0, nan, 3, 1])
    same(lambda x: (torch.bucketize(x, edges, right=right), torch.bucketize(1.5, x, right=right)), (x,))
    same(lambda x: torch.bucketize(x, x, right=right), (x,), (x[:4],), dynamic=({0: "T"},))
    rows = x.reshape(3, 3)
    dynamic = ({0: "B", 1: Dim("T", max=100)}, {0: "B"})
    same(lambda s, x: torch.searchsorted(s, x, right=right), (rows, rows), (rows[:, :2], rows), dynamic=dynamic)
    same(lambda s, x: torch.searchsorted(s, x, right=right), (x, rows))
    same(lambda s, x: torch.searchsorted(s[:0], x, right=right), (x, rows))
    last = lambda x: torch.bucketize(1e-3, x.tensor_split((1, 2))[2], right=right)  # noqa: E731
    same(last, (x[:3],), (x[:2],), dynamic=({0: "T"},))


def test_medians_of_nothing():
    for dtype in (torch.float32, torch.int64, torch.int8):
        same(lambda x: torch.median(x[:0]), (torch.ones(3, dtype=dtype),))


def test_powers_of_two_of_whole_numbers():
    same(lambda x: (torch.exp2(x), torch.special.exp2(x.sum())), (torch.tensor([1, 2, 3]),))


def test_gelu_far_below_zero():
    x = torch.tensor([inf, -inf, -1e30, -20.0, -5.6, -3.0, -0.0, 2.0, 1e30, nan])
    same(lambda x: F.gelu(x, approximate="tanh"), (x,), (x.double().float(),))
    same(lambda x: 1 / F.gelu(x, approximate="tanh"), (x[2:4],))


def test_activations_of_halves_are_computed_in_float32():
    x = torch.tensor([-17.0, -13.46, -11.5, -1.0, -1e-4, 2.0, 17.0, 3e4, inf, nan], dtype=torch.float16)
    same(lambda x: (torch.logit(x.sigmoid()), F.silu(x), F.glu(torch.cat([x, x])), F.elu(x), F.selu(x)), (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_logarithm_of_a_sigmoid_that_is_1_is_a_positive_zero(dtype):
    same(lambda x: (F.logsigmoid(x), 1 / F.logsigmoid(x)), (torch.tensor([inf, 1e3, 50, 3, -inf, nan], dtype=dtype),))


def test_a_squeezed_size_that_was_one_is_asked_for():
    program = ir.export(lambda x: x[1::2].squeeze(0), (torch.ones(3, 2),), target="nnef", dynamic_shapes=({0: "B"},))
    assert program(torch.ones(3, 2)).shape == (2,)


@ir.custom_op("neutraltests::positions")
def positions(x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(3)
    return (torch.arange(4) > (x[:, None] * at).sum(1)[:, None]).sum(1).clamp(max=3) + x[at]


def test_what_two_bodies_compute_alike_is_written_once():
    """tract loses nodes that are equal only once it has merged equal constants."""
    x = torch.tensor([0, 2, -1])
    program = ir.export(lambda x: (positions(x), positions(x) * positions(x).abs()), (x,), target="nnef", verify=True)
    labels = [o.attributes["label"] for o in program.artifact.operations if o.name == "variable"]
    assert sorted(labels) == ["arange", "arange_1"]


class Heads(torch.nn.Module):
    """A convolution for two levels, each with a batch norm, as in detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 2, 3, padding=1)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(2) for _ in range(2))
        for i, norm in enumerate(self.norms):
            torch.nn.init.constant_(norm.running_mean, 0.5 + i)
            torch.nn.init.constant_(norm.running_var, 0.25 + i)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *(norm(self.conv(x)) for norm in self.norms), self.conv(x)


def test_a_weight_that_is_stored_with_two_norms_has_two_files():
    program = ir.export(Heads().eval(), (torch.randn(1, 2, 4, 4),), target="nnef", verify=True)
    labels = [o.attributes["label"] for o in program.artifact.operations if o.name == "variable"]
    assert "conv.weight" in labels and len(labels) == len({*labels}) == len(program.artifact.tensors) == 6


def test_integers_that_a_slice_gives_back_are_the_constant():
    """tract finds it, and fails on a product of what is chosen by it all over."""

    def model(x):
        zeros = torch.cat([x * 0, x], -1)[:, :, :2]
        return torch.where(torch.ones_like(x) > zeros, -1.5, torch.ones_like(x)) @ torch.ones(2, 3)

    x = torch.ones(3, 5, 2, dtype=torch.uint8)
    program = ir.export(model, (x,), target="nnef", dynamic_shapes=({0: "B"},))
    for rows in (3, 1, 4):
        assert torch.equal(program(x[:1].repeat(rows, 1, 1)), model(x[:1].repeat(rows, 1, 1)))


def test_a_value_in_a_loop_is_no_constant_of_its_name():
    """`where` is a constant outside of the loop of `gcd`, which has a `where` of its own."""

    def model(x, y):
        where = torch.where(torch.tensor([True, False]), torch.tensor([0, 1]), torch.tensor([2, 0]))
        return x * where, torch.gcd(x, y), x + where

    same(model, (torch.tensor([[12, 9], [4, 10]]), torch.tensor([[8, 6], [6, 4]])))


NOTHING = {
    "batch mean": lambda x: F.kl_div(x[:, 4:], x[:, 4:], reduction="batchmean"),
    "sum": lambda x: x[:, 4:].sum() / x.shape[0],
    "double": lambda x: x[:, 4:].double().sum() / x.shape[0],
    "zeros": lambda x: torch.zeros((), dtype=x.dtype) / x.shape[0],
    "reciprocal": lambda x: torch.zeros((), dtype=x.dtype) * (1 / torch.full((), x.shape[0])),
    "logarithm": lambda x: x[:, 4:].sum() * torch.log(torch.full((), x.shape[0], dtype=x.dtype)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_zero_of_constants_divided_by_a_size_of_zero_is_nan(name):
    program = ir.export(NOTHING[name], (torch.ones(3, 4),), target="nnef", dynamic_shapes=({0: "B"},))
    assert program(torch.ones(0, 4)).isnan()
    assert program(torch.ones(5, 4)) == 0


def test_a_choice_of_what_is_smaller_all_over_keeps_its_size():
    """tract takes it for what is chosen, and loses the size of a product of it."""

    def product(x):
        chosen = torch.where(torch.zeros(2, 3) > 1, torch.zeros(2, 3), torch.count_nonzero(x))
        return chosen @ chosen.T

    x = torch.tensor([1, 0, 2])
    assert torch.equal(ir.export(product, (x,), target="nnef")(x), product(x))


def test_a_choice_of_a_repeated_column_by_a_buffer_keeps_its_size():
    """The condition has an axis more than its buffer, which changes nothing of what it chooses."""
    row = torch.zeros(3)

    def product(y):
        chosen = torch.where(row > 2.0, row, y)
        return chosen @ chosen.mT

    y = torch.tensor([[-1.0], [0.0], [2.0], [-1.0]])
    assert torch.equal(ir.export(product, (y,), target="nnef")(y), product(y))


def test_a_choice_by_a_number_that_tract_computes_keeps_its_size():
    """A remainder of a division by a buffer of zero is nan all over, and a product of it has the rows of the other."""
    zero = torch.tensor(0)

    def product(y):
        rest = torch.remainder(y, zero).unsqueeze(-1)
        return rest @ rest.mT

    same(product, (torch.randn(4, 2),), (torch.randn(3, 2),), dynamic=({0: "T"},))


def test_the_sign_of_a_zero_that_a_product_is_added_to():
    """tract leaves out what adds nothing, and 0.0 + -0.0 is 0.0."""
    zero = torch.zeros((), dtype=torch.float64)

    def inverse(x):
        return torch.addcmul(zero, x, zero).reciprocal(), torch.addcdiv(zero, zero, x).reciprocal()

    same(inverse, (torch.tensor(-2.25),))


def test_zeros_that_are_written_are_not_those_of_a_guard():
    """tract merges equal constants, and -0.0, which a guard adds, is equal to 0.0."""

    def written(x):
        y = x.half()
        y.view(-1)[:2] = 0.5
        y.as_strided((2,), (1,)).fill_(0.0)
        return y, torch.atan2(y, y)

    x = torch.tensor([[0, 2, 0], [1, 0, 3]], dtype=torch.uint8)
    same(written, (x,), (x[:1],), dynamic=({0: "n"},))


def test_squares_beside_bits_that_are_zero():
    for x in (torch.tensor(-3), torch.tensor([2, -5])):
        same(lambda x: (torch.kron(x, x ^ 0), (x | torch.zeros((), dtype=torch.int64)) * x), (x,))
