"""Special functions in tract against torch: everywhere, at their poles and far out."""

from __future__ import annotations

import pytest
import torch

import ir

INF, NAN = float("inf"), float("nan")
LINE = torch.cat([torch.linspace(-12.3, 20, 400), torch.tensor([0, 1, 2, -1, 0.5, 1e-3, 1e3, 50, -50, INF, -INF, NAN])])
UNIT = torch.cat([torch.linspace(-1, 1, 301), torch.tensor([0.999999, -0.9999999, 1e-6, 1.5, NAN])])
ONCE = torch.tensor([0.5])
FUNCTIONS = {
    "lgamma": (torch.lgamma, LINE),
    "digamma": (torch.digamma, LINE),
    "trigamma": (lambda x: torch.polygamma(1, x), LINE[LINE > 0]),
    "erfinv": (torch.erfinv, UNIT),
    "ndtri": (torch.special.ndtri, UNIT.abs()[:305]),
    "erfcx": (torch.special.erfcx, torch.cat([torch.linspace(-9, 9, 300), torch.tensor([100, 1e5, NAN])])),
    "log_ndtr": (torch.special.log_ndtr, LINE),
    "i0": (torch.i0, LINE),
    "i0e": (torch.special.i0e, LINE),
    "i1": (torch.special.i1, LINE),
    "i1e": (torch.special.i1e, LINE),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_torch(name):
    function, x = FUNCTIONS[name]
    program = ir.export(lambda x: function(x), (x,), target="nnef", dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(x), function(x), rtol=2e-5, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(program(ONCE), function(ONCE), rtol=2e-5, atol=2e-6)
    assert all(f.name.startswith("ir_") for f in program.artifact.fragments)


def test_lgamma_around_its_zeros():
    x = torch.cat(
        [1 + torch.logspace(-7, -0.4, 40), 1 - torch.logspace(-7, -0.4, 40), torch.tensor([1.0, 2, 2.5, 0.5])]
    )
    x = torch.cat([x, x + 1])
    program = ir.export(torch.lgamma, (x,), target="nnef")
    torch.testing.assert_close(program(x), torch.lgamma(x), rtol=2e-6, atol=0)


def test_higher_orders_are_refused():
    with pytest.raises(ir.RefusedError, match="orders 0 and 1"):
        ir.export(lambda x: torch.polygamma(2, x), (ONCE,), target="nnef")


def test_relu_behind_a_product_keeps_nan_and_gives_no_negative_zero():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([[1.0, -1, 1], [1, 1, 1]]))

        def forward(self, x):
            product = torch.relu(x) @ self.w
            y = torch.relu(product)
            return y, 1 / y, torch.relu(y + product)

    x, layer = torch.tensor([[1.0, NAN], [3, -2], [-1, 1.5], [3e38, 1]]), Layer()
    program = ir.export(layer, (x,), target="nnef")
    assert "leaky_relu" in {o.name for o in program.artifact.operations}
    torch.testing.assert_close(program(x), layer(x), equal_nan=True)
