"""Numbers that float16 has not, or few digits of, beside tensors of halves: torch computes with them in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir
from ir.passes.promote import IN_SINGLE

X = torch.tensor([0.0, -0.0, 1, -1, 0.5, -3.25, 10, 20, -20, 65504, -65504, 6.1e-5, 6e-8, torch.inf, -torch.inf, 3.1])
M = X[2:6].view(2, 2)
OPS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "mul": lambda x, m, n: x * n,
    "div": lambda x, m, n: x / n,
    "addcmul": lambda x, m, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, m, n: torch.addcdiv(x, x, x + 1, value=n),
    "leaky_relu": lambda x, m, n: F.leaky_relu(x, n),
    "softplus": lambda x, m, n: F.softplus(x, n),
    "addmm": lambda x, m, n: torch.addmm(m, m, m, beta=n, alpha=n),
    "addbmm": lambda x, m, n: torch.addbmm(m, m[None], m[None], beta=n, alpha=n),
    "baddbmm": lambda x, m, n: torch.baddbmm(m[None], m[None], m[None], beta=n, alpha=n),
    "add": lambda x, m, n: torch.add(x, x, alpha=n),
    "sub": lambda x, m, n: torch.sub(x - n, x, alpha=n),
    "rsub": lambda x, m, n: torch.rsub(x, x, alpha=n),
}


def test_each_op_is_tried() -> None:
    assert list(OPS) == list(IN_SINGLE)


@pytest.mark.parametrize("target", ["onnx", "nnef"])
@pytest.mark.parametrize("number", [1e-6, 1e6, 3.0, -3.0])
@pytest.mark.parametrize("name", OPS)
def test_a_number_beside_halves_has_all_its_digits(name: str, number: float, target: str) -> None:
    args, op = (X.half(), M.half()), OPS[name]
    try:
        wanted = op(*args, number)
    except RuntimeError:
        pytest.skip("torch takes no such number here")
    found = ir.export(lambda x, m: op(x, m, number), args, target=target)(*args)
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=1.2e-7, equal_nan=True)
