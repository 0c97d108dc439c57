"""Programs on a fake GPU beside torch's own module there: a slice of `nox -s fake_cuda`, and faults to be found."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager
from eager_backend.passes import PASSES
from tests.cases import ALL, TRACED, Case
from tests.fake_cuda.compare import Found, ReferenceFails, compare
from tests.fake_cuda.mode import Account, gpu

X = torch.randn(3, 4)


def seen(case: Case) -> list[Found]:
    args = case.args(TRACED)
    graph = ir.capture(case.module(), args, dynamic_shapes=case.dynamic_shapes)
    try:
        return compare(graph, args, {})
    except ReferenceFails as reason:
        pytest.skip(f"torch's own does not run on fake tensors: {reason}")


@pytest.mark.parametrize("case", ALL[::12], ids=lambda case: case.name)
def test_case(case: Case) -> None:
    for found in seen(case):
        assert found.misplaced == found.waits == ()
        assert found.values


class Masked(nn.Module):
    """Has a weight, a factory, a mask, a constant of the code and an index."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.ones(4, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).masked_fill(~self.seen, 0.0) + torch.arange(x.shape[0])[:, None]
        return x[torch.tensor([0, 2])].relu()


def found_in(model: Any, handlers: dict[str, Any] | None = None) -> Found:
    graph = ir.capture(model, (X,), dynamic_shapes=({0: "n"},))
    return compare(graph, (X,), {}, handlers, [False])[0]


def test_all_that_a_model_makes_lies_there() -> None:
    found = found_in(Masked())
    assert found.misplaced == found.waits == ()
    assert found.compared >= 6 and found.torch_waits == 0


def on_the_cpu(h: Any, self: Any) -> Any:
    return h.emit(torch.maximum, self, h.emit(torch.zeros, (), device=torch.device("cpu"), type=self.type))


def by_the_cpu(h: Any, self: Any) -> Any:
    there = h.emit(Tensor.to, self, device=torch.device("cpu"), type=self.type)
    return h.emit(Tensor.to, h.emit(torch.relu, there, type=self.type), device=torch.device("cuda:0"))


def a_constant_left(h: Any, self: Any) -> Any:
    return h.emit(torch.maximum, self, h.constants.add(torch.zeros(()), "left", self.type))


def asks(h: Any, self: Any) -> Any:
    return h.emit(lambda x: x.relu() if bool((x > 0).any()) else x.new_zeros(x.shape), self)


def masks(h: Any, self: Any) -> Any:
    return h.emit(lambda x: x.index_put((x < 0,), x.new_zeros(())), self)


@pytest.mark.parametrize(
    "handler, misplaced, waits",
    [
        (on_the_cpu, "zeros.* lies on cpu|on the CPU", ""),
        (by_the_cpu, "lies on cpu", "copies between host and GPU"),
        (a_constant_left, "constant left lies on cpu", ""),
        (asks, "", "_local_scalar_dense reads content"),
        (masks, "", "index_put reads content"),
    ],
)
def test_faults_are_found(handler: Any, misplaced: str, waits: str) -> None:
    found = found_in(Masked(), {"aten::relu": handler})
    for wanted, what in ((misplaced, found.misplaced), (waits, found.waits)):
        assert any(re.search(wanted, text) for text in what) if wanted else what == ()


def test_the_report_says_what_was_not_measured() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with gpu(Account()), torch.no_grad():
        usual, named = (ir.export(model, (X,), target=Eager("cuda", optimize=o)) for o in (True, ("cublas",)))
    assert "not measured on cuda:0, so off: cudnn, cublas (autotune=True measures them)" in usual.report.notes
    assert "addmm_activation" not in usual.artifact.source
    assert "not measured on cuda:0, so off: cudnn (autotune=True measures them)" in named.report.notes
    assert "addmm_activation" in named.artifact.source


def test_the_report_says_what_autotune_chose() -> None:
    program = ir.export(nn.Linear(4, 4), (X,), target="eager", autotune=True, verify=True)
    (line,) = [n for n in program.report.notes if n.startswith("autotune on cpu: passes ")]
    chosen, dropped = line.removeprefix("autotune on cpu: passes ").split("; dropped: ")
    assert set(chosen.split(", ")) | set(dropped.split(", ")) - {"none"} == set(PASSES)


def test_what_torch_waits_for_is_no_fault() -> None:
    def model(x: Tensor) -> Tensor:
        return x * x.sum().item() + x.nonzero().sum()

    found = found_in(model)
    assert found.waits == found.misplaced == () and found.torch_waits >= 2
