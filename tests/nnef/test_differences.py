"""Differences of sizes, which may fall below 0 in a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import ir

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")

Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _pads(x: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
    more = x.shape[-1] - y.shape[-1]
    return more // 2, more - more // 2


PADS: dict[str, Pair] = {
    "behind": lambda x, y: F.pad(y, (0, x.shape[-1] - y.shape[-1])) + x,
    "before": lambda x, y: F.pad(y, (x.shape[-1] - y.shape[-1], 0), value=3.0),
    "to a number": lambda x, y: F.pad(y, (0, 7 - y.shape[-1])),
    "both": lambda x, y: F.pad(y, _pads(x, y)) * x,
    "half": lambda x, y: F.pad(y, (_pads(x, y)[0], 0)),
    "circular": lambda x, y: F.pad(y, (0, x.shape[-1] - y.shape[-1]), "circular"),
    "truths": lambda x, y: F.pad(y > 0, _pads(x, y), value=True),
}


@pytest.mark.parametrize("name", PADS)
def test_an_amount_below_0_crops(name):
    model = PADS[name]
    program = ir.export(model, (torch.randn(2, 3, 9), torch.randn(2, 3, 6)), target="nnef",
                        dynamic_shapes=({2: "t"}, {2: "u"}))  # fmt: skip
    for t, u in ((9, 6), (6, 6), (6, 9), (5, 8), (7, 6)):
        x, y = torch.randn(2, 3, t), torch.randn(2, 3, u)
        assert torch.equal(program(x, y), model(x, y))


HALVES: dict[str, Pair] = {
    "number": lambda x, y: x + (x.shape[0] - y.shape[0]) // 2,
    "range": lambda x, y: torch.arange((x.shape[0] - y.shape[0]) // 3, (x.shape[0] - y.shape[0]) // 3 + 4),
    "rest": lambda x, y: x + (x.shape[0] - y.shape[0]) % 3,
    "several": lambda x, y: x + (2 * x.shape[0] - 3 * y.shape[0] + 1) // 4,
}


@pytest.mark.parametrize("name", HALVES)
def test_a_difference_is_divided_as_python_divides_it(name):
    model = HALVES[name]
    program = ir.export(model, (torch.randn(9), torch.randn(5)), target="nnef", dynamic_shapes=({0: "t"}, {0: "u"}))
    for t, u in ((9, 5), (4, 7), (5, 8), (3, 20), (1, 1)):
        x, y = torch.randn(t), torch.randn(u)
        assert torch.equal(program(x, y), model(x, y))


def test_windows_of_what_is_left_load():
    """The number of windows is a quotient of a difference, which tract finds itself."""

    def model(x, y):
        x = x[:, :, y.shape[2] :]
        return F.conv1d(x, torch.ones(2, 2, 3), stride=2, padding=1) + F.avg_pool1d(x, 3, 2, 1)

    program = ir.export(model, (torch.randn(1, 2, 19), torch.randn(1, 2, 5)), target="nnef",
                        dynamic_shapes=({2: "t"}, {2: "u"}))  # fmt: skip
    for t, u in ((19, 5), (12, 3), (11, 3)):
        x, y = torch.randn(1, 2, t), torch.randn(1, 2, u)
        torch.testing.assert_close(program(x, y), model(x, y))
