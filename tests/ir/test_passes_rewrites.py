"""The rewrites one by one: the graph computes the same to the bit, and as much is gone as should be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from ir.dims import symbol
from ir.passes.canonicalize_factories import canonicalize_factories
from ir.passes.checks import drop_checks
from ir.passes.collapse_casts import collapse_casts, lossless
from ir.passes.collapse_views import collapse_views
from ir.passes.cse import cse
from ir.passes.fold_constants import fold_constants
from ir.passes.group_heads import group_heads
from ir.passes.simplify_arithmetic import simplify_arithmetic
from ir.passes.unread_draws import drop_unread_draws
from ir.types import DType, TensorType
from tests.ir.interpret import run

X = torch.randn(2, 3, 4)
NUMBERS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def rewritten(rewrite, model, *inputs):
    graph = ir.capture(model, inputs)
    made = ir.check(rewrite(graph))
    for a, b in zip(run(graph, *inputs), run(made, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return [n.op.partition("::")[2] for n in made.nodes], made


# -- constants ---------------------------------------------------------------------------------------------------------


class Positions(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 3))
        self.register_buffer("big", torch.randn(200, 200))

    def forward(self, x):
        steps = torch.arange(3).view(1, 3, 1) * 2.0
        return x @ (self.weight * 2).t() + steps, self.big.t().contiguous() + 1, x * torch.ones(3, 3)


def test_what_depends_on_weights_alone_is_folded():
    ops, made = rewritten(fold_constants, Positions(), torch.randn(2, 3, 3))
    assert ops == ["matmul", "add", "mul"]
    assert {w.type.shape for w in made.weights.values()} == {(3, 4), (1, 3, 1), (200, 200), (3, 3)}


def test_a_tensor_made_like_another_does_not_need_it():
    def fn(x):
        mask = x.new_zeros(3, 4)
        mask[1:, 2:] = 7
        return mask + x, torch.full_like(x, 2.5, dtype=torch.float64), torch.ones_like(x).long(), x.new_full((2,), 3)

    ops, made = rewritten(lambda g: fold_constants(canonicalize_factories(g)), fn, X)
    assert ops == ["add"] and len(made.weights) == 4
    graph = ir.capture(lambda x: torch.ones_like(x) + 1, (X,), dynamic_shapes=({0: "n"},))
    assert [n.op for n in canonicalize_factories(graph).nodes] == ["aten::ones_like", "aten::add"]


def test_what_has_no_element_needs_no_operand():
    def fn(x):
        return x[:, 9:] @ x[0].T, x + 1

    ops, made = rewritten(lambda g: fold_constants(canonicalize_factories(g)), fn, X)
    assert "matmul" not in ops and [w.type.shape for w in made.weights.values()] == [(2, 0, 3)]


def test_a_constant_larger_than_what_it_is_made_of_is_not_folded():
    def fn(x):
        return x + torch.ones(300, 300), torch.ones(300, 300)[0]

    ops, made = rewritten(fold_constants, fn, torch.randn(300))
    assert ops == ["ones", "add"] and [w.type.shape for w in made.weights.values()] == [(300,)]


def test_a_weight_that_is_read_otherwise_too_is_not_kept_twice():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(300, 300))

        def forward(self, n):
            return self.table[n] @ (self.table * 2).t()

    assert "mul" in rewritten(fold_constants, Tied(), torch.tensor([1, 2]))[0]


def test_random_numbers_and_other_peoples_ops_are_not_folded():
    graph = ir.capture(lambda x: x + torch.rand(4), (X,))
    assert fold_constants(graph) is graph

    @ir.custom_op("test_rewrites::dequantize")
    def dequantize(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(4))

        def forward(self, x):
            return x * dequantize(self.weight)

    assert next(n.op for n in fold_constants(ir.capture(Quantised(), (X,))).nodes) == "test_rewrites::dequantize"


def test_results_and_mutated_buffers_keep_their_values():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count[0], torch.full((2,), 3.0) * 2

    ops, made = rewritten(fold_constants, Model(), X)
    assert ops == ["mul"] and list(made.updates) == ["count"]


def test_bfloat16_weights():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4).bfloat16())

        def forward(self, x):
            return x * (self.weight * 2).float()

    assert rewritten(fold_constants, Model(), X)[0] == ["mul"]


# -- equal nodes -------------------------------------------------------------------------------------------------------


def test_equal_nodes_are_merged():
    ops, _ = rewritten(cse, lambda x: (x.exp() + 1) * (x.exp() + 1) + (x.exp() + 1.0), X)
    assert ops == ["exp", "add", "mul", "add", "add"]


def test_arguments_that_are_equal_but_not_the_same_are_told_apart():
    ops, _ = rewritten(cse, lambda x: torch.stack([x * 0.0, x * -0.0]), X)
    assert ops.count("mul") == 2


def test_results_keep_their_names_and_random_nodes_stay():
    assert rewritten(cse, lambda x: (x.exp(), x.exp()), X)[0] == ["exp", "exp"]
    graph = ir.capture(lambda x: torch.rand_like(x) + torch.rand_like(x), (X,))
    assert cse(graph) is graph


def test_draws_that_nothing_reads_go_with_what_was_made_for_them():
    def fn(x):
        torch.nn.init.uniform_(torch.empty(3, 4))
        return x + 1

    graph = ir.capture(fn, (X,))
    made = ir.check(drop_unread_draws(graph))
    assert graph.random and not made.random and [n.op for n in made.nodes] == ["aten::add"]


def test_draws_that_are_read_or_returned_stay():
    for fn in (lambda x: x + torch.rand(4), lambda x: (x, torch.rand(4))):
        graph = ir.capture(fn, (X,))
        assert drop_unread_draws(graph) is graph and graph.random


def test_sizes_found_at_run_time_are_merged_only_where_they_are_provably_equal():
    graph = drop_checks(ir.capture(lambda x: torch.nonzero(x).sum() + torch.nonzero(x).sum(), (X,)))
    first, _, second, *_ = graph.nodes
    assert len(ir.check(cse(graph)).nodes) == 3
    other = TensorType(DType.int64, (symbol("u9"), 3))
    object.__setattr__(second.outputs[0], "type", other)  # torch names both u0, since it has seen the same search
    assert first.outputs[0].type != other and cse(graph) is graph


# -- neutral numbers ---------------------------------------------------------------------------------------------------

ODD = torch.tensor([-0.0, 0.0, torch.inf, -torch.inf, 1e-42, 1.5])


@pytest.mark.parametrize(
    ("fn", "x", "left"),
    [
        (lambda x: ((x - 0) * 1 / 1 + -0.0).neg(), ODD, ["neg"]),
        (lambda x: torch.subtract(x, 0).multiply(True).divide(1).true_divide(1.0).neg(), ODD, ["neg"]),
        (lambda x: torch.subtract(x, -0.0).neg(), ODD, ["subtract", "neg"]),
        (lambda x: (x + 0).neg(), ODD, ["add", "neg"]),  # -0.0 + 0 is +0.0
        (lambda x: (0 + x.neg()).exp() + (x * 2 + 0.0).sqrt(), ODD, ["neg", "add", "exp", "mul", "add", "sqrt", "add"]),
        (lambda x: (x - -0.0).neg(), ODD, ["sub", "neg"]),
        (lambda x: (x + 0).neg(), ODD.nan_to_num().int(), ["neg"]),
        (lambda x: (x / 1).neg(), ODD.nan_to_num().int(), ["div", "neg"]),  # makes floats
        (lambda x: torch.div(x, 1, rounding_mode="floor").neg(), ODD, ["div", "neg"]),
        (lambda x: torch.div(x, 1, rounding_mode="trunc").neg(), ODD.nan_to_num().int(), ["neg"]),
        (lambda x: (x // 1).neg(), ODD.nan_to_num().int(), ["neg"]),
        (lambda x: (x // 1).neg(), ODD, ["floor_divide", "neg"]),
        (lambda x: x.exp() - 0, ODD, ["exp", "sub"]),  # a result keeps its node
        (lambda x: torch.add(x, 0, alpha=-1).neg(), ODD, ["neg"]),  # 0 * -1 is -0.0
        (lambda x: torch.sub(x, 0, alpha=-2).neg(), ODD, ["sub", "neg"]),  # -0.0 - -0 is +0.0
        (lambda x: torch.sub(x, 0.0, alpha=2).neg(), ODD, ["neg"]),
        (lambda x: torch.add(x, 3, alpha=0).neg(), ODD.nan_to_num().int(), ["neg"]),
        (lambda x: (x * torch.ones_like(x)).neg(), ODD, ["ones_like", "neg"]),
        (lambda x: (x + torch.zeros(6)).neg(), ODD, ["zeros", "add", "neg"]),
        (lambda x: (x - torch.full((), 0.0)).neg(), ODD, ["full", "neg"]),
    ],
)
def test_neutral_numbers(fn, x, left):
    ops, made = rewritten(simplify_arithmetic, fn, x)
    assert ops == left
    (result,) = run(made, x)
    assert torch.equal(result.signbit(), fn(x).signbit())  # equal takes -0.0 for 0.0


class Branches(nn.Module):
    """As models that are trained in branches are written: the sum begins with a number."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(3, 3, 1) for _ in range(2))
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(4, 4)

    def forward(self, x):
        total = 0 + self.norm(x)
        for conv in self.convs:
            total = total + (0 + conv(x))
        return self.linear(total) + 0.0 + x


def test_a_sum_of_products_has_no_sign_of_zero_to_keep():
    ops, _ = rewritten(simplify_arithmetic, Branches().eval(), X)
    assert ops == ["batch_norm", "conv1d", "add", "conv1d", "add", "linear", "add"]


# -- casts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "left"),
    [
        (lambda x: x.double().float() + 1, 0),
        (lambda x: x.double().half() + 1, 1),
        (lambda x: x.half().float() + 1, 2),  # the first rounds
        (lambda x: x.half().double().float() + 1, 2),
        (lambda x: x.int().long().double() + 1, 2),
        (lambda x: x.long().int().long() + 1, 3),
        (lambda x: x.double().float(), 1),  # a result keeps its node
        (lambda x: (x.double() + 1, x.double().float() * 2), 1),
    ],
)
def test_casts(fn, left):
    ops, _ = rewritten(collapse_casts, fn, torch.randn(40) * 1e5)
    assert sum(op in ("cast", "to", "_to_copy") for op in ops) == left


def test_lossless_is_what_torch_does():
    names = [DType[n] for n in NUMBERS]
    for a in names:
        for b in names:
            t, u = getattr(torch, a.name), getattr(torch, b.name)
            if t is torch.bool:
                values = torch.tensor([True, False])
            elif t.is_floating_point:
                info = torch.finfo(t)
                values = torch.tensor([info.max, info.min, info.tiny, 1 + info.eps, 0.0, torch.inf], dtype=t)
            else:
                values = torch.tensor([torch.iinfo(t).max, torch.iinfo(t).max - 1, torch.iinfo(t).min, 0], dtype=t)
            if lossless(a, b):
                assert torch.equal(values.to(u).to(t), values), (a, b)


# -- views -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "left"),
    [
        (lambda x: x.view(6, 4).view(3, 8) + 1, 1),
        (lambda x: x.view(6, 4).view(2, 3, 4) + 1, 0),
        (lambda x: x.unsqueeze(0).unsqueeze(-1).squeeze(0) + 1, 1),
        (lambda x: x[:, None, None, :, None] + 1, 1),
        (lambda x: x.transpose(0, 1).permute(2, 0, 1) + 1, 1),
        (lambda x: x.transpose(0, 1).transpose(1, 0) + 1, 0),
        (lambda x: x.mT.mT.permute(0, 1, 2) + 1, 0),
        (lambda x: x.mT.reshape(2, 12).reshape(24) + 1, 2),
        (lambda x: x.flatten().unflatten(0, (4, 6)).t().t() * 2, 1),
        (lambda x: (x.view(6, 4) + 1, x.view(6, 4).view(24) * 2), 2),
        (lambda x: x.view(torch.int32).view(6, 4) + 1, 2),
        (lambda x: x.view(6, 4).view(24), 1),
    ],
)
def test_views(fn, left):
    graph = ir.capture(fn, (X,))
    views = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "permute", "transpose", "t", "mT"}
    ops, _ = rewritten(lambda g: collapse_views(cse(g)), fn, X)
    assert sum(op in views for op in ops) == left, graph


def test_views_of_dynamic_sizes_are_collapsed_where_the_sizes_are_provably_equal():
    def fn(x):
        return x.flatten().view(x.shape[0], x.shape[1], 4) + 1, x.view(-1, 4).view(x.shape[1], x.shape[0], 4) * 2

    graph = ir.capture(fn, (X,), dynamic_shapes=({0: "a", 1: "b"},))
    assert [n.op.partition("::")[2] for n in ir.check(collapse_views(graph)).nodes] == ["add", "reshape", "mul"]


# -- attention ---------------------------------------------------------------------------------------------------------


def written_out(x, times):
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


@pytest.mark.parametrize("repeated", [written_out, lambda x, times: x.repeat_interleave(times, 1)])
def test_repeated_heads_are_shared(repeated):
    def model(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2))

    given = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    ops, made = rewritten(group_heads, model, *given)
    assert ops == ["scaled_dot_product_attention"] and made.nodes[0].args["enable_gqa"]


def test_heads_in_another_order_stay():
    def model(q, k):
        tiled = k.repeat(1, 2, 1, 1)
        wide = k[:, None].expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8)
        attention = nn.functional.scaled_dot_product_attention
        return attention(q, tiled, tiled), attention(q, wide, wide), attention(q, written_out(k, 2), tiled)

    given = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    graph = ir.capture(model, given)
    assert group_heads(graph) is graph
