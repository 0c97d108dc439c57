"""Slices of a dynamic axis at sizes below those that torch.export traces for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ir
from ir.passes.exact_sizes import exact_sizes

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda x: torch.ones_like(x[:2]),
    "filled_from_the_end": lambda x: torch.full_like(x[-2:], 3.0),
    "filled_behind_the_first": lambda x: torch.zeros_like(x[1:]),
    "finite": lambda x: torch.isfinite(x[:2].int()),
    "scattered": lambda x: torch.scatter_add(x[:2], 0, torch.zeros_like(x[:2], dtype=torch.int64), x[:2]),
    "running": lambda x: x[-2:].cummax(0).values,
    "flattened": lambda x: torch.ones_like(x[:2].flatten()),
    "joined": lambda x: torch.ones_like(torch.cat([x[:2], x])),
    "joined_with_constants": lambda x: torch.ones_like(torch.cat([x[:2], torch.zeros(3, 3)])),
    "mean": lambda x: x[:2].mean(0),
    "variance": lambda x: x[:2].var(0),
    "expanded": lambda x: x[:2].unsqueeze(0).expand(4, -1, -1) + 1,
    "doubled": lambda x: torch.ones_like(x[:2:1] * 2),
    "pieces": lambda x: torch.ones_like(x.tensor_split((0, 2))[1]),
    "mean_of_one": lambda x: torch.cat([x, x[:1]]).sub(1.5).mean(),
    "one_to_all": lambda x: x[-1:] + x[:1] * x,
    "of_a_fixed_size": lambda x: torch.arange(4.0)[: x.numel()] * 2,
    "all_of_a_fixed_size": lambda x: torch.arange(4.0)[: x.numel() + 4],
}


@pytest.mark.parametrize("name", CASES)
def test_a_slice_is_as_long_as_torch_makes_it(name: str) -> None:
    program = ir.export(CASES[name], (torch.randn(5, 3),), target="onnx", dynamic_shapes=({0: "B"},))
    for size in (0, 1, 2, 3, 5, 7):
        x = torch.randn(size, 3)
        torch.testing.assert_close(program(x), CASES[name](x), equal_nan=True)


def test_a_slice_follows_the_axis_that_it_was_cut_from() -> None:
    """Where both axes are small at once, the other one would do as well."""
    x = torch.randn(5, 7)
    graph = exact_sizes(ir.capture(lambda x: x[:, :2] + 1, (x,), dynamic_shapes=({0: "a", 1: "b"},)))
    assert str(graph.outputs[0].type) == "f32[a, min(2, b)]"


def test_a_slice_of_one_that_is_a_result_is_refused_where_it_is_empty() -> None:
    """A file states its size as 1, and what is filled has that size."""
    program = ir.export(lambda x: (x[:1], torch.isnan(x[:1])), torch.arange(3), dynamic_shapes=({0: "B"},))
    assert [t.shape for t in program(torch.arange(1))] == [(1,), (1,)]
    with pytest.raises(ir.RefusedError, match="slice does not hold at B=0"):
        program(torch.arange(0))


def test_a_diagonal_of_one_element_is_refused_where_it_has_none() -> None:
    """What is filled has the size of the trace; what is computed from the diagonal follows it."""
    x = torch.ones(3, 1, dtype=torch.uint8)
    program = ir.export(lambda x: torch.signbit(x.diagonal()), x, dynamic_shapes=({0: "B"},))
    assert program(x[:1]).shape == (1,)
    with pytest.raises(ir.RefusedError, match="diagonal does not hold at B=0"):
        program(x[:0])
    program = ir.export(lambda x: x.diagonal() + 1, x, dynamic_shapes=({0: "B"},))
    assert program(x[:1]).shape == (1,) and program(x[:0]).shape == (0,)


def test_what_has_no_size_of_its_own_is_refused_where_the_trace_does_not_hold() -> None:
    program = ir.export(lambda x: x[:2].reshape(3, 2) + 1, (torch.randn(5, 3),), dynamic_shapes=({0: "B"},))
    x = torch.randn(2, 3)
    assert torch.equal(program(x), x.reshape(3, 2) + 1)
    with pytest.raises(ir.RefusedError, match="torch does not compute reshape at B=1"):
        program(x[:1])


def test_slices_of_sizes_that_are_in_range_stay_as_traced() -> None:
    least = torch.export.Dim("B", min=3)
    graph = ir.capture(lambda x: torch.ones_like(x[:2]), (torch.randn(5, 3),), dynamic_shapes=({0: least},))
    assert exact_sizes(graph) is graph


def test_a_convolution_of_no_channels_is_refused() -> None:
    """onnxruntime's never ends, and torch's has no channels either."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.conv1d(x, torch.ones(2, x.shape[1], 2))

    x = torch.randn(2, 3, 5)
    program = ir.export(model, (x,), target="onnx", dynamic_shapes=({1: "C"},))
    torch.testing.assert_close(program(x[:, :1]), model(x[:, :1]))
    with pytest.raises(ir.RefusedError, match="the program needs C > 0"):
        program(x[:, :0])


@pytest.mark.parametrize("dim", [None, 0, (0, 1)], ids=str)
def test_a_slice_that_loses_its_axis_to_squeeze_at_size_1_is_refused_there(dim) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x[-2:].squeeze() if dim is None else x[-2:].squeeze(dim)) * 2

    program = ir.export(model, (torch.randn(5, 3, 2),), target="onnx", dynamic_shapes=({0: "B"},))
    x = torch.randn(4, 3, 2)
    assert torch.equal(program(x), model(x))
    with pytest.raises(ir.RefusedError, match="slice does not hold at B=1"):
        program(x[:1])


def test_images_of_no_pixels_are_not_normalised() -> None:
    """onnxruntime's InstanceNormalization ends the process there."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.instance_norm(x)

    x = torch.randn(1, 5, 3, 1)
    program = ir.export(model, (x,), target="onnx", dynamic_shapes=({2: "H"},))
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(ir.RefusedError, match="the program needs H > 0"):
        program(x[:, :, :0])
    empty = ir.export(model, (x[:, :, :0],), target="onnx")
    assert empty(x[:, :, :0]).shape == (1, 5, 0, 1)
