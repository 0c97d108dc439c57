"""Special functions in tract against torch: everywhere, at their poles and far out."""

from __future__ import annotations

import pytest
import torch

import ir
from tests.halves import half
from tests.special import FUNCTIONS, check, precisions

INF, NAN = float("inf"), float("nan")


@half(FUNCTIONS, "nnef")
@precisions(torch.float32)
def test_against_torch(name: str, dtype: torch.dtype) -> None:
    check(name, "nnef", dtype)


def test_lgamma_around_its_zeros():
    x = torch.cat(
        [1 + torch.logspace(-7, -0.4, 40), 1 - torch.logspace(-7, -0.4, 40), torch.tensor([1.0, 2, 2.5, 0.5])]
    )
    x = torch.cat([x, x + 1])
    program = ir.export(torch.lgamma, (x,), target="nnef")
    torch.testing.assert_close(program(x), torch.lgamma(x), rtol=2e-6, atol=0)


def test_a_degree_that_data_decides_is_refused():
    x = torch.tensor([0.5])
    with pytest.raises(ir.RefusedError, match="whose end depends on data"):
        ir.export(lambda x: torch.special.legendre_polynomial_p(x, x), (x,), target="nnef")


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


@pytest.mark.parametrize("divisor", [0.3, -7.0, 1e-30, 0.0, None], ids=str)
def test_remainders_of_what_is_divided_often(divisor):
    """Exact at any quotient; torch's own vectorised kernel has nan there, and C's fmod, one by one, has not."""
    x = torch.tensor([3.4028235e38, -3.4028235e38, 1e20, 9e15, -7.5, 1e-45, -0.0, torch.inf])
    y = torch.tensor([0.3, 1e-45, -7.0, 1.5, 1e30, 1e-40, 3.0, 2.0]) if divisor is None else torch.tensor(divisor)
    arguments = (x, y) if divisor is None else (x,)
    program = ir.export(lambda x, y=divisor: (torch.fmod(x, y), torch.remainder(x, y)), arguments, target="nnef")
    one_by_one = [(torch.fmod(a, b), torch.remainder(a, b)) for a, b in zip(x, y.expand(8), strict=True)]
    for found, wanted in zip(program(*arguments), zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=0, equal_nan=True)
