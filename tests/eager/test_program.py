"""What a program promises beside its numbers: sizes once, memory freed, mutation, threads, closures, usable results."""

from __future__ import annotations

import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eager_backend
import ir
from eager_backend import Eager
from eager_backend.handlers.control import fold

from .test_cases import assert_same

MATRIX = torch.randn(3, 4)


class Call(nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def compiled(fn: Any, *args: Tensor, shapes: Any = None, **options: Any) -> Any:
    return ir.export(fn, args, target=Eager(**options), dynamic_shapes=shapes)


# -- source ------------------------------------------------------------------------------------------------------------


def test_listing_is_one_line_a_step() -> None:
    listing = compiled(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), MATRIX, optimize=False).artifact.listing()
    assert "nn_linear(input, w_0_weight, w_0_bias)" in listing
    assert "linear.relu()" in listing and "del linear" in listing
    assert "# w_0_weight = float32[4, 4]" in listing


def test_a_size_is_computed_once() -> None:
    program = compiled(lambda x: x.view(-1, 2 * x.shape[0]).sum() + x.new_zeros(2 * x.shape[0]), torch.randn(4, 6),
                       shapes=({0: "n", 1: "m"},))  # fmt: skip
    listing = program.artifact.listing()
    assert len(re.findall(r"= \w+\.size\(0\)", listing)) == 1
    assert len(re.findall(r"\* 2|2 \*", listing)) == 1
    x = torch.randn(6, 4)
    assert_same(program(x), x.sum() + torch.zeros(12))


def test_names_that_python_reserves() -> None:
    program = ir.export(Call(torch.relu), (MATRIX,), target="eager", input_names=["class"], output_names=["lambda"])
    assert_same(program(MATRIX), MATRIX.relu())


def test_a_traceback_shows_the_generated_line() -> None:
    program = compiled(lambda x: torch.linalg.inv(x), torch.eye(3))
    with pytest.raises(RuntimeError) as error:
        program(torch.zeros(3, 3))
    assert "linalg_inv" in str(error.traceback[-1].statement)


def test_programs_are_collected() -> None:
    reference = weakref.ref(compiled(lambda x: x.relu(), MATRIX).artifact)
    gc.collect()
    assert reference() is None


# -- memory ------------------------------------------------------------------------------------------------------------


def test_dead_values_are_freed() -> None:
    seen: list[int] = []
    alive: list[weakref.ref[Tensor]] = []

    def probe(x: Tensor) -> Tensor:
        seen.append(sum(r() is not None for r in alive))
        y = x + 1
        alive.append(weakref.ref(y))
        return y

    def chain(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x.sin()
        return x

    program = ir.export(
        Call(chain), (MATRIX,), target="eager", handlers={"aten::sin": lambda h, self: h.emit(probe, self)}
    )
    program(MATRIX)
    assert max(seen) <= 1


def test_weights_are_the_models_own_memory() -> None:
    model = nn.Linear(4, 4)
    weights = compiled(model, MATRIX).artifact.weights
    assert weights["w_weight"].data_ptr() == model.weight.data_ptr()


def test_an_operand_is_overwritten_only_when_it_is_dead() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        a = x + y
        row = a[0]  # a view of `a` that outlives it
        b = torch.relu(a)
        c = (b * y).tanh()
        return row, c, b.sigmoid(), (x * 2).exp()

    args = torch.randn(3, 4), torch.randn(3, 4)
    program = compiled(fn, *args)
    listing = program.artifact.listing()
    assert "relu_(" not in listing and "tanh_(" in listing and "exp_(" in listing
    assert_same(program(*args), fn(*args))


def test_results_belong_to_the_caller() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Any:
            y = x * self.weight
            return x.clone(), y, y.clone(), torch.tensor([1.0, 2.0])

    program = compiled(Model(), MATRIX)
    x = MATRIX.clone()
    first = program(x)
    for result in first:
        result.add_(1)
    assert_same(x, MATRIX)
    assert_same(program(x), Model()(MATRIX))


def test_an_input_returned_as_it_is_stays_itself() -> None:
    program = compiled(lambda x: (x, x + 1), MATRIX)
    assert program(MATRIX)[0] is MATRIX


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("built_in_inference", [False, True])
def test_results_are_ordinary_tensors(built_in_inference: bool) -> None:
    model = nn.Linear(4, 4)
    with torch.inference_mode(built_in_inference):
        program = ir.export(torch.export.export(model, (MATRIX,)), target="eager")
    result = program(MATRIX.clone().requires_grad_())
    assert not result.requires_grad and not result.is_inference() and torch.is_grad_enabled()
    result.requires_grad_().mul(2).sum().backward()
    with torch.inference_mode():
        assert program(MATRIX).is_inference()


def test_grad_mode_is_restored_after_an_error() -> None:
    program = compiled(lambda x: torch.linalg.inv(x), torch.eye(3))
    with pytest.raises(RuntimeError):
        program.artifact(torch.zeros(3, 3))
    assert torch.is_grad_enabled()


def test_float32_becomes_the_dtype_asked_for() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x + torch.arange(4, dtype=torch.float32) * 0.5, (4,)) * torch.ones(4)

    result = compiled(fn, MATRIX, dtype="bfloat16")(MATRIX)
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result.float(), fn(MATRIX), rtol=0.05, atol=0.05)


def test_everything_lies_on_the_programs_device() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            y = self.linear(x) + torch.arange(4) * 2.0 + torch.tensor([1.0, 2.0, 3.0, 4.0])
            return y, torch.zeros(x.shape[0], 2), x.new_ones(3), torch.zeros_like(x).to("cpu"), torch.randn(2)

    results = compiled(Model(), MATRIX, device="meta")(MATRIX)
    assert {r.device.type for r in results} == {"meta"}


def test_random_numbers_come_in_torchs_order() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5, training=True) * torch.randn(4)

    program = compiled(fn, MATRIX)
    torch.manual_seed(7)
    expected = fn(MATRIX)
    torch.manual_seed(7)
    assert_same(program(MATRIX), expected)


# -- mutation ----------------------------------------------------------------------------------------------------------


class Counter(nn.Module):
    """Returns what its buffer held before, and a view of what it holds after."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        before = self.total.clone()
        self.total += x.sum(0)
        return before, self.total[:2] * 1, self.total.view(2, 2)


def test_buffers_persist_and_the_model_keeps_its_own() -> None:
    model, reference = Counter(), Counter()
    program = compiled(model, MATRIX)
    for _ in range(3):
        assert_same(program(MATRIX), reference(MATRIX))
    assert_same(model.total, torch.zeros(4))


def test_every_result_comes_out_of_the_runner() -> None:
    program = compiled(Counter(), MATRIX)
    assert len(program.runner(MATRIX)) == len(program.graph.results) == 4
    _, updates = program.run(MATRIX)
    torch.testing.assert_close(updates["total"], MATRIX.sum(0) * 2)


def test_swapped_buffers() -> None:
    class Swap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(2))
            self.register_buffer("b", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            a = self.a.clone()
            self.a.copy_(self.b)
            self.b.copy_(a)
            return x + self.a

    program, reference, x = compiled(Swap(), torch.zeros(2)), Swap(), torch.zeros(2)
    for _ in range(3):
        assert_same(program(x), reference(x))


def test_mutated_inputs_are_the_callers() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        y.mul_(2)
        return x * y

    program = compiled(fn, torch.randn(4), torch.randn(4))
    ours, theirs = [torch.randn(4), torch.ones(4)], []
    theirs = [t.clone() for t in ours]
    assert_same(program(*ours), fn(*theirs))
    assert_same(ours, theirs)


# -- custom ops --------------------------------------------------------------------------------------------------------


@ir.custom_op("eager_test::swish")
def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@ir.custom_op("eager_test::halves")
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[0] // 2
    return x[:n] * 1, swish(x[n:], 3.0)


def test_a_custom_op_is_one_closure() -> None:
    program = compiled(lambda x: swish(x, 2.0) + swish(x * 2, 2.0), MATRIX)
    listing = program.artifact.listing()
    assert listing.count("def ") == 2 and listing.count("eager_test_swish(") == 3
    assert_same(program(MATRIX), swish(MATRIX, 2.0) + swish(MATRIX * 2, 2.0))


def test_a_handler_replaces_the_closure() -> None:
    def native(h: Any, x: Any, beta: float) -> Any:
        gate = h.emit(torch.sigmoid, h.emit(torch.mul, x, beta, type=x.type), type=x.type)
        return h.emit(torch.mul, x, gate)

    program = ir.export(
        Call(lambda x: swish(x, 2.0)), (MATRIX,), target="eager", handlers={"eager_test::swish": native}
    )
    assert program.artifact.listing().count("def ") == 1
    assert_same(program(MATRIX), swish(MATRIX, 2.0))


def test_an_op_that_is_no_function_is_an_error_of_the_handler() -> None:
    ways = {"relu": "str: 'relu'; give torch.relu", "aten::add_.Tensor": "give torch.Tensor.add_", "x": "such as torch"}
    for op, way in ways.items():
        handlers = {"aten::relu": lambda h, self, op=op: h.emit(op, self)}
        with pytest.raises(ir.HandlerError, match=r"handler of aten::relu at .*test_program.py:\d+ failed") as caught:
            ir.export(torch.nn.ReLU(), (torch.ones(2),), target="eager", handlers=handlers)
        assert way in str(caught.value)


def test_a_registered_handler() -> None:
    @eager_backend.register("eager_test::swish")
    def _(h: Any, x: Any, beta: float) -> Any:
        return h.emit(torch.add, x, beta)

    try:
        assert_same(compiled(lambda x: swish(x, 2.0), MATRIX)(MATRIX), MATRIX + 2.0)
    finally:
        eager_backend.REGISTRY.remove("eager_test::swish", layer="runtime")


def test_closures_nest_and_take_sizes() -> None:
    program = compiled(lambda x: halves(x), torch.randn(6, 2), shapes=({0: "n"},))
    x = torch.randn(10, 2)
    assert_same(program(x), halves(x))
    assert program.artifact.listing().count("def ") == 3


def test_an_opaque_op_runs_through_torch_ops() -> None:
    torch.library.custom_op("eager_test::opaque", lambda x: x * 3, mutates_args=(), schema="(Tensor x) -> Tensor")
    torch.library.register_fake("eager_test::opaque", torch.empty_like)
    program = compiled(lambda x: torch.ops.eager_test.opaque(x) + 1, MATRIX)
    assert "eager_test_opaque(" in program.artifact.listing()
    assert_same(program(MATRIX), MATRIX * 3 + 1)


# -- control flow ------------------------------------------------------------------------------------------------------


def test_branches_read_sizes_around_them() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        n = y.shape[0]
        return torch.cond(x.sum() > 0, lambda x: x * n, lambda x: x.new_ones(x.shape) / (n + 1), (x,))

    graph = ir.capture(fn, (MATRIX, torch.randn(5)), dynamic_shapes=({0: "m"}, {0: "n"}))
    program = ir.export(graph, target="eager")
    for x in (torch.ones(2, 4), -torch.ones(3, 4)):
        y = torch.randn(7)
        assert_same(program(x, y), x * 7 if x.sum() > 0 else torch.ones(3, 4) / 8)


def test_data_dependent_sizes() -> None:
    def fn(x: Tensor) -> Any:
        rows = x.nonzero()
        return rows.view(-1, 2).sum(0), rows.new_zeros(rows.shape[0] + 1)

    program = compiled(fn, MATRIX)
    for x in (torch.eye(3, 4), torch.ones(3, 4)):
        assert_same(program(x), fn(x))


# -- threads, files ----------------------------------------------------------------------------------------------------


def test_one_program_many_threads() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    program = compiled(model, MATRIX, shapes=({0: "n"},))
    inputs = [torch.randn(n + 1, 4) for n in range(8)]
    expected = [program(x) for x in inputs]

    def work(i: int) -> bool:
        return all(torch.equal(program(inputs[i]), expected[i]) for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_saving_keeps_the_captured_program(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    program = ir.export(model, (MATRIX,), target="eager", path=tmp_path / "model.pt2", verify=True)
    again = ir.export(tmp_path / "model.pt2", target="eager")
    assert_same(again(MATRIX), program(MATRIX))


def test_a_scan_over_no_rows_gives_the_carry_and_no_rows():
    """torch takes it since 2.14; the program serves such a size whichever torch traced it."""
    start = torch.ones(3)
    carry, rows = fold(lambda c, x, k: (c + x, (c * x)[:2] + k), (start,), (torch.empty(0, 3),), (2,))
    assert torch.equal(carry, start) and carry is not start
    assert rows.shape == (0, 2)
