"""profile, trace and check: what they show is what runs, and looking changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager
from eager_backend.inspection import layers
from eager_backend.inspection.profiling import Profile

from .test_cases import assert_same
from .test_program import MATRIX, Call, Counter, compiled

IMAGE = torch.randn(2, 3, 16, 16)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5), nn.Softmax(-1)
    return nn.Sequential(*layers).eval()


def table_of(profile: Profile) -> dict[str, Any]:
    return {row.name: row for row in profile.nodes}


# -- profile -----------------------------------------------------------------------------------------------------------


def test_profile_has_a_row_for_every_step() -> None:
    program = compiled(net(), IMAGE, optimize=False).artifact
    profile = program.profile(IMAGE, runs=3)
    assert [r.name for r in profile.nodes] == ["conv2d", "batch_norm", "relu", "flatten", "linear", "softmax"]
    assert [r.op for r in profile.kinds if r.seconds >= profile.kinds[0].seconds] == [profile.kinds[0].op]
    assert sum(r.share for r in profile.nodes) == pytest.approx(1) == sum(r.share for r in profile.kinds)
    assert sum(r.seconds for r in profile.nodes) == pytest.approx(profile.seconds)
    assert profile.call_seconds > 0 and all(r.seconds > 0 for r in profile.nodes)


def test_profile_counts_bytes() -> None:
    rows = table_of(compiled(net(), IMAGE, optimize=False).artifact.profile(IMAGE, runs=1))
    hidden = 2 * 8 * 14 * 14
    assert rows["conv2d"].bytes == 4 * (IMAGE.numel() + 8 * 3 * 9 + 8 + hidden)
    assert rows["relu"].bytes == 4 * 2 * hidden
    assert rows["flatten"].bytes == 0  # a view
    assert rows["linear"].bytes == 4 * (hidden + 5 * hidden // 2 + 5 + 10)


def test_profile_of_an_optimised_program() -> None:
    profile = compiled(net(), IMAGE).artifact.profile(IMAGE, runs=2)
    fused = next(r for r in profile.nodes if r.call == "onednn_conv")
    assert fused.name == "batch_norm" and fused.op == "aten::conv2d"
    kinds = {r.op: r for r in profile.kinds}
    assert kinds["aten::conv2d"].count >= 1 and "aten::batch_norm" not in kinds


def test_profile_has_every_step_and_kind() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x[:2, :2].exp() @ x[:2]).relu() + (x @ x).sum()

    profile = compiled(fn, torch.randn(400, 400)).artifact.profile(torch.randn(400, 400), runs=5)
    assert {r.name for r in profile.nodes} >= {"matmul", "matmul_1"} and all(r.seconds > 0 for r in profile.nodes)
    assert abs(sum(r.share for r in profile.nodes) - 1) < 1e-6
    assert {k.op: k.count for k in profile.kinds}["aten::matmul"] == 2


def test_profile_as_text_and_json() -> None:
    profile = compiled(net(), IMAGE, optimize=False).artifact.profile(IMAGE, runs=2)
    text = str(profile)
    assert "6 steps on cpu, 2 runs" in text and "aten::conv2d" in text and "conv.py:" in text
    read = json.loads(profile.json())
    assert read == json.loads(json.dumps(profile.to_dict()))
    assert read["nodes"][0].keys() == {"name", "op", "call", "place", "count", "seconds", "share", "bytes"}


def test_profile_takes_one_run_at_least() -> None:
    with pytest.raises(ValueError, match="at least one"):
        compiled(net(), IMAGE).artifact.profile(IMAGE, runs=0)


# -- trace -------------------------------------------------------------------------------------------------------------


def test_trace_keeps_what_later_steps_write_over() -> None:
    program = compiled(lambda x: ((x + 1) * 2).relu().exp(), MATRIX)
    assert "relu_(" in program.artifact.listing()
    traced = program.artifact.trace(MATRIX)
    assert list(traced) == ["add", "mul", "relu", "exp"]
    assert_same(traced["add"], MATRIX + 1)
    assert_same(traced["mul"], (MATRIX + 1) * 2)
    assert_same(traced["exp"], ((MATRIX + 1) * 2).relu().exp())


def test_trace_names_every_value_of_the_graph() -> None:
    program = compiled(lambda x: torch.topk(x, 2)[0] + x.sum(1, keepdim=True), MATRIX, optimize=False)
    made = {v.name for n in program.graph.nodes for v in n.outputs}
    traced = program.artifact.trace(MATRIX)
    assert traced.keys() == made and len(made) == 4
    values, indices = torch.topk(MATRIX, 2)
    assert_same((traced["topk_0"], traced["topk_1"]), (values, indices))


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_agrees_bit_for_bit() -> None:
    check = compiled(net(), IMAGE, optimize=False).artifact.check(IMAGE)
    assert check.ok and check.first is None and len(check.rows) == 6
    assert all(e is not None and e.largest == 0 for r in check.rows for e in (r.own, r.inherited))


def test_check_skips_what_was_fused_away() -> None:
    check = compiled(net(), IMAGE).artifact.check(IMAGE)
    assert check.ok and check.first is None, check
    assert [r.name for r in check.rows if r.inherited] == ["batch_norm", "relu", "flatten", "linear", "softmax"]
    assert all(r.own for r in check.rows) and len(check.rows) == 6


def wrong_tanh(h: Any, self: Any) -> Any:
    return h.emit(torch.sin, self)


@pytest.mark.parametrize("optimize", [False, True])
def test_check_names_the_first_that_differs(optimize: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp() + 1
            z = y.tanh()
            return (z * 2).relu()

    program = ir.export(Model(), (MATRIX,), target=Eager(optimize=optimize), handlers={"aten::tanh": wrong_tanh})
    check = program.artifact.check(MATRIX)
    assert check.first is not None and not check.ok
    assert check.first.name == "tanh" and check.first.node.op == "aten::tanh"
    far = float(((MATRIX.exp() + 1).tanh() - (MATRIX.exp() + 1).sin()).abs().max())
    assert check.first.own is not None and check.first.own.largest == pytest.approx(far)
    text = str(check.first)
    assert "tanh = aten::tanh" in text and "test_looking_inside.py" in text and "z = y.tanh()" in text
    assert [r.wrong for r in check.rows] == [False, False, True, False, False]  # the others inherit it
    inherited = [r.inherited for r in check.rows]
    assert [bool(e and e.reason) for e in inherited] == [False, False, True, True, True]


def test_check_sees_what_passes_and_fusions_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is wrong by itself: the value of the program itself is."""
    program = compiled(net(), IMAGE, optimize=False).artifact
    traced = layers.trace
    monkeypatch.setattr(layers, "trace", lambda *given: traced(*given) | {"linear": traced(*given)["linear"] + 1})
    check = program.check(IMAGE)
    assert check.ok and check.first is not None and check.first.name == "linear"


def test_a_last_bit_is_seen_with_optimize_off() -> None:
    def nearly(h: Any, self: Any) -> Any:
        return h.emit(lambda x: torch.nextafter(x.tanh(), torch.tensor(9.0)), self)

    for optimize, ok in ((False, False), (True, True)):
        program = ir.export(
            Call(torch.tanh), (MATRIX,), target=Eager(optimize=optimize), handlers={"aten::tanh": nearly}
        )
        check = program.artifact.check(MATRIX)
        assert (check.first is None) is ok and check.ok  # alone, a node is compared to rounding
    assert not program.artifact.check(MATRIX, max_error=0).ok


def test_check_of_random_numbers_and_results_in_lists() -> None:
    def fn(x: Tensor) -> Tensor:
        a, b = (torch.rand_like(x) + x).split(2, 1)
        return torch.nn.functional.dropout(a, 0.5, True) * torch.cat([b, b]).sum()

    state = torch.get_rng_state()
    check = compiled(fn, MATRIX, optimize=False).artifact.check(MATRIX)
    assert check.ok, check
    assert "not compared" in check.rows[0].note and torch.equal(torch.get_rng_state(), state)


def test_check_of_writes_branches_and_sizes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor, y: Tensor) -> Any:
            self.seen.add_(x.sum(0))
            y[0] = 1.0
            z = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a.sin(), (self.linear(x),))
            return z + self.seen, z.view(-1, 2 * x.shape[0]) + 1, y * 2

    program = compiled(Model(), MATRIX, torch.randn(3), shapes=({0: "n"}, {0: "n"}), optimize=False)
    for x in (torch.ones(5, 4), -torch.ones(2, 4)):
        y = torch.zeros(x.shape[0])
        check = program.artifact.check(x, y)
        assert check.ok, check
        assert len(check.rows) >= 7 and not y.any()


@pytest.mark.parametrize("look", ["profile", "trace", "check"])
def test_looking_changes_no_buffer(look: str) -> None:
    program, model = compiled(Counter(), MATRIX), Counter()
    assert_same(program(MATRIX), model(MATRIX))
    getattr(program.artifact, look)(MATRIX)
    assert_same(program.artifact.state_dict()["total"], model.total)
    assert_same(program(MATRIX), model(MATRIX))


def test_check_follows_the_state() -> None:
    program = compiled(Counter(), MATRIX, optimize=False)
    program(MATRIX), program(MATRIX)
    assert program.artifact.check(MATRIX).ok
    traced = program.artifact.trace(MATRIX)
    assert any(torch.equal(t, MATRIX.sum(0) + MATRIX.sum(0) + MATRIX.sum(0)) for t in traced.values())


def test_check_of_another_dtype() -> None:
    check = compiled(net(), IMAGE, dtype="bfloat16").artifact.check(IMAGE)
    assert check.ok, check
    assert {r.dtype for r in check.rows} == {"bfloat16"}
