"""Numbers stored in tensors of integers: cut as C++ casts them, refused where the type does not hold them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir

WAYS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "full": lambda x, n: torch.full_like(x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 2, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([1]), n),
    "scatter": lambda x, n: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "fill_diagonal": lambda x, n: x.clone().fill_diagonal_(n),
    "threshold": lambda x, n: F.threshold(x, 2, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -9, n),
    "clamp": lambda x, n: x.clamp(max=int(n) if math.isfinite(n) else 2**40),
    "where": lambda x, n: torch.where(x > 2, x, int(n) if math.isfinite(n) else 2**40),
}
X = torch.arange(6, dtype=torch.int32).reshape(2, 3)


@pytest.mark.parametrize("target", ["onnx", "nnef"])
@pytest.mark.parametrize("way", WAYS)
def test_a_number_is_stored_as_torch_stores_it(way: str, target: str) -> None:
    stored = WAYS[way]
    for number in (2.0, 5.7, -3.7) if way != "fill_diagonal" else (2.0, -4.0):
        program = ir.export(lambda x, n=number: stored(x, n), (X,), target=target)
        assert torch.equal(program(X), stored(X, number))


@pytest.mark.parametrize("target", ["onnx", "nnef"])
@pytest.mark.parametrize("number", [3e10, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_type_does_not_hold_is_refused(way: str, number: float, target: str) -> None:
    """torch raises where the model runs: as a number of 32 bits, 3e10 would be -64771072."""
    stored = WAYS[way]
    with pytest.raises(RuntimeError):
        stored(X, number)
    with pytest.raises(
        ir.ExportError,
        match=r"does not fit i32|torch fails to compute a constant by aten::|cannot convert float infinity",
    ):
        ir.export(lambda x: stored(x, number), (X,), target=target)(X)
