"""A fixed slice of the random programs, and that the machine notices what it is there for."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ir
from tests.fuzz.builder import Builder
from tests.fuzz.check import WAYS, check
from tests.fuzz.explained import explained
from tests.fuzz.generate import generate
from tests.fuzz.program import Input, Program
from tests.fuzz.rounding import close
from tests.fuzz.shrink import reduced
from tests.fuzz.undefined import _in_disorder, _zeros_of_both_signs
from tests.fuzz.worker import Worker

X = Input("x", "float32", ("B", 4))


@settings(
    derandomize=True, max_examples=40, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.randoms(use_true_random=False), st.sampled_from(WAYS))
def test_random_programs_are_equal_or_refused(random, way):
    program = generate(random)
    for outcome in check(program, way=way):
        assert outcome.kind in ("equal", "refused", "specialized", "invalid", "banned"), (
            f"{outcome}\n{program.reproducer(outcome.target, outcome.sizes or {})}"
        )


def outcomes(program: Program, handler: object) -> list[str]:
    """The kinds of outcome where this is the handler of relu."""
    with pytest.MonkeyPatch.context() as patch:
        export = ir.export
        patch.setattr(ir, "export", lambda g, target: export(g, target=target, handlers={"aten::relu": handler}))
        return [o.kind for o in check(program, ["eager"])]


RELU = Program((X,), (), ("v1 = torch.relu(x)", "v2 = v1 + 1"), "v2")


def test_a_wrong_number_is_noticed():
    assert outcomes(RELU, lambda h, self: h.emit(torch.abs, self)) == ["wrong"]


def test_a_size_at_which_torch_s_program_is_the_model_by_chance(monkeypatch):
    """The trace has four rows where the model has two at size 1, and few numbers lie between."""
    steps = "v1 = x[-2:]", "v2 = torch.cat([v1, v1], 0)", "v3 = v2 < v2.shape[0]"
    program = Program((Input("x", "int8", ("B", 3)),), (), steps, "v3")
    assert [o.kind for o in check(program, ["eager"], "module")] == ["specialized"]
    monkeypatch.setattr("tests.fuzz.check.DRAWS", 0)
    assert [o.kind for o in check(program, ["eager"], "module")] == ["refused"]


def test_a_foreign_error_is_told_from_a_refusal():
    def refuse(h, self):
        raise ir.RefusedError("not today")

    def fail(h, self):
        raise KeyError("oops")

    assert outcomes(RELU, fail) == ["foreign"]
    assert outcomes(RELU, refuse) == ["refused"]


def test_what_torch_refuses_does_not_count():
    assert [o.kind for o in check(Program((X,), (), ("v1 = x @ x",), "v1"))] == ["invalid"]


def test_a_lost_write_is_noticed(monkeypatch):
    program = Program((X,), ('self.register_buffer("b0", torch.zeros(3))',), ("b0 = self.b0", "b0.add_(1)"), "b0")
    run = ir.Exported.run
    assert [o.kind for o in check(program, ["eager"])] == ["equal"]
    monkeypatch.setattr(ir.Exported, "run", lambda self, *args: (run(self, *args)[0], {}))
    assert [o.detail for o in check(program, ["eager"])] == ["a write to b0 is lost at {'B': 3}"]


def test_no_number_is_close_to_infinity():
    inf = torch.tensor(math.inf)
    assert close(inf, inf) and not close(torch.tensor(7.0), inf) and not close(inf, torch.tensor(7.0))
    assert not close(-inf, inf)


def test_rounding_explains_a_floor_and_not_a_bug():
    class Floor(torch.nn.Module):
        def forward(self, x):
            return torch.floor(x * 0.1 * 10)

    x = torch.tensor([3.0, 5.0, 7.25])
    module = torch.export.export(Floor(), (x,)).module()
    assert explained(module, ["x"], [x], 0, torch.tensor([2.0, 5.0, 7.0]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([3.0, 5.0, 8.0]))


def test_an_op_that_torch_composes_of_others_rounds_within():
    class Similar(torch.nn.Module):
        def forward(self, x):
            return torch.ceil(torch.nn.functional.cosine_similarity(x, x, dim=-1))

    x = torch.tensor([[1.0, -1.75, 0.75]])
    module = torch.export.export(Similar(), (x,)).module()
    assert module(x) == 1
    assert explained(module, ["x"], [x], 0, torch.tensor([2.0]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([-1.0]))


def test_a_product_that_overflows_on_the_way_need_not_overflow_elsewhere():
    class Activated(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.hardswish(x)

    x = torch.tensor([torch.finfo(torch.float32).max, 4.0])
    module = torch.export.export(Activated(), (x,)).module()
    assert module(x)[0] == math.inf
    assert explained(module, ["x"], [x], 0, x)
    assert not explained(module, ["x"], [x], 0, torch.tensor([math.inf, math.inf]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([7.0, 4.0]))


def test_a_max_pool_that_skips_nan_is_explained_where_the_runtime_is_known_to():
    class Pooled(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.max_pool1d(x, 2)

    x = torch.tensor([[[1.0, math.nan, 2.0, 3.0]]])
    module = torch.export.export(Pooled(), (x,)).module()
    skipped, wrong = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[1.0, 2.0]]])
    assert explained(module, ["x"], [x], 0, skipped, pools_skip_nan=True)
    assert not explained(module, ["x"], [x], 0, skipped)
    assert not explained(module, ["x"], [x], 0, wrong, pools_skip_nan=True)


def test_rounding_explains_how_many_numbers_are_not_0():
    class Places(torch.nn.Module):
        def forward(self, x):
            return torch.where(x * 0.1 - 0.3)[0]

    x = torch.tensor([1.0, 3.0])
    module = torch.export.export(Places(), (x,)).module()
    assert all(explained(module, ["x"], [x], 0, torch.tensor(at)) for at in ([0], [0, 1]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([1]))


def test_a_vector_kernel_that_gives_nan_is_held_to_the_scalar_one():
    class Left(torch.nn.Module):
        def forward(self, x):
            return torch.fmod(x, 1e-3)

    x = torch.full((8,), 1.7e308, dtype=torch.float64)
    module = torch.export.export(Left(), (x,)).module()
    assert explained(module, ["x"], [x], 0, torch.fmod(x[0], 1e-3).expand(8))
    assert not explained(module, ["x"], [x], 0, torch.full_like(x, 5e-4))


def test_a_scalar_kernel_that_gives_infinity_is_held_to_the_vector_one():
    class Column(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.gelu(x[:, 0])

    x = torch.full((8, 2), math.inf)
    module = torch.export.export(Column(), (x,)).module()
    expected = module(x)
    assert explained(module, ["x"], [x], 0, torch.nn.functional.gelu(x[:, 0].contiguous()), expected)
    assert not explained(module, ["x"], [x], 0, torch.zeros(8), expected)


def test_halves_that_are_rounded_at_the_end_alone_are_explained():
    class Inverse(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.avg_pool2d(torch.logit(x.sigmoid()), 2)

    x = torch.randint(-16, 17, (2, 6, 8, 8), generator=torch.Generator().manual_seed(0)) * 1.75  # to 0 or 1 in halves
    module = torch.export.export(Inverse(), (x.half(),)).module()
    at_the_end = Inverse()(x).half()
    assert explained(module, ["x"], [x.half()], 0, at_the_end)
    assert not explained(module, ["x"], [x.half()], 0, torch.where(at_the_end.isfinite(), -25.0, at_the_end).half())


def test_a_gate_that_is_0_far_below_its_last_place_is_explained():
    class Truth(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(1, 1)
            for p in self.lstm.parameters():
                torch.nn.init.constant_(p, 1.0)

        def forward(self, x):
            return self.lstm(x)[0].to(torch.bool)

    x = torch.tensor([[[-40.0]], [[2.0]]])
    module = torch.export.export(Truth(), (x,)).module()
    assert explained(module, ["x"], [x], 0, torch.tensor([[[False]], [[True]]]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([[[True]], [[False]]]))


def test_a_silu_that_is_0_far_below_its_last_place_is_explained():
    class Logarithm(torch.nn.Module):
        def forward(self, x):
            return torch.log(torch.nn.functional.silu(x))

    x = torch.tensor([-30.0, -2.0, 2.0])
    module = torch.export.export(Logarithm(), (x,)).module()
    wanted = Logarithm()(x)
    assert wanted.isnan().tolist() == [True, True, False]
    assert explained(module, ["x"], [x], 0, torch.where(x < -18, -math.inf, wanted))
    assert not explained(module, ["x"], [x], 0, torch.where(x < 0, -math.inf, wanted))


def test_a_function_beside_the_smallest_normal_number_loses_digits():
    class Rest(torch.nn.Module):
        def forward(self, x):
            return torch.reciprocal(x - torch.tanh(x))

    x = torch.tensor([2.0**-126, 0.0, 1.0])
    module, wanted = torch.export.export(Rest(), (x,)).module(), Rest()(x)
    assert wanted[:2].tolist() == [math.inf, math.inf]
    assert explained(module, ["x"], [x], 0, torch.tensor([-math.inf, math.inf, wanted[2]]))
    assert not explained(module, ["x"], [x], 0, torch.tensor([-math.inf, -math.inf, wanted[2]]))


def test_the_sign_of_a_polynomial_that_is_0_but_for_rounding_is_free():
    class Logarithm(torch.nn.Module):
        def forward(self, x, n):
            return torch.log(torch.special.chebyshev_polynomial_u(x, n))

    x, n = torch.zeros(3), torch.tensor([9.0, 9.0, 8.0])  # sin(10 acos(0)), which is 0, and 1
    module, wanted = torch.export.export(Logarithm(), (x, n)).module(), Logarithm()(x, n)
    assert not wanted[:2].isfinite().any() or bool((wanted[:2] < -14).all())
    assert explained(module, ["x", "n"], [x, n], 0, torch.tensor([-34.7, -math.inf, wanted[2]]))
    assert not explained(module, ["x", "n"], [x, n], 0, torch.tensor([5.0, -math.inf, wanted[2]]))
    assert not explained(module, ["x", "n"], [x, n], 0, torch.tensor([-34.7, -math.inf, -34.7]))


def test_a_tanh_that_is_1_a_little_early_is_explained():
    class Fraction(torch.nn.Module):
        def forward(self, x):
            return torch.frac(torch.tanh(x))

    x = torch.tensor([18.0, 15.0], dtype=torch.float64)  # 1 - 4e-16 and 1 - 2e-13
    module, wanted = torch.export.export(Fraction(), (x,)).module(), Fraction()(x)
    early = torch.zeros_like(x)
    assert explained(module, ["x"], [x], 0, torch.stack([early[0], wanted[1]]))
    assert not explained(module, ["x"], [x], 0, early)


def test_a_mean_of_a_negative_zero_has_either_sign():
    class Turn(torch.nn.Module):
        def forward(self, x):
            return torch.atan2(torch.var_mean(x, -1, correction=0)[1], torch.tensor(-1.0))

    x = torch.tensor([[-0.0], [3.0]])
    module = torch.export.export(Turn(), (x,)).module()
    wanted = Turn()(x)
    assert all(explained(module, ["x"], [x], 0, torch.stack([sign * wanted[0], wanted[1]])) for sign in (1, -1))
    assert not explained(module, ["x"], [x], 0, torch.stack([wanted[0], -wanted[1]]))


def test_a_pool_may_add_its_window_up_in_any_order():
    """Of 1, 3.4e38 and -3.4e38 the sum is 1 or 0; a pool of 1, 2 and 3 is 2."""

    large = torch.finfo(torch.float32).max
    x = torch.tensor([[[[1.0, large, -large, 3.0, 2.0, 1.0]]]])
    pool = torch.nn.AvgPool2d((1, 3), stride=1, padding=(0, 1))
    module, wanted = torch.export.export(pool, (x,)).module(), pool(x)
    near, wrong = wanted.clone(), wanted.clone()
    near[..., 1], wrong[..., 4] = 0.0 if wanted[..., 1] else 1 / 3, 2.1
    assert explained(module, ["x"], [x], 0, near)
    assert not explained(module, ["x"], [x], 0, wrong)


@pytest.mark.parametrize("ones", [torch.ones(4), torch.ones(4, 2), torch.ones(1, 4, 2)], ids=["mv", "mm", "bmm"])
def test_a_product_of_matrices_may_add_up_in_any_order(ones):
    class Product(torch.nn.Module):
        def forward(self, x):
            return x @ ones

    large = torch.finfo(torch.float32).max
    x = torch.tensor([[large, -large, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    x = x if ones.dim() < 3 else x[None]
    module, wanted = torch.export.export(Product(), (x,)).module(), Product()(x)
    near, wrong = wanted.clone(), wanted.clone()
    near.view(2, -1)[0] = 1.0 - wanted.view(2, -1)[0]
    wrong.view(2, -1)[1] = 11.0
    assert explained(module, ["x"], [x], 0, near)
    assert not explained(module, ["x"], [x], 0, wrong)


def test_a_scale_of_a_large_product_may_come_behind_it():
    class Scores(torch.nn.Module):
        def forward(self, q, k):
            return torch.matmul(q * 0.125, k)

    q, k = torch.tensor([[4.0, 4.0], [1.0, 1.0]]), torch.tensor([[1e38], [1e37]])
    module = torch.export.export(Scores(), (q, k)).module()
    scaled_behind = torch.matmul(q, k) * 0.125  # inf, and 1.375e37
    assert scaled_behind.isinf().tolist() == [[True], [False]]
    assert explained(module, ["q", "k"], [q, k], 0, scaled_behind)
    assert not explained(module, ["q", "k"], [q, k], 0, torch.full_like(scaled_behind, math.inf))


def test_exact_arithmetic_is_held_to_exact_results():
    class Steps(torch.nn.Module):
        def forward(self, x):
            return torch.floor(x * 0.5 + 1)

    x = torch.tensor([4.0])
    module = torch.export.export(Steps(), (x,)).module()
    assert not explained(module, ["x"], [x], 0, torch.tensor([2.0]))


def test_an_op_of_integers_rounds_in_the_type_of_its_result():
    class Wave(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j1(x)

    x = torch.tensor([2**31 - 1, 3], dtype=torch.int32)  # where torch's kernel has lost the phase
    module = torch.export.export(Wave(), (x,)).module()
    exact = torch.special.bessel_j1(x.float().double()).float()
    assert explained(module, ["x"], [x], 0, exact)
    assert not explained(module, ["x"], [x], 0, exact + 1e-3)


def test_weights_of_several_keys_are_rounded_also_where_they_sum_to_one():
    def attention(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, torch.full_like(x, -2.0)).to(torch.int32)

    class Cut(torch.nn.Module):
        def forward(self, x):
            return attention(x)

    for keys, allowed in ((3, True), (1, False)):
        x = torch.arange(keys * 2, dtype=torch.float64).reshape(1, 1, keys, 2)
        module = torch.export.export(Cut(), (x,)).module()
        assert explained(module, ["x"], [x], 0, torch.full_like(attention(x), -1)) is allowed


def test_tolerance_is_that_of_the_element_type():
    one = torch.ones(1, dtype=torch.float64)
    assert not close(one + 1e-7, one).any()
    assert close(one.float() + 1e-6, one.float()).all()


def test_programs_are_made_small():
    steps = ("v1 = x + 1", "v2 = torch.abs(v1)", "n3 = x.shape[0]", "v4 = v2 * 2", "v5 = x.sum()")
    small = reduced(Program((X,), ("self.m0 = torch.nn.ReLU()",), steps, "(v4, v5, n3)"), lambda p: "abs" in p.body)
    assert (len(small.steps), small.members, small.dynamic) == (1, (), set())


def test_a_dead_child_is_an_outcome(tmp_path):
    worker = Worker(["eager"])

    def told(step):
        program = {"inputs": [], "members": [], "steps": ["import os", step], "result": "None"}
        return [o["detail"] for o in worker.ask({"program": program, "way": "program"})]

    try:
        assert told("if torch.compiler.is_exporting(): os._exit(3)") == ["process ended (3)"]
        assert told("os._exit(3)") == ["torch ended (3)"]
    finally:
        worker.close()


def test_a_kernel_of_torch_that_ends_the_process_says_nothing_of_a_target():
    worker = Worker(["onnx"])
    steps = (
        "v1 = torch.full((3,), -(2**31), dtype=torch.int32)",
        "v2 = torch.div(v1, -1 - x[0, 0].long() * 0, rounding_mode='trunc')",
    )
    least = Program((X,), (), steps, "v2")
    try:
        [outcome] = worker.ask({"program": asdict(least), "way": "program"})
    finally:
        worker.close()
    assert outcome["kind"] == "invalid"


def test_a_value_knows_which_of_its_sizes_are_dynamic():
    import random

    builder = Builder([X], random.Random(0))
    assert [builder.fixed("x", 0), builder.fixed("x", 1)] == [False, True]


def test_the_sign_of_a_zero_that_both_zeros_are_equal_to_is_free():
    x = torch.tensor([[0.0, -0.0, 0.0, 1.0], [-0.0, -0.0, 0.0, -0.0]])
    call = (x, 0, torch.zeros_like(x, dtype=torch.int64), x, "amax")
    free = _zeros_of_both_signs("scatter_reduce", call, {}, torch.scatter_reduce(*call))
    assert free.tolist() == [[True, False, False, False], [False] * 4]


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian, torch.amax])
def test_which_of_two_zeros_is_taken_is_free(function):
    class Inverse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1 / function(x)

    zeros, one = torch.tensor([0.0, -0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0])
    module = torch.export.export(Inverse(), (zeros,)).module()
    infinite = torch.tensor(math.inf)
    assert all(explained(module, ["x"], [zeros], 0, made) for made in (infinite, -infinite))
    assert not explained(module, ["x"], [one], 0, -infinite)


def test_what_is_undefined_is_free_by_element():
    x = torch.tensor([1e20, 7.0])
    module = torch.export.export(Whole(), (x,)).module()
    assert explained(module, ["x"], [x], 0, torch.tensor([123, 8], dtype=torch.int32))
    assert not explained(module, ["x"], [x], 0, torch.tensor([123, 9], dtype=torch.int32))


def test_a_search_among_bytes_out_of_order_is_free():
    """The difference of two of them is never below 0."""
    x = torch.tensor([5, 2, 4], dtype=torch.uint8)
    assert _in_disorder("searchsorted", [x, x]) and not _in_disorder("searchsorted", [x.sort().values, x])


class Whole(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int32) + 1
