"""Where a program meets its caller: inputs that it was not made for, results that share memory, options, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import eager_backend
import ir
from eager_backend import Eager, op_handlers

MATRIX = torch.randn(4, 6)
DYNAMIC = torch.export.Dim("n", min=3, max=8)


def scaled(x: Tensor) -> Tensor:
    """What torch.export keeps of it is the number 4: wrong, not an error, for any other height."""
    return x.mean(0) * x.shape[0]


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(
    "given", [torch.randn(5, 6), torch.randn(1, 6), torch.randn(6), torch.randn(4, 6).double(), torch.ones(4, 6).long()]
)
def test_inputs_that_the_program_was_not_made_for(given: Tensor, optimize: bool) -> None:
    program = ir.export(scaled, (MATRIX,), target=Eager(optimize=optimize))
    with pytest.raises(ir.ExportError, match=r"the input x is .*, the program was made for f32\[4, 6\]"):
        program(given)
    program(MATRIX)


def test_sizes_within_their_range_and_equal_where_they_were() -> None:
    shapes = ({0: DYNAMIC}, {0: DYNAMIC, 1: 2 * torch.export.Dim("m")})
    program = ir.export(lambda x, y: x[:, :1] + y, (MATRIX, MATRIX), target="eager", dynamic_shapes=shapes)
    for n in (3, 8):
        program(torch.randn(n, 6), torch.randn(n, 10))
    wrong = [((2, 6), (2, 6)), ((9, 6), (9, 6)), ((4, 6), (5, 6)), ((4, 6), (4, 7)), ((4, 5), (4, 6)), ((4,), (4, 6))]
    for x, y in wrong:
        with pytest.raises(ir.ExportError, match="the program was made for"):
            program(torch.randn(x), torch.randn(y))


def test_a_program_with_an_element_type_of_its_own_takes_both() -> None:
    program = ir.export(nn.Linear(6, 2), (MATRIX,), target=Eager(dtype="bfloat16"))
    assert torch.equal(program(MATRIX), program(MATRIX.bfloat16()))
    with pytest.raises(ir.ExportError, match="float64"):
        program(MATRIX.double())


def test_a_branch_that_copies_gives_a_copy() -> None:
    def model(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: x * 2, (x,))

    program, x = ir.export(model, (MATRIX,), target="eager"), MATRIX.abs()
    program(x).zero_()
    assert x.all()


def twice(x: Tensor) -> Any:
    y = x * 2
    return y, y.clone().view(-1)


def written(x: Tensor) -> Any:
    y = torch.zeros_like(x)
    y.copy_(x)
    return y.view(-1)


COPIES: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.clone().view(-1), "transpose": lambda x: x.clone().mT, "split": lambda x: x.clone().split(1),
    "strided": lambda x: torch.as_strided(x.clone(), (3,), (1,)), "two results": twice, "copy_": written,
    "view of the input": lambda x: (x.view(-1), x.t()), "the input": lambda x: (x, x.clone()),
    "repeat": lambda x: x.repeat(1, 1).view(-1), "windows": lambda x: x.clone().unfold(1, 2, 1),
}  # fmt: skip


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", COPIES)
def test_results_share_memory_where_they_do_in_torch(name: str, optimize: bool) -> None:
    def owners(results: Any) -> list[int]:
        memory = [t.untyped_storage().data_ptr() for t in (x, *tree_leaves(results))]
        return [memory.index(m) for m in memory]

    x = torch.randn(2, 3)
    program = ir.export(COPIES[name], (x,), target="eager", optimize=optimize)
    expected, actual = COPIES[name](x), program(x)
    assert owners(actual) == owners(expected)
    torch.testing.assert_close(actual, expected, check_stride=True)


def test_a_copy_that_a_file_does_not_show(tmp_path: Any) -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clone().flatten()

    torch.export.save(torch.export.export(Flat(), (MATRIX,)), tmp_path / "flat.pt2")
    x = MATRIX.clone()
    ir.export(tmp_path / "flat.pt2", target="eager")(x).zero_()
    assert torch.equal(x, MATRIX)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(4, 6))

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.held.clone(), lambda x: x * 2, (x,))


def test_a_branch_never_hands_out_a_weight() -> None:
    program = ir.export(Held(), (MATRIX,), target="eager")
    program(MATRIX.abs()).zero_()
    assert program(MATRIX.abs()).all()


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_program_is_neither_pickled_nor_copied(use: Callable[[Any], Any]) -> None:
    program = ir.export(nn.Linear(6, 2), (MATRIX,), target="eager")
    with pytest.raises(TypeError, match=r"clone\(\)"):
        use(program.artifact)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_what_was_loaded_is_saved(tmp_path: Any, dtype: Any) -> None:
    model, other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    nn.init.normal_(other.weight)
    program = ir.export(model, (MATRIX,), target=Eager(dtype=dtype))
    program.artifact.load_state_dict(other.state_dict())
    program(MATRIX)
    state = program.artifact.state_dict()
    again = ir.export(program.save(tmp_path / "model.pt2"), target=Eager(dtype=dtype)).artifact.state_dict()
    assert all(torch.equal(again[n], t) for n, t in state.items())
    assert torch.equal(model.weight, torch.ones(6)) and model.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"optimize": None}, TypeError, "names of passes"), ({"dtype": "int8"}, ValueError, "floating"),
        ({"dtype": "nope"}, ValueError, "floating"), ({"dtype": 3}, ValueError, "floating"),
        ({"device": "mps"}, ValueError, "cpu or cuda"), ({"device": "nope"}, ValueError, "nope"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Eager(**options)


def test_one_pass_by_its_name() -> None:
    assert Eager(optimize="inplace").chosen == ("inplace",)


@pytest.mark.parametrize("look", ["profile", "trace", "check"])
def test_looking_inside_counts_the_inputs(look: str) -> None:
    program = ir.export(nn.ReLU(), (MATRIX,), target="eager").artifact
    for given in ((), (MATRIX, MATRIX)):
        with pytest.raises(ir.ExportError, match="tensors for the 1 inputs input"):
            getattr(program, look)(*given)


def test_a_state_is_a_mapping() -> None:
    with pytest.raises(TypeError, match="dict-like"):
        ir.export(nn.ReLU(), (MATRIX,), target="eager").artifact.load_state_dict(None)


class Wrong:
    """A handler whose closure returns what it is told."""

    def __init__(self, op: str, result: Any) -> None:
        self.op, self.result = op, result

    def ops(self) -> list[str]:
        return [self.op]

    def compile(self, node: Any, initial_values: Any, device: Any) -> Any:
        return lambda values: self.result


@pytest.mark.parametrize(
    ("op", "result", "says"),
    [
        ("aten::relu", None, "a NoneType"), ("aten::relu", [MATRIX, MATRIX], "2 results"),
        ("aten::relu", [], "0 results"), ("aten::relu", MATRIX.double(), r"float64\[4, 6\]"),
        ("aten::relu", MATRIX[:2], r"float32\[2, 6\]"), ("aten::max", [MATRIX[:, 0]], "1 results"),
    ],
)  # fmt: skip
def test_a_closure_that_returns_something_else(op: str, result: Any, says: str) -> None:
    op_handlers.register(Wrong(op, result))
    try:
        model = torch.relu if op == "aten::relu" else lambda x: x.max(1)
        program = ir.export(model, (MATRIX,), target="eager")
        with pytest.raises(ir.ExportError, match=rf"Wrong.* for {op} returned {says}"):
            program(MATRIX)
    finally:
        op_handlers.reset()


def test_a_handler_is_registered_for_all_its_ops_or_none() -> None:
    handler = Wrong("", None)
    handler.ops = lambda: ["aten::relu", "relu"]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="'relu', which is no op"):
        op_handlers.register(handler)
    assert not op_handlers.table()
    handler.ops = lambda: "aten::relu"  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TypeError, match="a list of names"):
        op_handlers.register(handler)
    found = eager_backend.REGISTRY.lookup("aten::relu")
    assert found is None or found.layer != "runtime"


@ir.custom_op("border::noisy")
def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def test_a_body_that_draws_is_verified_by_its_shape() -> None:
    program = ir.export(lambda x: noisy(x) * 2, (MATRIX,), target="eager", verify=True)
    torch.manual_seed(1)
    expected = noisy(MATRIX) * 2
    torch.manual_seed(1)
    assert torch.equal(program(MATRIX), expected)


@pytest.mark.parametrize("value", ["text", object()])
def test_an_argument_that_is_no_tensor_is_named(value: Any) -> None:
    program = ir.export(torch.relu, (MATRIX,), target="eager")
    with pytest.raises(ir.ExportError, match="stands where the model was captured with a tensor"):
        program(value)


def test_constant_arguments() -> None:
    model = nn.Module()
    model.forward = lambda x, k: x * k  # type: ignore[method-assign]
    program = ir.export(model, (MATRIX, float("nan")), target="eager")
    assert program(MATRIX, float("nan")).isnan().all()
    with pytest.raises(ir.ExportError, match="constant argument"):
        program(MATRIX, MATRIX)


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.last.copy_(x)
        return x + 1


def test_a_buffer_that_is_written_and_never_read() -> None:
    program = ir.export(Overwritten(), (MATRIX,), target="eager", verify=True)
    assert not program.artifact.state_dict()["last"].any()  # verifying left it alone
    program(MATRIX + 1)
    assert torch.equal(program.artifact.state_dict()["last"], MATRIX + 1)
    other = program.artifact.clone()
    other(MATRIX)
    assert torch.equal(program.artifact.state_dict()["last"], MATRIX + 1)


def test_dropout_behind_a_convolution_draws_as_in_torch() -> None:
    conv, image = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.conv(x), 0.5, True)

    program = ir.export(Model(), (image,), target="eager")
    torch.manual_seed(0)
    expected = Model()(image).detach()
    torch.manual_seed(0)
    assert torch.allclose(program(image), expected, atol=1e-5)


def test_sizes_out_of_data_behind_a_convolution() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).nonzero()

    model, image = Model(), torch.randn(2, 3, 8, 8)
    assert torch.equal(ir.export(model, (image,), target="eager")(image), model(image))
