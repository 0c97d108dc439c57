"""Clones, state_dict and new weights in a program that runs on."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager

from .test_cases import assert_same
from .test_program import MATRIX, Counter, compiled

IMAGE = torch.randn(1, 3, 16, 16)


def conv_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(576, 5)
    model = nn.Sequential(*layers).eval()
    for tensor in (*model.parameters(), model[1].running_mean):
        tensor.data.normal_(0, 0.3)
    return model


def sorted_(state: Any) -> dict[str, Tensor]:
    return dict(sorted(state.items()))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.unread = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).relu())


# -- state_dict --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model, args", [(conv_net(0), IMAGE), (Tied(), torch.tensor([1, 2])), (Counter(), MATRIX)])
def test_state_dict_is_the_modules(model: nn.Module, args: Tensor) -> None:
    state, expected = compiled(model, args).artifact.state_dict(), model.state_dict()
    assert set(state) == set(expected)
    assert_same(sorted_(state), sorted_(expected))
    assert not any(t.requires_grad for t in state.values())
    model.load_state_dict(state)


def test_mutated_buffers_are_in_the_state() -> None:
    program, model = compiled(Counter(), MATRIX), Counter()
    for _ in range(3):
        program(MATRIX), model(MATRIX)
        assert_same(program.artifact.state_dict()["total"], model.total)
    program.artifact.load_state_dict({"total": torch.full((4,), 7.0)})
    model.load_state_dict({"total": torch.full((4,), 7.0)})
    assert_same(program(MATRIX), model(MATRIX))


def test_verify_leaves_the_buffers_alone() -> None:
    program, model = ir.export(Counter(), (MATRIX,), target="eager", verify=True), Counter()
    for _ in range(2):
        assert_same(program(MATRIX), model(MATRIX))
        program.verify()
    assert_same(program.artifact.state_dict()["total"], model.total)


# -- new weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
def test_new_weights_without_compiling(optimize: bool, assign: bool) -> None:
    first, second = conv_net(1), conv_net(2)
    program = compiled(first, IMAGE, optimize=optimize)
    source = program.artifact.source
    kept = {n: t.clone() for n, t in first.state_dict().items()}
    missing, unexpected = program.artifact.load_state_dict(second.state_dict(), assign=assign)
    assert not missing and not unexpected and program.artifact.source is source
    made = compiled(second, IMAGE, optimize=optimize)
    assert_same(program(IMAGE), made(IMAGE))
    assert program.artifact.check(IMAGE).ok
    assert_same(list(first.state_dict().values()), list(kept.values()))  # the model keeps its own
    assert_same(sorted_(program.artifact.state_dict()), sorted_(second.state_dict()))


def test_only_what_changes_is_derived_again() -> None:
    program = compiled(conv_net(1), IMAGE).artifact
    before = dict(program.constants.derived)
    program.load_state_dict({"3.weight": torch.randn(4, 8, 3, 3)}, strict=False)
    changed = {n for n, t in program.constants.derived.items() if t is not before[n]}
    assert changed and all(n.startswith("w_3_weight") for n in changed) and len(changed) < len(before)


def test_a_copy_unless_assigned() -> None:
    model = nn.Linear(4, 4)
    program, new = compiled(model, MATRIX).artifact, nn.Linear(4, 4).state_dict()
    program.load_state_dict(new)
    assert program.state_dict()["weight"].data_ptr() != new["weight"].data_ptr()
    program.load_state_dict(new, assign=True)
    assert program.state_dict()["weight"].data_ptr() == new["weight"].data_ptr()


def test_tied_weights() -> None:
    model, x = Tied(), torch.tensor([1, 5, 2])
    program = compiled(model, x)
    for given in ({"embedding.weight": torch.randn(7, 4)}, {"head.weight": torch.randn(7, 4)}, Tied().state_dict()):
        model.load_state_dict(given, strict=False)
        program.artifact.load_state_dict(given, strict=False)
        assert_same(program(x), model(x).detach())
        assert_same(list(program.artifact.state_dict().values()), list(model.state_dict().values()))
    different = {"embedding.weight": torch.ones(7, 4), "head.weight": torch.zeros(7, 4)}  # the last wins, as in torch
    model.load_state_dict(different, strict=False)
    program.artifact.load_state_dict(different, strict=False)
    assert_same(program(x), model(x).detach())


def test_a_saved_program(tmp_path: Any) -> None:
    model, x = Tied(), torch.tensor([1, 5, 2])
    ir.export(model, (x,), target="eager", path=tmp_path / "model.pt2")
    program, other = ir.export(tmp_path / "model.pt2", target="eager"), Tied()
    assert list(program.artifact.state_dict()) == list(model.state_dict())
    program.artifact.load_state_dict(other.state_dict())
    assert_same(program(x), other(x).detach())


def test_new_weights_take_the_programs_dtype() -> None:
    program, other = compiled(nn.Linear(4, 4), MATRIX, dtype="bfloat16"), nn.Linear(4, 4)
    program.artifact.load_state_dict(other.double().state_dict())
    state = program.artifact.state_dict()
    assert state["weight"].dtype is torch.bfloat16
    assert_same(program(MATRIX), other.bfloat16()(MATRIX.bfloat16()).detach())


def test_strides_stay() -> None:
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    program = compiled(model, IMAGE, optimize=False).artifact
    program.load_state_dict(nn.Conv2d(3, 8, 3).state_dict())
    assert program.state_dict()["weight"].stride() == model.weight.stride()


def wrong_states() -> Any:
    good = conv_net(3).state_dict()
    yield {n: t for n, t in good.items() if n != "3.bias"}
    yield good | {"other": torch.ones(1)}
    yield {n: t for n, t in good.items() if "0." not in n} | {"a": torch.ones(1), "b": torch.ones(1)}
    yield good | {"3.weight": torch.ones(4, 8, 3, 2), "5.bias": torch.ones(4)}
    yield good | {"3.weight": [1.0]}


@pytest.mark.parametrize("wrong", wrong_states())
def test_errors_are_torchs_own(wrong: dict[str, Any]) -> None:
    model = conv_net(1)
    program = compiled(model, IMAGE)
    before = program(IMAGE)
    with pytest.raises(RuntimeError) as theirs:
        conv_net(1).load_state_dict(wrong)
    with pytest.raises(RuntimeError) as ours:
        program.artifact.load_state_dict(wrong)
    # their copy adds how the exception came about to what was given in place of a tensor
    assert str(ours.value).replace("Program", "Sequential").split(" but received")[0] in str(theirs.value)
    assert_same(program(IMAGE), before)  # as it was


def test_not_strict() -> None:
    program, model = compiled(Tied(), torch.tensor([1])).artifact, Tied()
    given = {"unread": torch.ones(3), "other": torch.ones(1)}
    ours, theirs = program.load_state_dict(given, strict=False), model.load_state_dict(given, strict=False)
    assert tuple(ours) == tuple(theirs) and ours.missing_keys == theirs.missing_keys
    assert_same(program.state_dict()["unread"], torch.ones(3))
    with pytest.raises(RuntimeError, match="size mismatch for unread"):
        program.load_state_dict({"unread": torch.ones(5)}, strict=False)


def test_old_weights_are_let_go() -> None:
    program = compiled(conv_net(1), IMAGE, dtype="float64").artifact
    old = [weakref.ref(t) for t in (*program.weights.values(), *program.constants.derived.values())]
    program.load_state_dict(conv_net(2).state_dict())
    gc.collect()
    assert not any(r() is not None for r in old)


# -- clones ------------------------------------------------------------------------------------------------------------


def test_clones_share_weights_and_code() -> None:
    program = compiled(conv_net(1), IMAGE).artifact
    clone = program.clone()
    assert_same(clone(IMAGE), program(IMAGE))
    assert all(clone.weights[n] is t for n, t in program.weights.items())
    assert all(clone.constants.derived[n] is t for n, t in program.constants.derived.items())
    assert clone.run.__code__ is program.run.__code__


def test_clones_have_buffers_of_their_own() -> None:
    program = compiled(Counter(), MATRIX).artifact
    program(MATRIX)
    clone = program.clone()
    clone(MATRIX), clone(MATRIX)
    assert_same(program.state_dict()["total"], MATRIX.sum(0))
    assert_same(clone.state_dict()["total"], MATRIX.sum(0) + MATRIX.sum(0) + MATRIX.sum(0))


def test_clones_in_branches() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.shape[0]
        return torch.cond(x.sum() > 0, lambda x: x * n, lambda x: x / n, (x,))

    program = compiled(fn, MATRIX, shapes=({0: "n"},)).artifact
    clone = program.clone()
    del program
    gc.collect()
    assert_same(clone(torch.ones(5, 4)), (torch.full((5, 4), 5.0),))


def test_new_weights_are_the_clones_alone() -> None:
    program = compiled(conv_net(1), IMAGE).artifact
    before, clone = program(IMAGE), program.clone()
    clone.load_state_dict(conv_net(2).state_dict())
    assert_same(program(IMAGE), before)
    assert_same(clone(IMAGE), compiled(conv_net(2), IMAGE).artifact(IMAGE))


def test_a_clones_traceback_shows_the_line() -> None:
    clone = compiled(torch.linalg.inv, torch.eye(3)).artifact.clone()
    gc.collect()
    with pytest.raises(RuntimeError) as error:
        clone(torch.zeros(3, 3))
    assert "linalg_inv" in str(error.traceback[-1].statement)


# -- new weights while others call -------------------------------------------------------------------------------------


def test_no_call_sees_a_mix_of_weights() -> None:
    """Every layer multiplies by the same number, so a result that mixes two states is no fifth power."""

    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(5)])

        def forward(self, x: Tensor) -> Tensor:
            for f in self.factors:
                x = x * f
            return x

    program = ir.export(Powers(), (torch.ones(64),), target=Eager()).artifact
    powers, failures, done = {float(k**5) for k in range(1, 9)}, [], threading.Event()

    def call() -> None:
        while not done.is_set():
            (result,) = program(torch.ones(64))
            if float(result[0]) not in powers or not bool((result == result[0]).all()):
                failures.append(result)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for i in range(300):
        program.load_state_dict({f"factors.{j}": torch.full((1,), float(i % 8 + 1)) for j in range(5)})
    done.set()
    for t in threads:
        t.join()
    assert not failures and float(program(torch.ones(64))[0][0]) == 4.0**5
