"""Sizes that torch refuses to compute for: a program refuses them as well, and gives no number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir

TARGETS = ("onnx", "nnef", "eager")
EXTREMES = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_of_rows": lambda x: x.max(1),
    "amin_of_both": lambda x: x.amin((0, 1)),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(),
    "argmin_of_rows": lambda x: x.argmin(1, keepdim=True),
    "mode": lambda x: x.mode(1),
    "norm": lambda x: torch.linalg.vector_norm(x.float(), float("inf"), dim=1),
}
WINDOWS = {
    "max_pool": (lambda x: F.max_pool2d(x, 2), 1),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), 1),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 1), 0),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (1, 4)), 0),
    "reflection_pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), 1),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), 0),
}


def exported(function, x, sizes, target):
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    return ir.export(model, (x,), dynamic_shapes=(sizes,), target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_no_elements(name, dtype, target):
    x = torch.arange(12).view(3, 4).to(dtype)
    program = exported(EXTREMES[name], x, {0: "rows", 1: "columns"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(torch.empty(3, 0, dtype=dtype))
    program.verify((x[:2, :1],))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_wider_than_an_image(name, target):
    function, size = WINDOWS[name]
    program = exported(function, torch.randn(2, 3, 8, 8), {2: "height", 3: "width"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(torch.randn(2, 3, 8, size))
    program.verify((torch.randn(2, 3, 6, 4),))


@pytest.mark.parametrize("target", TARGETS)
def test_an_extreme_of_what_data_selects(target):
    """torch.export has no bound for the size; the file itself stops, whatever runs it."""
    program = exported(lambda x: x[x > 0].max(), torch.randn(9), {0: "n"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(-torch.ones(5))
    program.verify((torch.arange(-3.0, 3.0),))


@pytest.mark.parametrize("target", TARGETS)
def test_the_refusal_says_what_torch_says(target):
    program = exported(lambda x: x.amax(1), torch.randn(3, 4), {1: "columns"}, target)
    with pytest.raises((IndexError, ir.RefusedError), match="non-zero size"):
        program(torch.empty(3, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", [3, -4])
def test_a_place_out_of_range_of_one_of_two_indices(place, target):
    """As one number for both axes it would be a place of another row."""
    x, i = torch.arange(12.0).view(4, 3), torch.tensor([0, 1])
    model = type("Model", (torch.nn.Module,), {"forward": lambda self, x, i, j: x[i, j]})()
    program = ir.export(model, (x, i, i), dynamic_shapes=({0: "rows"}, {0: "n"}, {0: "n"}), target=target)
    program.verify((x, i, torch.tensor([2, -3])))
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(x, i, torch.tensor([place, 0]))
